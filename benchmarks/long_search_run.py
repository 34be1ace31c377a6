"""One piece of the long search: a turn of `supermax tune` for each agent, and samples of the GPU.

Options ──prepare()──▶ pairs.csv, AGENT.yaml ──Turn──▶ studies, turns.jsonl
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml
from common import machine
from long_search_files import AGENTS, Line, LongSearchFolder, append, lines

sys.path.append(str(Path(__file__).parent / "faults"))

from processes import TAG, tagged  # isort: skip

from supermax._util.attributes import UNTRAINED
from supermax.memory.devices import Gpu, Nvml, gpus
from supermax.space import load
from supermax.training.data.examples import Example
from supermax.training.data.synthetic import synthetic

SOURCE = Path(__file__).resolve().parents[1] / "src"
EVERY = 0.25
"""Seconds between two samples of the GPU."""
TO_PAUSE = 35.0
"""Seconds that a search may take to pause: a trial that does not react is ended after 30."""
EARLY = 25.0
"""Seconds by which a search starts before the one before it pauses, about those of its imports.
With MPS it is 0: each search starts a daemon of its own."""
MOST_WORDS = 1000
PAUSED, FINISHED = 130, 0
"""Exit codes of `supermax tune`."""
COLUMNS = {
    "question": "question",
    "text": "passage",
    "label": "shown",
    "answer": "answer",
    "answer_start": "start",
    "group": "post",
}


@dataclass(frozen=True)
class Options:
    """Options of the search. The first piece writes them to the folder."""

    encoders: tuple[str, ...] | None = None
    """None: those of the space, at full size."""
    workers: str = "auto"
    mps: bool = False
    gpu_memory: str = "24GiB"
    posts: int = 400
    epochs: int = 2
    seed: int = 0


def run(
    folder: Path, given: dict[str, Any], seconds: float, agents: Sequence[str] | None = None
) -> int:
    """Run one piece. Return 1 if a search ended otherwise than by its pause or its last trial."""
    deadline = time.monotonic() + seconds
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a turn is not left behind
    # A shell starts background jobs with SIGINT ignored, which a search would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if unknown := set(agents or ()) - set(AGENTS):
        raise SystemExit(f"There is no agent {', '.join(sorted(unknown))} in this benchmark.")
    files = LongSearchFolder(folder.absolute())
    options = prepare(files, given)
    number = len(lines(files.pieces)) + 1
    at = (number - 1) % len(AGENTS)  # each agent is first in one piece of four
    order = [a for a in (*AGENTS[at:], *AGENTS[:at]) if a in (agents or AGENTS)]
    started, found = time.time(), gpus()
    ended_well = False
    try:
        with sampled(files.gpu):
            ended_well = _turns(files, order, number, deadline, 0.0 if options.mps else EARLY)
    finally:
        append(
            files.pieces,
            {
                "piece": number,
                "started": started,
                "ended": time.time(),
                "agents": order,
                "gpu": found[0].name if found else None,
                "options": asdict(options),
                "machine": machine(("supermax", "optuna", "torch", "transformers")),
            },
        )
    return 0 if ended_well else 1


# Preparation.


def prepare(files: LongSearchFolder, given: dict[str, Any]) -> Options:
    """Write data, options and settings, or read the options of the first piece. Raises SystemExit
    if they differ from those given."""
    if "encoders" in given:
        given = {**given, "encoders": tuple(given["encoders"])}
    if files.options.exists():
        stored = json.loads(files.options.read_text(encoding="utf-8"))
        encoders = stored["encoders"] and tuple(stored["encoders"])
        options = Options(**{**stored, "encoders": encoders})
        if other := [key for key, value in given.items() if getattr(options, key) != value]:
            raise SystemExit(f"The first piece had other values of {', '.join(other)}.")
        return options
    options = Options(**given)
    files.path.mkdir(parents=True, exist_ok=True)
    write_pairs(files.pairs, options)
    for agent in AGENTS:
        text = yaml.safe_dump(settings(files, agent, options), sort_keys=False)
        files.settings(agent).write_text(text, encoding="utf-8")
    files.options.write_text(json.dumps(asdict(options)) + "\n", encoding="utf-8")
    return options


def settings(files: LongSearchFolder, agent: str, options: Options) -> Line:
    """Return the settings of an agent's search. Files are named relative to the folder."""
    return {
        "agent": agent,
        "preset": "max",
        "data": {"path": files.pairs.name, "columns": COLUMNS},
        "models": list(options.encoders or full_size()),
        "epochs": options.epochs,
        "workers": options.workers,
        "mps": options.mps,
        "gpu_memory": options.gpu_memory,
        "seed": options.seed,
        "storage": files.study(agent).name,
        "cache": "cache",
        # Disks of rented machines are small, and nobody reads these weights.
        "top": 1,
    }


def full_size() -> list[str]:
    """Return the encoders of the space, by the names under which they are built from their
    configuration."""
    parameter = load("criteria").parameters["encoder.name"]
    return [f"{UNTRAINED}{name}" for name in parameter.branches[0].choices]  # type: ignore[union-attr]


def write_pairs(path: Path, options: Options) -> None:
    corpus = synthetic(options.posts, seed=options.seed, max_words=MOST_WORDS)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(COLUMNS.values()))
        writer.writeheader()
        writer.writerows(_row(example) for example in corpus.spans)


def _row(example: Example) -> Line:
    span = (example.spans or [None])[0]
    return {
        "question": example.question,
        "passage": example.text,
        "shown": "yes" if span else "no",
        "answer": example.text[slice(*span)] if span else "",
        "start": span[0] if span else "",
        "post": example.group,
    }


# Turns.


class Turn:
    """Run of an agent's search, from its start to its pause."""

    def __init__(self, files: LongSearchFolder, agent: str, piece: int) -> None:
        self._files, self._agent, self._tag = files, agent, uuid.uuid4().hex
        self._line: Line = {"piece": piece, "agent": agent, "started": time.time()}
        command = [sys.executable, "-m", "supermax", "tune", files.settings(agent).name]
        environment = {
            **os.environ,
            TAG: self._tag,
            "XDG_CACHE_HOME": str(files.home),
            "PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")]),
        }
        with files.log(agent).open("ab") as output:
            self._process = subprocess.Popen(
                command, cwd=files.path, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env=environment, start_new_session=True,
            )  # fmt: skip

    def wait(self, until: float) -> None:
        """Wait for its end, or until a moment of time.monotonic()."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, until - time.monotonic()))

    def pause(self) -> bool:
        """Request a pause, and wait for it. Return False if the search had ended otherwise, or
        ends otherwise now. One that is not fast enough is killed, which a later piece resumes."""
        if self._process.poll() is None:
            self._line["asked"] = time.time()
            self._process.send_signal(signal.SIGINT)
            self.wait(time.monotonic() + TO_PAUSE)
        code = self._process.poll()
        self.close()
        if code is None:
            print(f"{self._agent} did not pause within {TO_PAUSE:.0f} s.", flush=True)
        if code in (PAUSED, FINISHED, None):
            return True
        text = self._files.log(self._agent).read_text(encoding="utf-8", errors="replace")
        print(
            f"{self._agent} ended with {code}:", *text.splitlines()[-15:], sep="\n  ", flush=True
        )
        return False

    def close(self) -> None:
        """Kill what is left, which is nothing after a pause in time, and note the turn once."""
        for process in tagged(self._tag):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if "ended" not in self._line:
            self._line |= {"ended": time.time(), "code": self._process.poll()}
            append(self._files.turns, self._line)


def _turns(
    files: LongSearchFolder, order: Sequence[str], piece: int, deadline: float, early: float
) -> bool:
    """Give each agent an equal share of the time. A search starts `early` seconds before the one
    before it pauses, which it needs for its imports. Return False if one ended otherwise."""
    with contextlib.ExitStack() as stack:

        def start(agent: str) -> Turn:
            turn = Turn(files, agent, piece)
            stack.callback(turn.close)
            return turn

        turn, all_paused = start(order[0]), True
        for index, agent in enumerate(order):
            left, others = deadline - time.monotonic() - TO_PAUSE, len(order) - index - 1
            slot = (left + (0 if index else others * early)) / (others + 1)
            until = time.monotonic() + max(0.0, slot)
            print(f"Piece {piece}, {agent}: {slot:.0f} s.", flush=True)
            if others:
                turn.wait(until - early)
                following = start(order[index + 1])
            turn.wait(until)
            all_paused &= turn.pause()
            if others:
                turn = following
    return all_paused


# Samples of the GPU.


@contextlib.contextmanager
def sampled(path: Path, read: Callable[[], tuple[Gpu, ...]] | None = None):  # type: ignore[no-untyped-def]
    """Append a sample of the first GPU every `EVERY` seconds. `read` defaults to NVML."""
    done = threading.Event()
    thread = threading.Thread(target=_sample, args=(path, read or Nvml().read, done))
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _sample(path: Path, read: Callable[[], tuple[Gpu, ...]], done: threading.Event) -> None:
    due = time.monotonic()
    with path.open("a", encoding="utf-8") as file:
        while not done.is_set():
            found = read()
            if found and found[0].busy is not None:
                file.write(f"{time.time():.3f},{100 * found[0].busy:.0f},{found[0].used}\n")
                file.flush()
            due = max(due + EVERY, time.monotonic())
            done.wait(due - time.monotonic())
