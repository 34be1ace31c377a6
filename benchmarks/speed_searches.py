"""Run the search of one contender and print its line; started by speed_trials.py.

Each contender imports only what it needs: its time counts from the start of this process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from optuna.pruners import NopPruner
from optuna.study import Study
from speed_tasks import (
    EPOCHS,
    TASKS,
    Cells,
    Line,
    NotAvailable,
    Task,
    cells_of,
    choice,
    corpus_of,
    validation_of,
)
from speed_trials import BARE, BASELINE, finished_of, summarised

SPACE = """
name: list
parameters:
  encoder.name: {{choices: [{encoder}]}}
  text.max_length: {{choices: [{length}]}}
  train.effective_batch: {{choices: [{batch}]}}
  encoder.dropout: {{type: float, low: 0.0, high: 0.5}}
  encoder.attention_dropout: {{type: float, low: 0.0, high: 0.5}}
  optim.lr: {{type: float, low: 1.0e-6, high: 1.0e-3, log: true}}
"""


def _our_search(what: Task, cells: Cells, number: int, since: float, folder: Path) -> Line:
    """Run the list of configurations with Supermax, in several cells."""
    from supermax.search.search import Search
    from supermax.space import loads
    from supermax.training.data.splits import Splits
    from supermax.training.steps.execution import Execution

    corpus = corpus_of(what)
    search = Search(
        what.agent,
        corpus,
        str(folder / "s.db"),
        folder / "cache",
        space=loads(SPACE.format(encoder=what.encoder, length=what.length, batch=what.batch)),
        trials=number,
        sampler="random",
        pruner=NopPruner(),
        limits={"epochs": EPOCHS, "patience": None},
        splits=Splits(corpus, validation_of(corpus), validation_of(corpus)),
        top=1,
        seed=0,
        around=lambda study, *_: _queued(study, number),
        tell=lambda _: None,
        execution=Execution(device="auto", precision="auto", compiled=cells.compiled),
    )
    tuned = search.run(workers=cells.count, progress=False)
    done = [t for t in tuned.study.trials if t.state.name == "COMPLETE"]
    if len(done) < number:
        raise NotAvailable(f"{len(done)} of {number} trials ended: {tuned.summary.faults}")
    results = [t.user_attrs["result"] for t in done]
    return summarised(
        finished_of(tuned.study, "optim.lr", "encoder.dropout"),
        since,
        cells.count,
        training=statistics.median(r["seconds"] for r in results),
        recording=statistics.median(r["recording"] for r in results),
        rate=statistics.median(r["samples_per_second"] or 0 for r in results),
        cells=tuned.summary.cells,
        faults=tuned.summary.faults,
        steps=sorted({str(r.get("steps")) for r in results}),
        micro_batches=sorted({r["micro_batch"] for r in results}),
    )


@contextmanager
def _queued(study: Study, number: int) -> Iterator[None]:
    """Queue the trials of the list, so that the sampler draws nothing."""
    for i in range(number):
        tried = choice(i)
        study.enqueue_trial(
            {
                "optim.lr": tried.rate,
                "encoder.dropout": tried.dropout,
                "encoder.attention_dropout": tried.dropout,
            }
        )
    yield


def _search(
    contender: str, what: Task, number: int, since: float, folder: Path, no_cudnn: bool
) -> Line:
    """Run a search. `no_cudnn`: Trainer and the plain loop do without cuDNN's attention, as
    Supermax always does."""
    if (cells := cells_of(contender)) is not None:
        with cells.shared():
            return _our_search(what, cells, number, since, folder)
    from speed_search_others import bare_search, baseline_search, trainer_search

    from supermax.training.models.attention import without_cudnn_attention

    others = {BARE: bare_search, BASELINE: baseline_search}
    with without_cudnn_attention() if no_cudnn else nullcontext():
        return others.get(contender, trainer_search)(what, number, since, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the search of one contender.")
    parser.add_argument("contender")
    parser.add_argument("task")
    parser.add_argument("number", type=int)
    parser.add_argument("since", type=float)
    parser.add_argument("--no-cudnn", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        what = TASKS[options.task]
        try:
            line = _search(
                options.contender, what, options.number, options.since, Path(folder),
                options.no_cudnn,
            )  # fmt: skip
        except NotAvailable as error:
            raise SystemExit(str(error)) from None
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
