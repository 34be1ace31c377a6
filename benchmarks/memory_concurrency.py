"""Run short trials of bert-base on a GPU, several at a time: see memory.py."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

from supermax.memory.devices import find_gpu, gpus
from supermax.search.search import Search
from supermax.space import loads
from supermax.training.data.synthetic import synthetic
from supermax.training.steps.execution import Execution

TRIALS = 24
SPACE = """
name: concurrency
parameters:
  encoder.name: {choices: [untrained/bert-base-uncased]}
  text.max_length: {choices: [128]}
  train.effective_batch: {choices: [16]}
  optim.lr: {type: float, low: 1e-5, high: 1e-4, log: true}
"""


def measured(workers: int) -> dict[str, object]:
    """Return trials per hour, from the start of the first trial, and the peak device memory."""
    peak, ended = [0], threading.Event()

    def sample_memory() -> None:
        while not ended.wait(0.2):
            if (gpu := find_gpu(gpus(), None)) is not None:
                peak[0] = max(peak[0], gpu.used)

    with tempfile.TemporaryDirectory() as folder:
        search = Search(
            "criteria",
            synthetic(30, difficulty=0.5, seed=0, max_words=24),
            str(Path(folder) / "s.db"),
            Path(folder) / "cache",
            space=loads(SPACE),
            trials=TRIALS,
            limits={"epochs": 3, "patience": None},
            top=1,
            execution=Execution(device="auto", precision="auto", captured=False),
            tell=lambda _: None,
        )
        threading.Thread(target=sample_memory, daemon=True).start()
        started = time.monotonic()
        tuned = search.run(workers=workers, progress=False)
        seconds = time.monotonic() - started
        ended.set()
    trials = [trial for trial in tuned.study.trials if trial.state.name == "COMPLETE"]
    first = min(t.datetime_start.timestamp() for t in trials if t.datetime_start)
    last = max(t.datetime_complete.timestamp() for t in trials if t.datetime_complete)
    return {
        "complete": len(trials),
        "seconds": seconds,
        "per_hour": 3600 * len(trials) / (last - first),
        "highest": peak[0],
        "faults": tuned.summary.faults,
        "cells": tuned.summary.cells,
    }
