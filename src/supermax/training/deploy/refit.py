"""Refit: the best configuration trained on train and validation, and evaluated on test.

    train + validation ──each seed──▶ models ──test, once──▶ Refit: means and intervals
                                        └── the median model ──▶ exported folder

The test split is not used before all seeds are trained. A refit that was killed resumes when it is
called again.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numpy as np
import torch

from supermax._util.files import make_private, open_private
from supermax._util.text import counted
from supermax.agents import agent_of
from supermax.errors import UserError
from supermax.training.checkpoint import Saver, read_checkpoint, write_checkpoint
from supermax.training.config import (
    AnyDecoding,
    Config,
    chooses_decoding,
    stored_decoding,
    with_decoding,
)
from supermax.training.data.examples import Corpus, Example
from supermax.training.data.redsm5 import is_clinical
from supermax.training.data.splits import Splits, shared_texts, split
from supermax.training.data.tokenized_split import TokenizedSplit
from supermax.training.deploy.adapter import check_adapter_export
from supermax.training.deploy.export import export
from supermax.training.deploy.exported import Description, check_free
from supermax.training.eval.counts import Counts, counts_of
from supermax.training.eval.evaluate import Evaluation, evaluate_model
from supermax.training.eval.intervals import FEWEST_GROUPS, Estimate, estimates
from supermax.training.eval.metrics import check_metric
from supermax.training.loop import SAVE_EVERY, train_without_validation
from supermax.training.models.sources import weights_mark
from supermax.training.prepare import (
    Prepared,
    encoders_of,
    prepare,
    tokenize,
)
from supermax.training.steps.execution import Execution
from supermax.training.steps.throughput import Throughput

CALIBRATION_SHARE = 0.1
"""Share of the groups that are held out of training to choose decoding settings on."""
_DONE = "done.pt"
Progress = Callable[[int, int, float], None]
"""Called after every epoch with seed, epoch (from 1) and mean loss."""
Stages = Callable[["Stage"], None]
"""Called when a stage begins, and about once a second while it trains."""
Smaller = Callable[[Exception, Execution], Execution | None]
"""Called with an exception and its execution; returns one that needs less memory to retry with, or
None to raise the exception."""
T = TypeVar("T")


@dataclass(frozen=True)
class Stage:
    """Progress of a refit."""

    name: Literal["data", "prepare", "train", "test", "export"]
    seed: int | None = None
    epoch: float = 0.0
    """Trained epochs, including the fraction of the current one."""
    epochs: int = 0
    samples_per_second: float | None = None


@dataclass(frozen=True)
class RefitRun:
    """Result of one seed's model on the test split."""

    seed: int
    metrics: dict[str, float]
    decoding: AnyDecoding | None
    """Settings that decode spans or sets of labels; None: the model has no head for them."""
    counts: Counts = field(default_factory=Counts)
    """Confusion matrix and span outcomes, as `counts_of` returns them."""

    @property
    def threshold(self) -> float | None:
        """Threshold of the margin above which an answer is given; None if none was fitted."""
        return None if self.decoding is None else self.decoding.threshold


@dataclass(frozen=True)
class Refit:
    """Result of a refit over all of its seeds."""

    objective: str
    metrics: dict[str, Estimate]
    runs: tuple[RefitRun, ...]
    chosen: int
    """Seed whose model is the median by the objective; of two middle ones the worse."""
    folder: Path | None
    """Folder with the exported model of that seed; None: nothing was exported."""
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
    columns: Mapping[str, str | list[str]] | None = None,
    adapter: bool = False,
) -> Refit:
    """Train with each seed, evaluate on the test split, export the median model to `folder`.

    `epochs` is the best epoch of the search. Training ends after it, so at the same point of the
    learning rate schedule; None trains all epochs. There is no early stopping, as no validation
    split is left. When memory runs out, training resumes from its last checkpoint with the
    execution that `smaller` returns. `columns` maps roles to the columns of the table that the
    data comes from; the exported model stores them. With `adapter`, only the adapter is exported.
    """
    objective = objective or agent_of(config.agent).metric
    classes = len(splits.train.label_names) or 2
    higher = check_metric(objective, config.agent, classes).higher
    epochs = config.train.epochs if epochs is None else epochs
    _check(config, splits, seeds, epochs)
    if adapter:
        check_adapter_export(config, encoders_of(config))
    if folder is not None:
        folder = Path(folder).expanduser()
        check_free(folder)
    marks = [weights_mark(source) for source in encoders_of(config)]
    configuration = config.model_dump(mode="json")
    facts = [configuration, _fingerprint(splits), epochs, execution.precision, *marks]
    with _resume_folder(cache, facts, seeds) as resume:
        work = _Work(config, splits, epochs, objective, cache, execution, resume, smaller, stages)
        decodings = {
            seed: work.within_memory(partial(_train_seed, work, seed, progress, save_every))
            for seed in seeds
        }
        prepared, data, tested = work.within_memory(partial(_test_seeds, work, decodings))
        runs = tuple(run for run, _ in tested)
        metrics = estimates(data.examples, [evaluation for _, evaluation in tested])
        median = runs[_median([run.metrics[objective] for run in runs], higher)]
        notes = cautions(data.examples, splits)
        result = Refit(objective, metrics, runs, median.seed, folder, notes)
        if folder is not None:
            stages(Stage("export", median.seed))
            trained = replace(prepared, config=work.decoded(median.seed, median.decoding))
            description = _description(result, median, splits, epochs, columns or {})
            export(folder, trained, work.weights(median.seed), description, adapter=adapter)
    return result


def cautions(examples: Sequence[Example], splits: Splits) -> tuple[str, ...]:
    """Return reasons why metrics on these examples of the test split are less reliable than they
    look."""
    reasons = []
    groups = len({example.group for example in examples})
    if groups < FEWEST_GROUPS:
        reasons.append(
            f"The test split has {counted(groups, 'group')} of examples. Intervals need "
            f"at least {FEWEST_GROUPS}, so there are none."
        )
    if shared := shared_texts(splits)["test"]:
        texts = counted(shared, "text")
        occur = "occurs" if shared == 1 else "occur"
        reasons.append(
            f"{texts} of the test split also {occur} in train or validation (ignoring letter case "
            f"and white space), so metrics on it are optimistic."
        )
    return tuple(reasons)


@contextlib.contextmanager
def _resume_folder(cache: Path, facts: Sequence[object], seeds: Sequence[int]) -> Iterator[Path]:
    """Lock and yield the folder of refits with these facts, where a killed one left its files.

    The files of the seeds are removed at the end, unless an exception is raised.
    """
    name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache / "refits" / name
    make_private(folder)
    with open_private(folder.with_suffix(".lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError("The same refit is already running: wait until it ends.") from None
        yield folder
        for seed in seeds:
            shutil.rmtree(folder / str(seed))
        with contextlib.suppress(OSError):  # files of other seeds are still there
            folder.rmdir()


def _fingerprint(splits: Splits) -> str:
    return "-".join(part.fingerprint for part in splits.parts)


def _description(
    result: Refit,
    run: RefitRun,
    splits: Splits,
    epochs: int,
    columns: Mapping[str, str | list[str]],
) -> Description:
    return Description(
        splits.train.label_names,
        run.threshold,
        run.metrics,
        _fingerprint(splits),
        estimates=result.metrics,
        cautions=result.cautions,
        epochs=epochs,
        clinical=is_clinical(splits.train),
        columns=columns,
    )


@dataclass
class _Work:
    """Settings that all seeds share."""

    config: Config
    splits: Splits
    epochs: int
    objective: str
    cache: Path
    execution: Execution
    resume: Path
    """Folder for the weights of all seeds until they are tested: they may not fit in memory."""
    smaller: Smaller
    stages: Stages

    def within_memory(self, action: Callable[[], T]) -> T:
        """Return the action's result; retry with a smaller execution when memory runs out."""
        while True:
            try:
                return action()
            except Exception as error:
                if (less := self.smaller(error, self.execution)) is None:
                    raise
            self.execution = less
            gc.collect()  # frees the failed attempt's model, which the traceback referenced
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.empty_cache()

    def seeded(self, seed: int) -> Config:
        train = self.config.train.model_copy(update={"seed": seed})
        return self.config.model_copy(update={"train": train})

    def decoded(self, seed: int, decoding: AnyDecoding | None) -> Config:
        """Return the configuration of a seed whose decoding settings are all given."""
        config = self.seeded(seed)
        return config if decoding is None else with_decoding(config, decoding)

    def prepared(self, seed: int) -> Prepared:
        return prepare(
            self.seeded(seed),
            *refit_splits(self.config, self.splits),
            cache=self.cache,
            execution=self.execution,
            objective=self.objective,
        )

    def weights(self, seed: int) -> dict[str, torch.Tensor]:
        saved = torch.load(self.seed_folder(seed) / _DONE, weights_only=True)
        return cast(dict[str, torch.Tensor], saved["weights"])

    def seed_folder(self, seed: int) -> Path:
        return self.resume / str(seed)


def _train_seed(
    work: _Work, seed: int, progress: Progress | None, save_every: float
) -> AnyDecoding | None:
    """Train with a seed and save the weights.

    Returns the decoding settings that are chosen on the held-out groups; None if there is nothing
    to choose.
    """
    folder = work.seed_folder(seed)
    make_private(folder)
    done = read_checkpoint(folder / _DONE)
    if done is None or "decoding" not in done:  # of an earlier version: it chose less
        work.stages(Stage("prepare", seed, epochs=work.epochs))
        prepared = work.prepared(seed)
        on_epoch = None if progress is None else partial(progress, seed)
        throughput = Throughput(partial(_train_stage, work, seed))
        _train_stage(work, seed, epoch=0.0, samples_per_second=None)
        weights = train_without_validation(
            prepared, work.epochs, on_epoch, folder, save_every=save_every, throughput=throughput
        )
        chosen = prepared.evaluate().decoding if chooses_decoding(work.config) else None
        done = {"weights": weights, "decoding": None if chosen is None else asdict(chosen)}
        write_checkpoint(folder / _DONE, done)
        Saver(folder).clear()
    stored: dict[str, Any] | None = done["decoding"]
    return None if stored is None else stored_decoding(stored)


def _train_stage(
    work: _Work, seed: int, *, epoch: float, samples_per_second: float | None
) -> None:
    work.stages(Stage("train", seed, epoch, work.epochs, samples_per_second))


def _test_seeds(
    work: _Work, decodings: Mapping[int, AnyDecoding | None]
) -> tuple[Prepared, TokenizedSplit, list[tuple[RefitRun, Evaluation]]]:
    """Evaluate the models of all seeds on the test split."""
    prepared = work.prepared(next(iter(decodings)))
    data = tokenize(
        work.config, work.splits.test, prepared.sources, prepared.tokenizers, work.cache
    )
    return prepared, data, [_test_seed(work, prepared, data, *each) for each in decodings.items()]


def _test_seed(
    work: _Work, prepared: Prepared, test: TokenizedSplit, seed: int, decoding: AnyDecoding | None
) -> tuple[RefitRun, Evaluation]:
    """Evaluate the model of a seed on the test split."""
    work.stages(Stage("test", seed))
    model, pads = prepared.model, prepared.pads
    model.load_state_dict(work.weights(seed))
    threshold = None if decoding is None else decoding.threshold
    config = work.decoded(seed, decoding)
    evaluation = evaluate_model(model, config, test, pads, work.execution, threshold)
    counts = counts_of(test.examples, evaluation)
    return RefitRun(seed, evaluation.metrics, evaluation.decoding, counts), evaluation


def _check(config: Config, splits: Splits, seeds: Sequence[int], epochs: int) -> None:
    """Raise UserError for mistakes that can be found before hours of training."""
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise UserError("A refit needs at least one seed, all different and none below 0.")
    if not 1 <= epochs <= config.train.epochs:
        raise UserError(
            f"A refit of {epochs} epochs is not possible: the learning rate schedule of the "
            f"configuration has {config.train.epochs}. Choose 1 to {config.train.epochs}."
        )
    if not all(map(splits.test.of, agent_of(config.agent).targets)):
        raise UserError(
            f"The test split has no rows to evaluate the agent '{config.agent}' on: split the "
            "data with a share for test."
        )


def refit_splits(config: Config, splits: Splits) -> tuple[Corpus, Corpus]:
    """Return the corpus to train on and the one to choose decoding settings on.

    A model's margins are larger on its training data than on unseen data, so a threshold fitted
    there would reject too few answers; and margins differ between models, so the threshold of
    the search does not fit. Hence a few groups are held out of training. If the configuration
    leaves nothing open, both corpora are the same, and the second is not used.
    """
    whole = splits.seen
    if not chooses_decoding(config):
        return whole, whole  # tokenized once
    parts = split(whole, validation=CALIBRATION_SHARE, test=0)
    return parts.train, parts.validation


def _median(values: Sequence[float], higher: bool) -> int:
    """Return the index of the median; NaN counts as the worst value."""
    signed = np.array(values) * (1 if higher else -1)
    order = np.argsort(np.where(np.isnan(signed), -np.inf, signed), kind="stable")
    return int(order[(len(order) - 1) // 2])
