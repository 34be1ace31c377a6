"""The configuration that won, trained on all that may be trained on, and judged for good.

    train + validation ──each seed──▶ models ──test, once──▶ Refit: means and intervals
                                        └── the median one ──▶ exported folder

The test split is not looked at before the training of all seeds has ended. A refit that was killed
goes on where it was when it is asked for again.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from supermax.errors import UserError
from supermax.files import make_private, open_private
from supermax.training.checkpoint import Saver, read_whole, write_whole
from supermax.training.config import Config
from supermax.training.counts import counts_of
from supermax.training.data.examples import Corpus, Example
from supermax.training.data.redsm5 import is_clinical
from supermax.training.data.splits import Splits, shared_texts, split
from supermax.training.evaluate import Evaluation, evaluate, evaluate_model
from supermax.training.export import check_free, export
from supermax.training.intervals import FEWEST_GROUPS, Estimate, estimates
from supermax.training.loop import SAVE_EVERY, train_blind
from supermax.training.metrics import check_metric
from supermax.training.pace import Pace
from supermax.training.prepare import (
    DEFAULT_METRIC,
    Data,
    Prepared,
    encoders_of,
    prepare,
    tokenise,
)
from supermax.training.sources import weights_mark
from supermax.training.steps import Execution
from supermax.words import counted

HELD = 0.1
"""Share of the groups that are kept from training to calibrate on."""
_DONE = "done.pt"
Progress = Callable[[int, int, float], None]
"""Hears of every epoch: seed, epoch, loss."""
Stages = Callable[["Stage"], None]
"""Called when a stage begins, and about once a second while it trains."""
Smaller = Callable[[Exception, Execution], Execution | None]
"""Called with an exception and how it was trained; returns how to go on where memory ran out."""
T = TypeVar("T")


@dataclass(frozen=True)
class Stage:
    """Progress of a refit."""

    name: Literal["data", "prepare", "train", "test", "export"]
    seed: int | None = None
    epoch: float = 0.0
    """Epochs that are trained, with the share of the current one."""
    epochs: int = 0
    samples_per_second: float | None = None


@dataclass(frozen=True)
class Run:
    """One seed's model on the test split."""

    seed: int
    metrics: dict[str, float]
    threshold: float | None
    counts: dict[str, Any] = field(default_factory=dict)
    """As counts_of returns them."""


@dataclass(frozen=True)
class Refit:
    objective: str
    metrics: dict[str, Estimate]
    runs: tuple[Run, ...]
    chosen: int
    """The seed that is the median by the objective; of two middle ones the worse."""
    folder: Path | None
    """Where its model was exported to."""
    cautions: tuple[str, ...] = ()
    """Reasons why the metrics are less reliable than they look."""


def refit(
    config: Config,
    splits: Splits,
    *,
    seeds: Sequence[int],
    cache: Path,
    execution: Execution = Execution(),  # noqa: B008 (frozen)
    epochs: int | None = None,
    objective: str | None = None,
    folder: str | Path | None = None,
    progress: Progress | None = None,
    save_every: float = SAVE_EVERY,
    smaller: Smaller = lambda *_: None,
    stages: Stages = lambda _: None,
    columns: Mapping[str, str] | None = None,
) -> Refit:
    """Train with each seed and export the median model to `folder`.

    `epochs` is the best epoch of the search: training ends after it, at the point of the learning
    rate's schedule where the search found the weights best. There is no early stopping, as
    nothing is left to measure on. Where memory runs out, training goes on from its last state with
    the execution that `smaller` returns; None raises what was raised. `columns` are those of the
    table that the data is from, by their roles: the exported model remembers them.
    """
    objective = objective or DEFAULT_METRIC[config.agent]
    classes = len(splits.train.label_names) or 2
    higher = check_metric(objective, config.agent, classes).higher
    epochs = config.train.epochs if epochs is None else epochs
    _check(config, splits, seeds, epochs)
    if folder is not None:
        folder = Path(folder).expanduser()
        check_free(folder)
    facts = [config.model_dump(mode="json"), _data(splits), epochs, execution.precision]
    facts += [weights_mark(source) for source in encoders_of(config)]
    with _kept(cache, facts, seeds) as kept:
        work = _Work(config, splits, epochs, objective, cache, execution, kept, smaller, stages)
        thresholds = {
            seed: work.within_memory(partial(_trained, work, seed, progress, save_every))
            for seed in seeds
        }
        prepared, data, judged = work.within_memory(partial(_tested, work, thresholds))
        runs = tuple(run for run, _ in judged)
        found = estimates(data.examples, [evaluation for _, evaluation in judged])
        median = runs[_median([run.metrics[objective] for run in runs], higher)]
        said = cautions(data.examples, splits)
        if folder is not None:
            stages(Stage("export", median.seed))
            _export(folder, work, prepared, median, found, said, columns or {})
    return Refit(objective, found, runs, median.seed, folder, said)


def cautions(judged: Sequence[Example], splits: Splits) -> tuple[str, ...]:
    """Return reasons why metrics on these examples of the test split are less reliable than they
    look."""
    said = []
    groups = len({example.group for example in judged})
    if groups < FEWEST_GROUPS:
        said.append(
            f"The test split has {counted(groups, 'group', 'groups')} of examples. Intervals need "
            f"at least {FEWEST_GROUPS}, so there are none."
        )
    if shared := shared_texts(splits)["test"]:
        texts = counted(shared, "text", "texts")
        stand = "stands" if shared == 1 else "stand"
        said.append(
            f"{texts} of the test split also {stand} in train or validation (letter case and "
            f"white space aside), so metrics on it are optimistic."
        )
    return tuple(said)


@contextlib.contextmanager
def _kept(cache: Path, facts: list[Any], seeds: Sequence[int]) -> Iterator[Path]:
    """The folder of refits like this, where it finds what a killed one has left."""
    name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache / "refits" / name
    make_private(folder)
    with open_private(folder.with_suffix(".lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError("The same refit is already running; wait for its end.") from None
        yield folder
        for seed in seeds:
            shutil.rmtree(folder / str(seed))
        with contextlib.suppress(OSError):  # the seeds of another one are still there
            folder.rmdir()


def _data(splits: Splits) -> str:
    parts = (splits.train, splits.validation, splits.test)
    return "-".join(part.fingerprint for part in parts)


@dataclass
class _Work:
    """What every seed is trained with."""

    config: Config
    splits: Splits
    epochs: int
    objective: str
    cache: Path
    execution: Execution
    kept: Path
    """Where weights wait until the test split is looked at: all may not fit in memory."""
    smaller: Smaller
    stages: Stages

    def within_memory(self, do: Callable[[], T]) -> T:
        """Do it, with a smaller execution each time that memory runs out."""
        while True:
            try:
                return do()
            except Exception as error:
                if (less := self.smaller(error, self.execution)) is None:
                    raise
            self.execution = less
            gc.collect()  # the model of the attempt, whose frames the exception held
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.empty_cache()

    def seeded(self, seed: int) -> Config:
        train = self.config.train.model_copy(update={"seed": seed})
        return self.config.model_copy(update={"train": train})

    def prepared(self, seed: int) -> Prepared:
        return prepare(
            self.seeded(seed),
            *shared_out(self.config, self.splits),
            cache=self.cache,
            execution=self.execution,
            objective=self.objective,
        )

    def weights(self, seed: int) -> Any:
        return torch.load(self.place(seed) / _DONE, weights_only=True)["weights"]

    def place(self, seed: int) -> Path:
        return self.kept / str(seed)


def _trained(work: _Work, seed: int, progress: Progress | None, save_every: float) -> float | None:
    """Train with a seed and keep the weights; gives the threshold of the policy "calibrated"."""
    place = work.place(seed)
    make_private(place)
    done = read_whole(place / _DONE)
    if done is None:
        work.stages(Stage("prepare", seed, epochs=work.epochs))
        prepared = work.prepared(seed)
        told = None if progress is None else partial(progress, seed)
        pace = Pace(partial(_train_stage, work, seed))
        _train_stage(work, seed, epoch=0.0, samples_per_second=None)
        weights = train_blind(prepared, work.epochs, told, place, save_every=save_every, pace=pace)
        threshold = evaluate(prepared).threshold if _calibrates(work.config) else None
        done = {"weights": weights, "threshold": threshold}
        write_whole(place / _DONE, done)
        Saver(place).clear()
    found: float | None = done["threshold"]
    return found


def _train_stage(
    work: _Work, seed: int, *, epoch: float, samples_per_second: float | None
) -> None:
    work.stages(Stage("train", seed, epoch, work.epochs, samples_per_second))


def _tested(
    work: _Work, thresholds: Mapping[int, float | None]
) -> tuple[Prepared, Data, list[tuple[Run, Evaluation]]]:
    """Evaluate the models of all seeds on the test split."""
    prepared = work.prepared(next(iter(thresholds)))
    data = tokenise(
        work.config, work.splits.test, prepared.sources, prepared.tokenizers, work.cache
    )
    return prepared, data, [_judged(work, prepared, data, *each) for each in thresholds.items()]


def _judged(
    work: _Work, prepared: Prepared, test: Data, seed: int, threshold: float | None
) -> tuple[Run, Evaluation]:
    """What the model of a seed makes of the test split."""
    work.stages(Stage("test", seed))
    model, pads = prepared.model, prepared.pads
    model.load_state_dict(work.weights(seed))
    evaluation = evaluate_model(model, work.config, test, pads, work.execution, threshold)
    counts = counts_of(test.examples, evaluation)
    return Run(seed, evaluation.metrics, evaluation.threshold, counts), evaluation


def _check(config: Config, splits: Splits, seeds: Sequence[int], epochs: int) -> None:
    """All that can be known to be wrong before hours of training."""
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise UserError("A refit needs one seed or more, none below 0 and no two the same.")
    if not 1 <= epochs <= config.train.epochs:
        raise UserError(
            f"A refit of {epochs} epochs is not possible: the configuration has "
            f"{config.train.epochs}, and its learning rates are for no more."
        )
    test = splits.test
    needs_classes, needs_spans = config.agent != "evidence", config.agent != "criteria"
    if (needs_classes and not test.classes) or (needs_spans and not test.spans):
        raise UserError(
            f"The test split has nothing to judge the agent '{config.agent}' by: split the data "
            "with a share for test."
        )


def shared_out(config: Config, splits: Splits) -> tuple[Corpus, Corpus]:
    """What is learnt from, and what is held out to calibrate on, if the policy asks for that.

    A model's margins on what it was trained on are larger than on what it has not seen, so a
    threshold from there would answer too often; and margins differ between models, so that one
    from the search would not fit. Hence a few groups are kept from training.
    """
    first, other = splits.train, splits.validation
    classes, spans = first.classes + other.classes, first.spans + other.spans
    whole = Corpus(first.name, first.label_names, classes, spans, first.skipped)
    if not _calibrates(config):
        return whole, whole  # the second is not looked at, and its tokens are the first's
    parts = split(whole, validation=HELD, test=0)
    return parts.train, parts.validation


def _calibrates(config: Config) -> bool:
    return config.no_answer.policy == "calibrated" and config.agent != "criteria"


def _median(values: Sequence[float], higher: bool) -> int:
    """Which value is in the middle; one that is not defined is the worst of all."""
    signed = np.array(values) * (1 if higher else -1)
    order = np.argsort(np.where(np.isnan(signed), -np.inf, signed), kind="stable")
    return int(order[(len(order) - 1) // 2])


def _export(
    folder: Path,
    work: _Work,
    prepared: Prepared,
    run: Run,
    found: dict[str, Estimate],
    said: tuple[str, ...],
    columns: Mapping[str, str],
) -> None:
    export(
        folder,
        replace(prepared, config=work.seeded(run.seed)),
        work.weights(run.seed),
        label_names=work.splits.train.label_names,
        threshold=run.threshold,
        metrics=run.metrics,
        fingerprint=_data(work.splits),
        untrained=not all(source.trained for source in prepared.sources),
        estimates=found,
        cautions=said,
        epochs=work.epochs,
        clinical=is_clinical(work.splits.train),
        columns=columns,
    )
