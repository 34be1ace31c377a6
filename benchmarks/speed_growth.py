"""Many short trials in one cell: do they get slower, or larger?"""

from __future__ import annotations

import gc
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import psutil
import torch
from speed_start import Quiet, made, tidy
from speed_tables import grown
from speed_tasks import DEVICE, TASKS, Keep, Line, corpus_of, settled

from supermax.training.loop import train

PAIRS = 64
"""Of a short trial."""


def growth(name: str, repeat: int, limit: float, keep: Keep) -> None:
    """Of `repeat` trials, as far as they come in `limit` seconds."""
    line = {"part": "start", "run": f"{time.time():.0f}", "task": name, "contender": "growth"}
    with tempfile.TemporaryDirectory() as folder:
        keep(line | {"wanted": repeat} | _measured(name, repeat, limit, Path(folder)))


def _measured(name: str, repeat: int, limit: float, folder: Path) -> Line:
    what = TASKS[name]
    corpus = corpus_of(replace(what, pairs=PAIRS))
    gc.collect()
    gc.freeze()  # as cells do
    began = time.perf_counter()
    seconds: list[float] = []
    device: list[int] = []
    host: list[int] = []
    while len(seconds) < repeat and time.perf_counter() - began < limit:
        started = time.perf_counter()
        dropout = 0.05 + 0.0005 * len(seconds)  # another in each, as in a search
        trial = made(what, corpus, folder, epochs=1, dropout=dropout)
        train(trial, Quiet())
        settled()
        seconds.append(time.perf_counter() - started)
        why = trial.way.why_eager
        del trial
        tidy()
        device.append(torch.cuda.memory_reserved() if DEVICE == "cuda" else 0)
        host.append(psutil.Process().memory_info().rss)
    return {
        "trials": len(seconds),
        "device_memory": grown(device),
        "host_memory": grown(host),
        "why_eager": why,
        "all_seconds": [round(one, 4) for one in seconds],
    }
