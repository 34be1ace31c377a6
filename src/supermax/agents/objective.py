"""A trial of an agent: its configuration trained in a cell, reported epoch by epoch.

trial ──space.sample()──▶ Config ──prepare()──▶ train() ──▶ values
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import optuna
import torch
from safetensors.torch import save_file

from supermax.agents.calibrating import probed
from supermax.agents.keeping import worth_keeping
from supermax.agents.measures import values_of
from supermax.agents.measuring import measured
from supermax.agents.specs import spec_of
from supermax.engine.remote_trial import TrialInterrupted
from supermax.errors import UserError
from supermax.memory.facts import Spec
from supermax.memory.learning import Book
from supermax.naming import HALF_WRITTEN, RESULT, WEIGHTS
from supermax.space import Space
from supermax.space.presets import encoders_in
from supermax.training.compiling import COMPILER
from supermax.training.config import Config, read_config
from supermax.training.counts import counts_of
from supermax.training.data.examples import Corpus
from supermax.training.encoders import import_model
from supermax.training.limits import hold_to, in_use
from supermax.training.loop import SAVE_EVERY, Result, train
from supermax.training.models import count
from supermax.training.prepare import FIRST, Prepared, prepare
from supermax.training.sources import find
from supermax.training.steps import Execution, best_precision


def preload(*encoders: str) -> None:
    """Import the code of those of these encoders that are here."""
    for name in encoders:
        with contextlib.suppress(UserError):
            import_model(find(name))


@dataclass
class TrialReporter:
    """Optuna's trial, as the training loop sees it."""

    trial: Any
    _last: float = math.nan

    def report(self, value: float, epoch: int) -> None:
        self._last = value
        self.trial.report(value, epoch)

    def note(self, **facts: Any) -> None:
        if (note := getattr(self.trial, "note", None)) is not None:  # Optuna's own has none
            note(**facts, memory=in_use())

    def should_prune(self) -> bool:
        """Ask the pruner. Pruners take NaN for the worst value, and it may still recover."""
        return math.isfinite(self._last) and bool(self.trial.should_prune())

    def prune(self) -> NoReturn:
        raise optuna.TrialPruned

    @property
    def stop_requested(self) -> bool:
        return bool(getattr(self.trial, "stop_requested", False))

    def stop(self) -> NoReturn:
        raise TrialInterrupted


@dataclass(frozen=True)
class AgentObjective:
    """An Optuna objective: train what the trial suggests, and say how good it is."""

    agent: str
    space: Space
    train: Corpus
    validation: Corpus
    cache: Path
    objectives: Sequence[str]
    limits: dict[str, Any]
    """Keys of the configuration's part `train` that are not searched: epochs, patience, …"""
    execution: Execution = field(default_factory=Execution)
    save_every: float = SAVE_EVERY
    book: Book | None = None
    """Where what trials take is noted."""
    top: int | None = None
    """Trials whose weights a Keeper keeps; None: each writes its own."""

    def __call__(self, trial: Any) -> float | tuple[float, ...]:
        config = self.config(self.space.sample(trial))
        plan = getattr(trial, "plan", None) or {}
        execution = planned(here(self.execution), plan)
        hold_to(execution)
        before = in_use()
        reporter = self.reporter(trial)
        reporter.note(encoder=encoders(config), epochs=config.train.epochs)
        probes = probed(config, execution, plan.get("probes", ()))
        prepared = self.prepared(config, execution)
        with measured(prepared, self._spec(prepared), self.book, before, probes) as gauge:
            result = train(prepared, reporter, trial.checkpoint_dir, save_every=self.save_every)
            gauge.result = result
        values = values_of(self.objectives, prepared, result)
        trial.set_user_attr(RESULT, summary(prepared, result, self.train.label_names))
        folder = trial.checkpoint_dir.parent
        if self.top is None or worth_keeping(folder.parent, self.top, values[0], trial.number):
            keep(result, folder)
        return values[0] if len(values) == 1 else tuple(values)

    def preload(self) -> None:
        """Called once, where cells are forked from: the encoders' code, which takes seconds."""
        preload(*encoders_in(self.space))

    def kept_bytes(self) -> int:
        """Of the host's memory that this process keeps for trials to come."""
        return FIRST.size + COMPILER.size

    def config(self, sampled: dict[str, Any]) -> Config:
        return configured(self.agent, sampled, self.limits)

    def reporter(self, trial: Any) -> TrialReporter:
        if len(self.objectives) > 1:
            return _Silent(trial)
        return TrialReporter(trial)

    def prepared(self, config: Config, execution: Execution) -> Prepared:
        return prepare(
            config,
            self.train,
            self.validation,
            cache=self.cache,
            execution=execution,
            objective=self.objectives[0],
        )

    def _spec(self, prepared: Prepared) -> Spec:
        return spec_of(
            prepared.config,
            prepared.sources,
            prepared.execution,
            classes=len(self.train.label_names) or 2,
            tokens=int(prepared.train.lengths.max()),
            data=sum(
                len(view.ids)
                for data in (prepared.train, prepared.validation)
                for view in data.views
            ),
        )


class _Silent(TrialReporter):
    """For several objectives, in which Optuna takes no reports: only stops are heeded."""

    def report(self, value: float, epoch: int) -> None:
        if self.stop_requested:
            raise TrialInterrupted

    def should_prune(self) -> bool:
        return False


def configured(agent: str, sampled: dict[str, Any], limits: dict[str, Any]) -> Config:
    return read_config(
        {**sampled, "agent": agent, "train": {**sampled.get("train", {}), **limits}}
    )


def encoders(config: Config) -> str:
    """Their names; of a folder, the last part."""
    used = [part.name for part in (config.encoder, config.evidence_encoder) if part is not None]
    names = [Path(name).name if name.startswith(("/", ".", "~")) else name for name in used]
    return " + ".join(dict.fromkeys(names))


def planned(execution: Execution, plan: dict[str, Any]) -> Execution:
    """As the run's memory was planned, where it was."""
    if not plan:
        return execution
    names = ("micro_batch", "checkpoint_activations", "evaluated", "best_on_host", "memory")
    return replace(execution, **{name: plan[name] for name in names})


def here(execution: Execution) -> Execution:
    """The execution on the device that this process sees, with the threads it was given."""
    device = execution.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    threads = execution.threads or int(os.environ.get("OMP_NUM_THREADS") or 0) or None
    precision = best_precision(device) if execution.precision == "auto" else execution.precision
    return replace(execution, device=device, threads=threads, precision=precision)


def summary(prepared: Prepared, result: Result, labels: Sequence[str]) -> dict[str, Any]:
    """What a person wants to know of a trial, without a word of anybody's text."""
    return {
        "metrics": {name: round(value, 6) for name, value in result.metrics.items()},
        "labels": list(labels),
        "best_epoch": result.best_epoch,
        "epochs": result.epochs,
        "seconds": round(result.seconds, 2),
        "parameters": count(prepared.model),
        "new": sorted({name.split(".")[0] for name in prepared.model.new_parameters}),
        "untrained": [source.name for source in prepared.sources if not source.trained],
        "threshold": result.evaluation.threshold,
        **counts_of(prepared.validation.examples, result.evaluation),
        "train_loss": [round(row["train_loss"], 6) for row in result.curve],
        "samples_per_second": result.samples_per_second and round(result.samples_per_second, 1),
        "micro_batch": prepared.execution.micro_batch,
        "checkpointing": prepared.execution.checkpoint_activations,
        "steps": prepared.way.how,
        "recording": round(prepared.way.getting_ready, 2),
    }


def keep(result: Result, folder: Path) -> None:
    """The best epoch's weights, whole or not at all."""
    save_file({name: w.contiguous() for name, w in result.weights.items()}, folder / HALF_WRITTEN)
    (folder / HALF_WRITTEN).chmod(0o600)
    (folder / HALF_WRITTEN).replace(folder / WEIGHTS)
