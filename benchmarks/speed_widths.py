"""What a recorded step takes by its width, and what it takes to get one ready: cold, with what
another process has compiled, and in a process that has done it before.

    widths() ──▶ processes with one folder of what was compiled ──▶ a line for each training

As a program this is one such process, which trains twice.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import torch
from speed_tasks import (
    HERE,
    TASKS,
    Keep,
    Line,
    Task,
    check_compiled,
    config_of,
    corpus_of,
    execution,
    settled,
)

from supermax.training import costs
from supermax.training.batches import order
from supermax.training.prepare import prepare
from supermax.training.ways import Epoch, Way

_TIMES = 7


def widths(name: str, keep: Keep) -> None:
    run = f"{time.time():.0f}"
    for compiled in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            for process in ("first", "second")[: 1 + compiled]:
                line = {"part": "widths", "run": run, "task": name, "process": process}
                line["contender"] = "compiled" if compiled else "captured"
                for training, found in enumerate(_seen(name, folder, compiled)):
                    keep(line | {"training": training + 1} | found)


def _seen(name: str, folder: str, compiled: bool) -> list[Line]:
    command = [sys.executable, str(HERE / "speed_widths.py"), name, folder]
    command += ["--compiled"] * compiled
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return [{"failed": (done.stderr.strip().splitlines() or ["nothing was said"])[-1][:300]}]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def _training(what: Task, folder: Path, compiled: bool) -> Line:
    """An epoch in which every width is recorded, then each of them alone."""
    corpus = corpus_of(what)
    how = execution(captured=True, compiled=compiled)
    prepared = prepare(config_of(what), corpus, corpus, cache=folder, execution=how)
    batches = order(prepared.train.lengths, what.batch, prepared.seed, 0)
    epoch = Epoch(batches, [1.0] * len(batches))
    longest = [int(prepared.train.lengths[batch].max()) for batch in batches]
    prepared.model.train()
    prepared.way.begin(epoch, 0)
    for update in range(len(batches)):
        prepared.way.take(update)
    settled()
    check_compiled(prepared)
    by_width = {}
    for width in sorted({-(-n // 8) * 8 for n in longest}):
        update = next(i for i, n in enumerate(longest) if -(-n // 8) * 8 == width)
        by_width[width] = _seconds(prepared.way, epoch, update)
    return {
        "how": prepared.way.how,
        "getting_ready": prepared.way.getting_ready,
        "step_ms": {width: 1000 * seconds for width, seconds in by_width.items()},
        "reserved": torch.cuda.memory_reserved(),
    }


def _seconds(way: Way, epoch: Epoch, update: int) -> float:
    """Of one, the mean of several with the tables of the same update."""
    way.begin(epoch, 0)
    settled()
    started = time.perf_counter()
    for _ in range(_TIMES):
        way.take(update)
    settled()
    return (time.perf_counter() - started) / _TIMES


def main() -> None:
    parser = argparse.ArgumentParser(description="One process of several; see widths().")
    parser.add_argument("task")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--compiled", action="store_true")
    options = parser.parse_args()
    with patch.object(costs, "_RECORDING", 0.0):  # every width
        for _ in range(2):
            found = _training(TASKS[options.task], options.folder, options.compiled)
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
