"""Training loop: the same for every agent and every step executor.

    Prepared (model, data, step) ──epochs──▶ Reporter ──▶ Result
            Saver ◀── checkpoint after an epoch, or when the run is stopping

On a CPU, a trial that resumes from a checkpoint is bitwise identical to one that was never
interrupted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NoReturn, Protocol, runtime_checkable

import torch

from supermax.training.checkpoint import (
    Checkpoint,
    Saver,
    copied,
    random_states,
    restore_random,
)
from supermax.training.eval.evaluate import Evaluation
from supermax.training.models.sources import weights_mark
from supermax.training.prepare import Prepared
from supermax.training.steps.batches import order
from supermax.training.steps.executors import EpochUpdates
from supermax.training.steps.throughput import Throughput

SAVE_EVERY = 60.0
"""Seconds between two checkpoints, each written at the first end of an epoch after them."""


@runtime_checkable
class MetricsReceiver(Protocol):
    """Reporter that wants all metrics of an epoch, before its report."""

    def measured(self, metrics: Mapping[str, float]) -> None: ...


class Reporter(Protocol):
    """Receiver of a training's progress, which also decides whether it goes on."""

    def report(self, value: float, epoch: int) -> None:
        """Report the objective's value after an epoch (from 1). Raises if the trial must stop."""

    def note(self, *, epoch: float, samples_per_second: float | None) -> None:
        """Show progress, about once a second and at the end of an epoch.

        `epoch` is the number of trained epochs, including the fraction of the current one.
        """

    def should_prune(self) -> bool: ...

    def prune(self) -> NoReturn: ...

    @property
    def stop_requested(self) -> bool: ...

    def stop(self) -> NoReturn:
        """End this attempt. Called once the checkpoint is on disk."""


@dataclass
class State:
    """Progress of the loop, as a checkpoint stores it."""

    epoch: int = 0
    update: int = 0
    """Optimizer updates done in the current epoch."""
    loss: float = 0.0
    """Sum of the losses of these updates."""
    best: float = -math.inf
    """Best value so far, negated if lower is better."""
    best_epoch: int = -1
    """Epoch of the best finite value, from 0; -1: no value was finite yet."""
    worse: int = 0
    """Epochs since the best one, or since the first one if no value was finite."""
    curve: list[dict[str, float]] = field(default_factory=list)
    """Training loss and validation metrics of each epoch."""


@dataclass(frozen=True)
class Result:
    """Outcome of a training that ran to its end."""

    value: float
    """Objective at the best epoch; NaN if it is finite at none."""
    metrics: dict[str, float]
    best_epoch: int
    """Best epoch, from 1; 0: no value is finite, and the weights are the last ones."""
    epochs: int
    curve: list[dict[str, float]]
    evaluation: Evaluation
    weights: dict[str, torch.Tensor]
    seconds: float
    samples_per_second: float | None
    """Training throughput of this attempt, without the time of CUDA graph capture; None: the
    attempt was too short to measure it."""


def train(
    prepared: Prepared,
    reporter: Reporter,
    folder: Path | None = None,
    *,
    save_every: float = SAVE_EVERY,
    clock: Callable[[], float] = time.monotonic,
) -> Result:
    """Train to the last epoch, or until the reporter prunes or stops the trial.

    Checkpoints are written to `folder`, and training resumes from one that is found there. None:
    no checkpoints.
    """
    started, config = clock(), prepared.config
    checkpoints = _Checkpoints(prepared, folder, save_every, clock)
    state, best = checkpoints.restore()
    on_host = prepared.execution.best_on_host
    # Allocated before the first step, so that a lack of memory for it shows at once.
    best = best or copied(prepared.model.saved_state(), {}, on_host)
    best_evaluation: Evaluation | None = None  # not part of a checkpoint
    throughput = Throughput(reporter.note)
    patience = config.train.patience or math.inf
    while state.epoch < config.train.epochs and state.worse < patience:
        _train_epoch(prepared, state, best, reporter, checkpoints, throughput)
        evaluation = prepared.evaluate()
        if _finish_epoch(prepared, state, evaluation):
            best = copied(prepared.model.saved_state(), best, on_host)
            best_evaluation = evaluation
        elif state.best_epoch < 0:
            best_evaluation = evaluation  # no finite value yet: the last weights count
        _report_epoch(prepared, state, best, evaluation, reporter, checkpoints)
    if state.best_epoch < 0:  # keep the last weights, which belong to the reported NaN
        best = prepared.model.saved_state()
    prepared.model.load_saved(best)
    final = best_evaluation or prepared.evaluate()
    checkpoints.wait()
    return Result(
        value=final.metrics[prepared.objective],
        metrics=final.metrics,
        best_epoch=state.best_epoch + 1,
        epochs=state.epoch,
        curve=state.curve,
        evaluation=final,
        weights=copied(best, {}, on_host=True),
        seconds=clock() - started,
        samples_per_second=throughput.overall(prepared.executor.capture_seconds),
    )


def train_without_validation(
    prepared: Prepared,
    epochs: int,
    on_epoch: Callable[[int, float], None] | None = None,
    folder: Path | None = None,
    *,
    save_every: float = SAVE_EVERY,
    clock: Callable[[], float] = time.monotonic,
    throughput: Throughput | None = None,
) -> dict[str, torch.Tensor]:
    """Train for `epochs` epochs without evaluation and return the last weights, on the CPU.

    `on_epoch` is called with every epoch (from 1) and its mean loss. Checkpoints are written to
    `folder`, and training resumes from one that is found there.
    """
    checkpoints = _Checkpoints(prepared, folder, save_every, clock)
    state, _ = checkpoints.restore()
    throughput = throughput or Throughput(lambda **_: None)
    try:
        while state.epoch < epochs:
            _train_epoch(prepared, state, {}, None, checkpoints, throughput)
            loss = state.loss / max(1, state.update)
            state.epoch, state.update, state.loss = state.epoch + 1, 0, 0.0
            if checkpoints.due:
                checkpoints.save(state, {})
            if on_epoch is not None:
                on_epoch(state.epoch, loss)
    finally:
        checkpoints.wait()  # a retry after an error writes to the same file
    return copied(prepared.model.state_dict(), {}, on_host=True)


def _finish_epoch(prepared: Prepared, state: State, evaluation: Evaluation) -> bool:
    """Add the epoch to the curve and move on to the next; return True if it is the best so far."""
    value = evaluation.metrics[prepared.objective] * prepared.sign
    state.curve.append(
        {"epoch": state.epoch + 1, "train_loss": state.loss / max(1, state.update)}
        | evaluation.metrics
    )
    improved = math.isfinite(value) and value > state.best + prepared.config.train.min_delta
    if improved:
        state.best, state.best_epoch, state.worse = value, state.epoch, 0
    else:
        state.worse += state.epoch > 0  # there is none that the first could be worse than
    state.epoch, state.update, state.loss = state.epoch + 1, 0, 0.0
    return improved


def _report_epoch(
    prepared: Prepared,
    state: State,
    best: dict[str, torch.Tensor],
    evaluation: Evaluation,
    reporter: Reporter,
    checkpoints: _Checkpoints,
) -> None:
    """Save a checkpoint if one is due, then report the epoch and prune if the reporter says so.

    A trial that is stopping has its checkpoint on disk before the reporter can raise.
    """
    stopping = reporter.stop_requested
    if stopping or checkpoints.due:
        checkpoints.save(state, best)
    if stopping:
        checkpoints.wait()
    if isinstance(reporter, MetricsReceiver):
        reporter.measured(evaluation.metrics)
    try:
        reporter.report(evaluation.metrics[prepared.objective], state.epoch)
        pruned = reporter.should_prune()
    except BaseException:
        if reporter.stop_requested and not stopping:  # requested while the report was sent
            checkpoints.save(state, best)
            checkpoints.wait()
        raise
    if pruned:
        reporter.prune()


def _train_epoch(
    prepared: Prepared,
    state: State,
    best: dict[str, torch.Tensor],
    reporter: Reporter | None,
    checkpoints: _Checkpoints,
    throughput: Throughput,
) -> None:
    """Train the rest of the current epoch, from the next update on.

    When the reporter requests a stop, a checkpoint is saved and the attempt ends before the next
    update.
    """
    prepared.model.train()
    data, size = prepared.train, prepared.config.train.effective_batch
    batches = order(data.lengths, size, prepared.seed, state.epoch)
    previous = state.epoch * len(batches)
    factors = [prepared.schedule(previous + update) for update in range(len(batches))]
    prepared.executor.begin(EpochUpdates(batches, factors), state.update)
    throughput.begin()
    for indices in batches[state.update :]:
        prepared.executor.take(state.update)
        state.update += 1
        throughput.step(len(indices), state.epoch + state.update / len(batches))
        if reporter is None or not checkpoints.enabled:
            continue
        if reporter.stop_requested and state.update < len(batches):
            state.loss += prepared.executor.loss()
            checkpoints.save(state, best)
            checkpoints.wait()
            reporter.stop()
    state.loss += prepared.executor.loss()  # the epoch's only CPU–GPU synchronisation
    throughput.end(float(state.epoch + 1))


def _base(prepared: Prepared) -> list[object]:
    """Return marks of the weights that a checkpoint does not hold, since an adapter leaves them
    frozen."""
    return [weights_mark(s) for s in prepared.sources] if prepared.model.has_adapter else []


class _Checkpoints:
    """Checkpoints of a training, written in the background; does nothing without a folder."""

    def __init__(
        self, prepared: Prepared, folder: Path | None, every: float, clock: Callable[[], float]
    ) -> None:
        self._prepared = prepared
        self._saver = Saver(folder) if folder is not None else None
        self._every, self._clock = every, clock
        self._last = clock()

    @property
    def enabled(self) -> bool:
        return self._saver is not None

    @property
    def due(self) -> bool:
        return self.enabled and self._clock() - self._last >= self._every

    def restore(self) -> tuple[State, dict[str, torch.Tensor]]:
        """Restore the checkpoint and return its state with the best weights.

        Returns a new state and {} if there is no checkpoint, or none that the optimizer can load.
        """
        prepared = self._prepared
        saved = self._saver.load() if self._saver is not None else None
        if saved is None or not prepared.step.can_load(saved["step"]):
            return State(), {}
        if saved.get("base", []) != _base(prepared):  # the frozen weights have changed since
            return State(), {}
        prepared.model.load_saved(saved["model"])
        prepared.step.load_state(saved["step"])
        restore_random(saved["random"])
        if prepared.execution.device == "cpu":  # the order of sums depends on the threads
            torch.set_num_threads(saved["threads"])
        state = State(**saved["loop"])
        if not math.isfinite(state.best):  # earlier versions took the first epoch, NaN or not
            return replace(state, best=-math.inf, best_epoch=-1), {}
        device = "cpu" if prepared.execution.best_on_host else prepared.execution.device
        return state, {k: v.to(device) for k, v in saved["best"].items()}

    def save(self, state: State, best: dict[str, torch.Tensor]) -> None:
        """Start to write a checkpoint. The best weights are part of it once a value was finite."""
        if self._saver is not None:
            self._saver.save(
                Checkpoint(
                    loop=asdict(state),
                    model=self._prepared.model.saved_state(),
                    base=_base(self._prepared),
                    step=self._prepared.step.state(),
                    best=best if state.best_epoch >= 0 else {},
                    random=random_states(),
                    threads=torch.get_num_threads(),
                )
            )
            self._last = self._clock()

    def wait(self) -> None:
        if self._saver is not None:
            self._saver.wait()
