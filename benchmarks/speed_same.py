"""Metric that trials reach with each step executor, over seeds, with dropout.

same() ──▶ eager, captured, compiled, each with the same seeds ──▶ their metrics
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from speed_start import Quiet
from speed_tasks import (
    EAGER,
    EPOCHS,
    TASKS,
    Keep,
    Line,
    NotAvailable,
    Task,
    check_compiled,
    config_of,
    corpus_of,
    error_text,
    execution,
    validation_of,
)

from supermax.training.data.examples import Corpus
from supermax.training.loop import train
from supermax.training.prepare import prepare
from supermax.training.steps.base import Execution

EXECUTORS = {
    EAGER: execution(captured=False),
    "captured": execution(captured=True),
    "compiled": execution(captured=True, compiled=True),
}
RATE = 1e-4
"""Learning rate that is high enough for so few epochs."""


def same(name: str, seeds: int, keep: Keep) -> None:
    line = {"part": "same", "run": f"{time.time():.0f}", "task": name}
    with tempfile.TemporaryDirectory() as folder:
        for contender, how in EXECUTORS.items():
            try:
                found = _reached(TASKS[name], how, seeds, Path(folder))
            except Exception as error:
                found = {"failed": error_text(error)}
            keep(line | {"contender": contender} | found)


def _reached(what: Task, how: Execution, seeds: int, folder: Path) -> Line:
    whole = corpus_of(what)
    held_out = validation_of(whole)
    seen = {example.id for example in held_out.examples}
    rest = Corpus("rest", whole.label_names, tuple(e for e in whole.examples if e.id not in seen))
    values, losses = [], []
    for seed in range(1, seeds + 1):
        config = config_of(what, EPOCHS, rate=RATE, seed=seed)
        prepared = prepare(config, rest, held_out, cache=folder, execution=how)
        result = train(prepared, Quiet())
        if how.captured and prepared.executor.why_eager is not None:
            raise NotAvailable(prepared.executor.how)
        check_compiled(prepared)
        values.append(result.value)
        losses.append(result.curve[-1]["train_loss"])
    return {
        "values": values,
        "mean": statistics.mean(values),
        "deviation": statistics.stdev(values),
        "loss": statistics.mean(losses),
        "how": prepared.executor.how,
    }
