"""Compare searches on live fine-tunings: Supermax beside Optuna's defaults, both in cells.

    python benchmarks/search/live.py search DATA ENCODER --into live.jsonl --seeds 5 \\
        --seconds 500 --open-reporting-half REASON
    python benchmarks/search/live.py winners DATA ENCODER --into live.jsonl
    python benchmarks/search/live.py table --into live.jsonl

DATA and ENCODER: those of record.py. Tasks: three of the reporting half, with the whole encoder.
The contenders have the space, the data and the budget in epochs of the replayed searches
(trainings.py, run.py). A further call goes on with what is missing in the output.

search     one line per search: its trials, with the scores and the time of every epoch
winners    trains the best configurations of each search with further seeds, for a race between
           them and for the metric of the test split
table      regret of the incumbent, and test macro F1 of the configurations that a race and the
           best value of a trial would choose, and differences in pairs (live_results.py)
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import optuna
from live_results import (
    BUDGET,
    Config,
    Epoch,
    Key,
    Search,
    Training,
    best_of,
    further_trainings,
    print_table,
    read_lines,
    score_of,
)
from measure import tasks_of
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.pruners import BasePruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, TPESampler
from portfolio import portfolio_of
from trainings import EPOCHS, RECORDING, SPACE
from tweeteval import read

import supermax
from supermax.engine.processes import mps

TASKS = ("emotion", "irony", "stance-hillary")
WORKERS = 4
REPORTING_LOG = Path(__file__).with_name("reporting-half.log")


# Trainings.


@dataclass
class Trainer:
    """Trains a configuration on a task and reports validation scores."""

    data: Path
    encoder: Path
    cache: Path
    _read: dict[str, Any] = field(default_factory=dict)

    def __call__(self, trial: Any, task: str, values: Config, seed: int) -> float:
        from record import prepared_training, read_task

        from supermax.training.loop import train

        if task not in self._read:
            self._read[task] = read_task(self.data / f"tweeteval-{task}.csv.gz")
        values = {**values, "encoder.name": str(self.encoder)}
        data = self._read[task]
        prepared, curve = prepared_training(data, values, EPOCHS, seed, self.cache)
        epochs = [Epoch(*each) for each in trial.user_attrs.get("epochs", [])]
        train(prepared, _reporter(trial, curve, epochs), trial.checkpoint_dir)
        return max(score_of(epoch.validation) for epoch in epochs)


def _reporter(trial: Any, curve: Any, epochs: list[Epoch]) -> Any:
    from supermax.tasks.objective import TrialReporter

    class Reporter(TrialReporter):
        """Reporter of the validation score; the evaluation has that of both held-out splits."""

        def report(self, value: float, epoch: int) -> None:
            scores = curve.validation[-1], curve.test[-1]
            epochs.append(Epoch(epoch, round(time.time(), 2), *scores))
            trial.set_user_attr("epochs", epochs)
            super().report(score_of(scores[0]), epoch)

    return Reporter(trial)


def suggested(trial: optuna.Trial) -> Config:
    """Draw a configuration from the space."""
    found: Config = {}
    for name, domain in SPACE.items():
        if isinstance(domain, CategoricalDistribution):
            found[name] = trial.suggest_categorical(name, domain.choices)
        else:
            assert isinstance(domain, FloatDistribution)
            found[name] = trial.suggest_float(name, domain.low, domain.high, log=domain.log)
    return found


@dataclass
class SearchObjective:
    trainer: Trainer
    task: str

    def __call__(self, trial: Any) -> float:
        return self.trainer(trial, self.task, suggested(trial), seed=1)


@dataclass
class TrainingObjective:
    """Objective without a search: the trial's number is that of the training in the list."""

    trainer: Trainer
    todo: Sequence[tuple[str, Config, int]]

    def __call__(self, trial: Any) -> float:
        return self.trainer(trial, *self.todo[trial.number])


# Searches.


def methods(contender: str, task: str, seed: int) -> tuple[BaseSampler, BasePruner]:
    """Return sampler and pruner of a contender."""
    if contender == "optuna":
        return TPESampler(seed=seed), MedianPruner()
    if contender == "optuna-no-pruning":
        return TPESampler(seed=seed), NopPruner()
    known = portfolio_of(read(RECORDING, f"{task}-whole"))
    return supermax.PriorSampler(known, seed=seed), supermax.Promotion(max_reports=EPOCHS)


def search(key: Key, trainer: Trainer) -> Search:
    """Run a search until all its trials together have the epochs of the budget."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler, pruner = methods(*key)
    study = optuna.create_study(sampler=sampler, pruner=pruner, direction="maximize")

    def stop(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        trials = study.get_trials(deepcopy=False)
        if sum(len(t.intermediate_values) for t in trials) >= BUDGET:
            study.stop()

    started = time.time()
    with tempfile.TemporaryDirectory() as folder:
        supermax.optimize(
            study,
            SearchObjective(trainer, key.task),
            40 * BUDGET,
            workers=WORKERS,
            reuse_cells=True,
            run_dir=Path(folder),
            callbacks=[stop],
            progress=False,
        )
    trials = study.get_trials(deepcopy=False)
    epochs = [
        [Epoch(e[0], round(e[1] - started, 2), *e[2:]) for e in t.user_attrs.get("epochs", [])]
        for t in trials
    ]
    return Search(key, round(time.time() - started, 2), [t.params for t in trials], epochs)


@contextmanager
def _shared(workers: int) -> Iterator[None]:
    from supermax.memory.budgets import GpuBudget
    from supermax.memory.sharing import share_of_each

    with mps.shared(print, share_of_each(workers, GpuBudget().whole)):
        yield


def run_searches(options: argparse.Namespace, trainer: Trainer) -> None:
    done, _ = read_lines(options.into)
    names, log = [f"tweeteval-{task}-whole" for task in TASKS], REPORTING_LOG
    assert tasks_of("reporting", names, reason=options.open_reporting_half, log=log) == names
    wanted = [
        Key(contender, task, seed)
        for seed in range(options.seeds)
        for task in TASKS
        for contender in options.contenders
    ]
    todo = [key for key in wanted if key not in done]
    print(f"{len(wanted) - len(todo)} of {len(wanted)} searches are done.", flush=True)
    deadline = time.monotonic() + options.seconds
    running: set[Future[Search]] = set()
    pool = ProcessPoolExecutor(options.together, mp_context=get_context("spawn"))
    with _shared(WORKERS * options.together), pool, options.into.open("a") as out:
        while running or (todo and time.monotonic() < deadline):
            while todo and len(running) < options.together and time.monotonic() < deadline:
                running.add(pool.submit(search, todo.pop(0), trainer))
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for each in ended:
                out.write(json.dumps(asdict(each.result())) + "\n")
            out.flush()


# Winners.


def run_winners(options: argparse.Namespace, trainer: Trainer) -> None:
    searches, done = read_lines(options.into)
    todo: list[tuple[tuple[Key, int, int], Config]] = []
    for key, found in searches.items():
        best = best_of(found)
        todo += [((key, place, seed), best[place].params)
                 for place, seed in further_trainings(key) if place < len(best)]  # fmt: skip
    todo = [item for item in todo if item[0] not in done]
    print(f"{len(todo)} trainings are missing.", flush=True)
    objective = TrainingObjective(
        trainer, [(key.task, params, seed) for (key, _, seed), params in todo]
    )
    with options.into.open("a") as out, tempfile.TemporaryDirectory() as folder:

        def write(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
            if trial.state is optuna.trial.TrialState.COMPLETE:
                line = Training(*todo[trial.number][0], trial.user_attrs["epochs"])
                out.write(json.dumps(asdict(line)) + "\n")
                out.flush()

        workers = WORKERS * options.together
        with _shared(workers):
            supermax.optimize(
                optuna.create_study(direction="maximize", pruner=NopPruner()),
                objective,
                len(todo),
                timeout=options.seconds,
                workers=workers,
                reuse_cells=True,
                run_dir=Path(folder),
                callbacks=[write],
                progress=False,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["search", "winners", "table"])
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("encoder", type=Path, nargs="?")
    parser.add_argument("--into", type=Path, required=True, help="file of results, JSON lines")
    parser.add_argument("--contenders", nargs="+", default=["optuna", "supermax"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--open-reporting-half", metavar="REASON", help="is logged")
    parser.add_argument("--together", type=int, default=3, help="searches at a time")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no search after it")
    options = parser.parse_args()
    if options.part == "table":
        print_table(options.into)
        return
    if options.part == "search" and not options.open_reporting_half:
        parser.error("search needs --open-reporting-half with a reason.")
    if options.data is None or options.encoder is None:
        parser.error("search and winners need DATA and ENCODER.")
    with tempfile.TemporaryDirectory() as cache:
        trainer = Trainer(options.data.resolve(), options.encoder.resolve(), Path(cache))
        {"search": run_searches, "winners": run_winners}[options.part](options, trainer)


if __name__ == "__main__":
    main()
