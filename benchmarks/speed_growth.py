"""Time and memory over many short trials in one cell.

growth() ──▶ two cells in turns ──▶ one alone, many trials ──▶ both in turns again

The speed of a host varies by more than the effect. So the cell with many trials is compared with a
reference cell, trial by trial, before and after them: a slowdown of both is due to the host. As a
program this is a cell, which runs the trials whose numbers it reads.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import psutil
import torch
from speed_start import Quiet, made, tidy
from speed_tasks import DEVICE, TASKS, Keep, Line, corpus_of, error_text, synchronize

from supermax.training.data.examples import Corpus
from supermax.training.loop import train

PAIRS = 64
"""Pairs of a short trial."""
FIRST = 5
"""Warm-up trials of a cell."""
EDGE = 20
"""Trials over which early and late memory are taken."""
TURNS = 60
"""Trials of each cell that are compared, before and after."""


def growth(name: str, repeat: int, limit: float, keep: Keep) -> None:
    """Measure `repeat` trials in one cell, or as many as run in `limit` seconds."""
    line = {"part": "start", "run": f"{time.time():.0f}", "task": name, "contender": "growth"}
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = _measured(name, repeat, limit, Path(folder))
        except (RuntimeError, BrokenPipeError) as error:
            found = {"failed": error_text(error)}
    keep(line | {"wanted": repeat} | found)


def _measured(name: str, repeat: int, limit: float, folder: Path) -> Line:
    alone: list[Line] = []
    with _Cell(name, folder / "many") as many, _Cell(name, folder / "few") as few:
        for cell in (many, few):
            for number in range(FIRST):
                cell.trial(number)
        early = _in_turns(many, few)
        began = time.perf_counter()
        while not alone or (len(alone) < repeat and time.perf_counter() - began < limit):
            alone.append(many.trial(len(alone)))
        late = _in_turns(many, few)
    return {
        "trials": len(alone),
        "seconds": _grown(*(statistics.median(one for one, _ in some) for some in (early, late))),
        "beside": _grown(*(statistics.median(one for _, one in some) for some in (early, late))),
        "over_beside": _relative_growth(early, late),
        "device_memory": _edges([one["device"] for one in alone]),
        "host_memory": _edges([one["host"] for one in alone]),
        "why_eager": alone[-1]["why_eager"],
        "turns": [[[round(one, 4) for one in pair] for pair in some] for some in (early, late)],
        "all_seconds": [round(one["seconds"], 4) for one in alone],
    }


def _in_turns(many: _Cell, few: _Cell) -> list[tuple[float, float]]:
    """Return the seconds of both cells, trial by trial; they take turns being first."""
    found = []
    for turn in range(TURNS):
        both = {cell: cell.trial(turn)["seconds"] for cell in ((many, few), (few, many))[turn % 2]}
        found.append((both[many], both[few]))
    return found


def _relative_growth(
    early: Sequence[tuple[float, float]], late: Sequence[tuple[float, float]]
) -> Line:
    """Return the growth of the median ratio of both cells, with the standard error of medians."""
    ratios = [[one / other for one, other in some] for some in (early, late)]
    errors = [1.2533 * statistics.stdev(some) / len(some) ** 0.5 for some in ratios]
    return _grown(*map(statistics.median, ratios)) | {"error": math.hypot(*errors)}


def _edges(values: Sequence[float]) -> Line:
    edge = max(1, min(EDGE, len(values) // 3))
    return _grown(statistics.median(values[:edge]), statistics.median(values[-edge:]))


def _grown(early: float, late: float) -> Line:
    return {"early": early, "late": late, "growth": late / early - 1 if early else 0.0}


class _Cell:
    def __init__(self, name: str, folder: Path) -> None:
        command = [sys.executable, str(Path(__file__)), name, str(folder)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def trial(self, number: int) -> Line:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        print(number, file=stdin, flush=True)
        for line in stdout:
            if line.startswith("{"):
                found: Line = json.loads(line)
                return found
        raise RuntimeError(f"a cell ended with the code {self._process.wait()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def _trial(name: str, corpus: Corpus, number: int, folder: Path) -> Line:
    started = time.perf_counter()
    dropout = 0.05 + 0.0005 * number  # a new one per trial, as in a search
    trial = made(TASKS[name], corpus, folder, epochs=1, dropout=dropout)
    train(trial, Quiet())
    synchronize()
    seconds = time.perf_counter() - started
    why = trial.executor.why_eager
    del trial
    tidy()
    return {
        "seconds": seconds,
        "device": torch.cuda.memory_reserved() if DEVICE == "cuda" else 0,
        "host": psutil.Process().memory_info().rss,
        "why_eager": why,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="A cell: runs the trials whose numbers it reads.")
    parser.add_argument("task")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    corpus = corpus_of(replace(TASKS[options.task], pairs=PAIRS))
    gc.collect()
    gc.freeze()  # as cells do
    for number in sys.stdin:
        print(json.dumps(_trial(options.task, corpus, int(number), options.folder)), flush=True)


if __name__ == "__main__":
    main()
