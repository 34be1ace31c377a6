"""Several cells that train the same task at the same time, each a process of its own.

    several() ──starts──▶ cells: prepare, record ──"ready"──▶ all at once: "go" ──▶ "done"

As a program this is one of the cells.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from speed_tasks import (
    TASKS,
    Cells,
    Line,
    NotAvailable,
    check_compiled,
    config_of,
    corpus_of,
    execution,
)

from supermax import mps
from supermax.training.loop import train_blind
from supermax.training.prepare import prepare

LEAST = 4.0
"""Seconds that all of them train."""
_LIMIT = 240.0
"""Seconds after which cells that still are not done are ended."""


def several(name: str, cells: Cells, folder: Path) -> Line:
    """Samples a second of all together. Raises NotAvailable where the GPU cannot be shared."""
    with ExitStack() as stack:
        if cells.mps:
            said: list[str] = []
            if not stack.enter_context(mps.shared(said.append)):
                raise NotAvailable(" ".join(said))
        return _together(name, cells, folder)


def _together(name: str, cells: Cells, folder: Path) -> Line:
    started = time.time()
    command = [sys.executable, str(Path(__file__)), name, str(folder)]
    command += ["--compiled"] * cells.compiled
    logs = [(folder / f"{cells.name} {i}.log").open("w+") for i in range(cells.count)]
    running = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        for log in logs
    ]
    watch = threading.Timer(_LIMIT, _end, [running])
    watch.start()
    try:
        ready = [_heard(one, log) for one, log in zip(running, logs, strict=True)]
        epochs = math.ceil(LEAST / min(one["epoch"] for one in ready))
        go = time.time()
        for one in running:
            assert one.stdin is not None
            one.stdin.write(f"{epochs}\n")
            one.stdin.flush()
        done = [_heard(one, log) for one, log in zip(running, logs, strict=True)]
    finally:
        watch.cancel()
        _end(running)
        for one, log in zip(running, logs, strict=True):
            one.communicate()
            log.close()
    samples, ends = sum(one["samples"] for one in ready), [one["end"] for one in done]
    return {
        "samples_per_second": epochs * samples / (max(ends) - go),
        "epochs": epochs,
        "cells": cells.count,
        "before": go - started,
        "first_epoch": max(one["first_epoch"] for one in ready),
        "apart": max(ends) - min(ends),
        "loss": max(one["loss"] for one in done),
        "why_eager": next((one["why_eager"] for one in done if one["why_eager"]), None),
        "how": ", ".join(sorted({one["how"] for one in done})),
    }


def _end(running: list[subprocess.Popen[str]]) -> None:
    for one in running:
        one.kill()


def _heard(cell: subprocess.Popen[str], log: IO[str]) -> dict[str, Any]:
    """What a cell says next."""
    assert cell.stdout is not None
    for line in cell.stdout:
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    log.seek(0)
    last = [line.strip() for line in log if line.strip()][-1:]
    raise RuntimeError(f"a cell has ended: {' '.join(last) or 'it took too long'}")


# A cell.


def main() -> None:
    parser = argparse.ArgumentParser(description="One of several cells; see several().")
    parser.add_argument("task")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--compiled", action="store_true")
    options = parser.parse_args()
    what = TASKS[options.task]
    how, corpus = execution(captured=True, compiled=options.compiled), corpus_of(what)
    prepared = prepare(config_of(what), corpus, corpus, cache=options.folder, execution=how)
    ends = [time.time()]
    losses: list[float] = []

    def told(_: int, loss: float) -> None:
        ends.append(time.time())
        losses.append(loss)

    train_blind(prepared, 2, told)
    check_compiled(prepared)
    ready = {"first_epoch": ends[1] - ends[0], "epoch": ends[2] - ends[1]}
    print(json.dumps(ready | {"samples": len(prepared.train.chosen)}), flush=True)
    train_blind(prepared, int(sys.stdin.readline()), told)
    done = {"end": ends[-1], "loss": losses[-1], "why_eager": prepared.way.why_eager}
    print(json.dumps(done | {"how": prepared.way.how}), flush=True)


if __name__ == "__main__":
    main()
