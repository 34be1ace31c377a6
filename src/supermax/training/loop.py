"""The training loop: one, visible, the same for every agent and every way to take a step.

    Prepared (model, data, step) ──epochs──▶ Reporter ──▶ Result
            Saver ◀── state after an epoch, or when the run is stopping

A trial that goes on from a saved state gives, on a CPU, the same bits as one that was never
interrupted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch

from supermax.training.batches import order
from supermax.training.checkpoint import (
    Saver,
    copied,
    on_cpu,
    random_states,
    restore_random,
)
from supermax.training.evaluate import Evaluation, evaluate
from supermax.training.pace import Pace
from supermax.training.prepare import Prepared
from supermax.training.ways import Epoch

SAVE_EVERY = 60.0
"""Seconds between two saved states; the first epoch's end after that."""


class Reporter(Protocol):
    """What a trial is told about its training, and says about its going on."""

    def report(self, value: float, epoch: int) -> None:
        """An epoch's value. May not return when the trial is to stop."""

    def note(self, *, epoch: float, samples_per_second: float | None) -> None:
        """How many epochs are done, with the share of the current one, and how fast it goes.
        For people who watch; comes about once a second and at the end of an epoch."""

    def should_prune(self) -> bool: ...

    def prune(self) -> NoReturn: ...

    @property
    def stop_requested(self) -> bool: ...

    def stop(self) -> NoReturn:
        """The state is saved: end this attempt."""


@dataclass
class State:
    """Where the loop is, and what it has seen."""

    epoch: int = 0
    update: int = 0
    """Updates of the current epoch that are done."""
    loss: float = 0.0
    """Sum of their losses."""
    best: float = -math.inf
    best_epoch: int = -1
    """Among those with a finite value; -1: none has one yet."""
    worse: int = 0
    """Epochs since the best one, or since the first where none has a value."""
    curve: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Result:
    value: float
    """The objective at the best epoch; NaN where it is finite at none."""
    metrics: dict[str, float]
    best_epoch: int
    """From 1; 0: none has a finite value, and the weights are the last ones."""
    epochs: int
    curve: list[dict[str, float]]
    evaluation: Evaluation
    weights: dict[str, torch.Tensor]
    seconds: float
    samples_per_second: float | None
    """Of this attempt, while it trained; without what recording steps took."""


def train(
    prepared: Prepared,
    reporter: Reporter,
    folder: Path | None = None,
    *,
    save_every: float = SAVE_EVERY,
    clock: Callable[[], float] = time.monotonic,
) -> Result:
    """Train to the end, or until the reporter prunes or stops it. With a folder, states are saved
    there and training goes on from one that is found."""
    started, config = clock(), prepared.config
    states = _States(prepared, folder, save_every, clock)
    state, best = states.found()
    on_host = prepared.execution.best_on_host
    best = best or copied(prepared.model.state_dict(), {}, on_host)  # room for them at once
    best_evaluation: Evaluation | None = None  # a state that was found does not have it
    pace = Pace(reporter.note)
    while state.epoch < config.train.epochs and not _patience_over(state, config.train.patience):
        _epoch(prepared, state, best, reporter, states, pace)
        evaluation = evaluate(prepared)
        value = evaluation.metrics[prepared.objective] * prepared.sign
        state.curve.append(
            {"epoch": state.epoch + 1, "train_loss": state.loss / max(1, state.update)}
            | evaluation.metrics
        )
        if math.isfinite(value) and value > state.best + config.train.min_delta:
            state.best, state.best_epoch, state.worse = value, state.epoch, 0
            best = copied(prepared.model.state_dict(), best, on_host)
            best_evaluation = evaluation
        else:
            state.worse += state.epoch > 0  # the first is not worse than any
            if state.best_epoch < 0:
                best_evaluation = evaluation  # that of the last weights, until one has a value
        state.epoch, state.update, state.loss = state.epoch + 1, 0, 0.0
        stopping = reporter.stop_requested
        if stopping or states.due:
            states.save(state, best)
        if stopping:
            states.wait()
        try:
            reporter.report(evaluation.metrics[prepared.objective], state.epoch)
            pruned = reporter.should_prune()
        except BaseException:
            if reporter.stop_requested and not stopping:  # it came with the answer
                states.save(state, best)
                states.wait()
            raise
        if pruned:
            reporter.prune()
    if state.best_epoch < 0:  # the last weights say so too: their value is NaN
        best = prepared.model.state_dict()
    prepared.model.load_state_dict(best)
    final = best_evaluation or evaluate(prepared)
    states.wait()
    return Result(
        value=final.metrics[prepared.objective],
        metrics=final.metrics,
        best_epoch=state.best_epoch + 1,
        epochs=state.epoch,
        curve=state.curve,
        evaluation=final,
        weights=on_cpu(best),
        seconds=clock() - started,
        samples_per_second=pace.overall(prepared.way.getting_ready),
    )


def train_blind(
    prepared: Prepared,
    epochs: int,
    told: Callable[[int, float], None] | None = None,
    folder: Path | None = None,
    *,
    save_every: float = SAVE_EVERY,
    clock: Callable[[], float] = time.monotonic,
    pace: Pace | None = None,
) -> dict[str, torch.Tensor]:
    """So many epochs in which nothing is measured but the loss, for data without a validation
    split. Gives the last weights; `told` hears of every epoch and its loss. With a folder it goes
    on from a state that is found there."""
    states = _States(prepared, folder, save_every, clock)
    state, _ = states.found()
    try:
        while state.epoch < epochs:
            _epoch(prepared, state, {}, None, None, pace)
            loss = state.loss / max(1, state.update)
            state.epoch, state.update, state.loss = state.epoch + 1, 0, 0.0
            if states.due:
                states.save(state, {})
            if told is not None:
                told(state.epoch, loss)
    finally:
        states.wait()  # who goes on from here, after an error, writes to the same file
    weights: dict[str, torch.Tensor] = on_cpu(prepared.model.state_dict())
    return weights


def _patience_over(state: State, patience: int | None) -> bool:
    return patience is not None and state.worse >= patience


def _epoch(
    prepared: Prepared,
    state: State,
    best: dict[str, torch.Tensor],
    reporter: Reporter | None,
    states: _States | None,
    pace: Pace | None = None,
) -> None:
    """The rest of an epoch, from the update that comes next."""
    prepared.model.train()
    data, size = prepared.train, prepared.config.train.effective_batch
    batches = order(data.lengths, size, prepared.seed, state.epoch)
    before = state.epoch * len(batches)
    factors = [prepared.schedule(before + update) for update in range(len(batches))]
    prepared.way.begin(Epoch(batches, factors), state.update)
    if pace is not None:
        pace.begin()
    for indices in batches[state.update :]:
        prepared.way.take(state.update)
        state.update += 1
        if pace is not None:
            pace.step(len(indices), state.epoch + state.update / len(batches))
        if states is None or reporter is None or not states.kept:
            continue
        if reporter.stop_requested and state.update < len(batches):
            state.loss += prepared.way.loss()
            states.save(state, best)
            states.wait()
            reporter.stop()
    state.loss += prepared.way.loss()  # the only synchronisation of the epoch
    if pace is not None:
        pace.end(float(state.epoch + 1))


class _States:
    """States that a training can go on from, saved now and then beside it; none without a
    folder."""

    def __init__(
        self, prepared: Prepared, folder: Path | None, every: float, clock: Callable[[], float]
    ) -> None:
        self._prepared = prepared
        self._saver = Saver(folder) if folder is not None else None
        self._every, self._clock = every, clock
        self._last = clock()

    @property
    def kept(self) -> bool:
        return self._saver is not None

    @property
    def due(self) -> bool:
        return self.kept and self._clock() - self._last >= self._every

    def found(self) -> tuple[State, dict[str, torch.Tensor]]:
        """The state that was saved, with the best weights; a new one where there is none, or none
        that this optimizer can go on from."""
        saved = self._saver.load() if self._saver is not None else None
        if saved is None or not self._prepared.step.can_load(saved["step"]):
            return State(), {}
        return _restore(self._prepared, saved)

    def save(self, state: State, best: dict[str, torch.Tensor]) -> None:
        if self._saver is not None:
            seen = best if state.best_epoch >= 0 else {}
            self._saver.save(_snapshot(self._prepared, state, seen))
            self._last = self._clock()

    def wait(self) -> None:
        if self._saver is not None:
            self._saver.wait()


def _snapshot(prepared: Prepared, state: State, best: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {
        "loop": asdict(state),
        "model": prepared.model.state_dict(),
        "step": prepared.step.state(),
        "best": best,
        "random": random_states(),
        "threads": torch.get_num_threads(),
    }


def _restore(prepared: Prepared, saved: dict[str, Any]) -> tuple[State, dict[str, torch.Tensor]]:
    prepared.model.load_state_dict(saved["model"])
    prepared.step.load_state(saved["step"])
    restore_random(saved["random"])
    if prepared.execution.device == "cpu":  # sums over other numbers of threads differ in bits
        torch.set_num_threads(saved["threads"])
    device = "cpu" if prepared.execution.best_on_host else prepared.execution.device
    state = State(**saved["loop"])
    if not math.isfinite(state.best):  # earlier versions took the first epoch, whatever its value
        return replace(state, best=-math.inf, best_epoch=-1), {}
    return state, {k: v.to(device) for k, v in saved["best"].items()}
