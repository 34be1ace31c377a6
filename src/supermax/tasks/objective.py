"""Optuna objective of an agent: train a trial's configuration and report every epoch.

trial ──space.sample()──▶ Config ──prepare()──▶ train() ──▶ values
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, cast

import optuna
import torch
from optuna.trial import BaseTrial
from safetensors.torch import save_file

from supermax._util.attributes import HALF_WRITTEN, RESULT, WEIGHTS, public_name
from supermax.agents import agent_of
from supermax.engine.processes.remote_trial import RemoteTrial, TrialInterrupted
from supermax.engine.promotion.ladder import Promotion
from supermax.errors import UserError
from supermax.memory.facts import Spec
from supermax.memory.measurements import MeasurementLog
from supermax.space import Space
from supermax.space.adapters import may_adapt
from supermax.space.presets import encoders_in
from supermax.tasks.measures import values_of, values_so_far
from supermax.tasks.measuring import measure_trial
from supermax.tasks.probing import run_probes
from supermax.tasks.specs import spec_of
from supermax.tasks.trial_plan import TrialPlan, apply_plan
from supermax.tasks.weight_retention import worth_keeping
from supermax.training.config import FORMER_DECODING, Config, read_config
from supermax.training.data.examples import Corpus
from supermax.training.eval.counts import counts_of
from supermax.training.loop import SAVE_EVERY, Result, train
from supermax.training.models.adapters import import_peft
from supermax.training.models.assembly import count
from supermax.training.models.encoders import import_model
from supermax.training.models.sources import find
from supermax.training.prepare import INITIAL_WEIGHTS, Prepared, prepare
from supermax.training.steps.compilation import COMPILER
from supermax.training.steps.execution import Execution, best_precision
from supermax.training.steps.memory_limits import in_use, limit_memory


def preload(*encoders: str) -> None:
    """Import the code of these encoders, without those that are not on this machine."""
    for name in encoders:
        with contextlib.suppress(UserError):
            import_model(find(name))


@dataclass
class TrialReporter:
    """Reporter of the training loop that reports to an Optuna trial."""

    trial: BaseTrial
    _last: float = math.nan

    def begin(self, prepared: Prepared) -> None:
        """Note what is trained, before the first epoch."""

    def report(self, value: float, epoch: int) -> None:
        self._last = value
        self.trial.report(value, epoch)

    def note(self, **facts: object) -> None:
        if (note := getattr(self.trial, "note", None)) is not None:  # not part of Optuna's Trial
            note(**facts, memory=in_use())

    def should_prune(self) -> bool:
        """Ask the pruner, except after NaN: pruners take it for the worst value, but the trial may
        recover."""
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
    """Optuna objective: train the configuration that a trial samples and return its values."""

    agent: str
    space: Space
    train: Corpus
    validation: Corpus
    cache: Path
    objectives: Sequence[str]
    limits: Mapping[str, object]
    """Keys of the configuration's `train` part that are not searched: epochs, patience, …"""
    execution: Execution = field(default_factory=Execution)
    save_every: float = SAVE_EVERY
    book: MeasurementLog | None = None
    """Log for memory and time of trials; None: they are not logged."""
    top: int | None = None
    """Trials whose weights a WeightRetention keeps; None: every trial writes its weights."""
    former_decoding: bool = False
    """True: decoding settings that the space lacks have fixed values, as in earlier versions;
    False: they are chosen in each evaluation."""

    def __call__(self, trial: RemoteTrial) -> float | tuple[float, ...]:
        if may_adapt(self.space):
            import_peft()  # before memory is limited: it counts as one of the libraries
        config = self.sampled(trial)
        execution = local_execution(self.execution)
        plan: TrialPlan | None = getattr(trial, "plan", None)  # a replayed trial has none
        if plan:
            execution = apply_plan(execution, plan)
        limit_memory(execution)
        before = in_use()
        reporter = self.reporter(trial)
        reporter.note(encoder=encoder_title(config), epochs=config.train.epochs)
        probes = run_probes(config, execution, plan.get("probes", ()) if plan else ())
        prepared = prepare(
            config,
            self.train,
            self.validation,
            cache=self.cache,
            execution=execution,
            objective=self.objectives[0],
        )
        reporter.begin(prepared)
        with measure_trial(prepared, self._spec(prepared), self.book, before, probes) as gauge:
            result = train(prepared, reporter, trial.checkpoint_dir, save_every=self.save_every)
            gauge.result = result
        values = values_of(self.objectives, prepared, result)
        trial.set_user_attr(RESULT, summary(prepared, result, self.train.label_names))
        folder = trial.folder
        if self.top is None or worth_keeping(folder.parent, self.top, values[0], trial.number):
            save_weights(result, folder)
        return values[0] if len(values) == 1 else tuple(values)

    def preload(self) -> None:
        """Import the encoders' code, which takes seconds. Called once, in the fork server."""
        preload(*encoders_in(self.space))

    def kept_bytes(self) -> int:
        """Return the bytes of host memory that this process caches for later trials."""
        return INITIAL_WEIGHTS.size + COMPILER.size

    def sampled(self, trial: BaseTrial) -> Config:
        """Return the configuration that a trial samples."""
        return self.config_of(self.space.sample(trial))

    def config_of(self, sampled: Mapping[str, Any]) -> Config:
        """Return the configuration of sampled parameters."""
        return configured(self.agent, sampled, self.limits, self.former_decoding)

    def reporter(self, trial: BaseTrial) -> TrialReporter:
        if len(self.objectives) > 1:
            return _MultiObjectiveReporter(trial, objectives=self.objectives)
        return TrialReporter(trial)

    def _spec(self, prepared: Prepared) -> Spec:
        return spec_of(
            prepared.config,
            prepared.sources,
            prepared.execution,
            classes=len(self.train.label_names) or 2,
            tokens=int(prepared.train.lengths.max()),
            data=self.label_values
            + sum(
                len(view.ids)
                for data in (prepared.train, prepared.validation)
                for view in data.views
            ),
        )

    @property
    def label_values(self) -> int:
        """Numbers of 0 and 1 that the sets of labels of the data take in memory."""
        rows = len(self.train.label_sets) + len(self.validation.label_sets)
        return rows * len(self.train.label_names) if agent_of(self.agent).label_sets else 0


@dataclass
class _MultiObjectiveReporter(TrialReporter):
    """Reporter for several objectives, for which Optuna has no reports and no pruning. It reports
    all of them to a Promotion, unless one is only known at the end; otherwise there are only
    stops."""

    objectives: Sequence[str] = ()
    _prepared: Prepared | None = None
    _values: list[float] | None = None
    """Values after this epoch; None: they are not reported."""

    def begin(self, prepared: Prepared) -> None:
        study = getattr(self.trial, "study", None)  # a replayed trial has none
        if isinstance(getattr(study, "pruner", None), Promotion):
            self._prepared = prepared

    def measured(self, metrics: Mapping[str, float]) -> None:
        if self._prepared is not None:
            self._values = values_so_far(self.objectives, self._prepared, metrics)

    def report(self, value: float, epoch: int) -> None:
        self._last = value
        if self._values is not None:
            cast(RemoteTrial, self.trial).report(self._values, epoch)
        elif self.stop_requested:
            raise TrialInterrupted

    def should_prune(self) -> bool:
        return self._values is not None and super().should_prune()


def configured(
    agent: str,
    sampled: Mapping[str, Any],
    limits: Mapping[str, object],
    former_decoding: bool = False,
) -> Config:
    """Return the configuration of a trial from its sampled parameters and the search's limits.

    `former_decoding` gives decoding settings that are not sampled the values of earlier versions.
    """
    fixed: Mapping[str, Mapping[str, object]] = FORMER_DECODING if former_decoding else {}
    parts = {name: {**part, **sampled.get(name, {})} for name, part in fixed.items()}
    train = {**sampled.get("train", {}), **limits}
    return read_config({**sampled, **parts, "agent": agent, "train": train})


def encoder_title(config: Config) -> str:
    """Return the names of the encoders for display."""
    used = (part for part in (config.encoder, config.evidence_encoder) if part is not None)
    return " + ".join(dict.fromkeys(public_name(part.name) for part in used))


def local_execution(execution: Execution) -> Execution:
    """Resolve "auto" for device and precision, and the threads, in this process."""
    device = execution.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    threads = execution.threads or int(os.environ.get("OMP_NUM_THREADS") or 0) or None
    precision = best_precision(device) if execution.precision == "auto" else execution.precision
    return replace(execution, device=device, threads=threads, precision=precision)


def summary(prepared: Prepared, result: Result, labels: Sequence[str]) -> dict[str, object]:
    """Return the summary that is stored with a trial, without any text of the data."""
    return {
        "metrics": {name: round(value, 6) for name, value in result.metrics.items()},
        "labels": list(labels),
        "best_epoch": result.best_epoch,
        "epochs": result.epochs,
        "seconds": round(result.seconds, 2),
        "parameters": count(prepared.model),
        "new": sorted({name.split(".")[0] for name in prepared.model.new_parameters}),
        "untrained": [source.name for source in prepared.sources if not source.trained],
        **_decoding(result),
        **counts_of(prepared.validation.examples, result.evaluation),
        "train_loss": [round(row["train_loss"], 6) for row in result.curve],
        "samples_per_second": result.samples_per_second and round(result.samples_per_second, 1),
        "micro_batch": prepared.execution.micro_batch,
        "checkpointing": prepared.execution.checkpoint_activations,
        "steps": prepared.executor.how,
        "recording": round(prepared.executor.capture_seconds, 2),
    }


def _decoding(result: Result) -> dict[str, object]:
    """Return the settings that decoded the spans of the best epoch; {} without a span head."""
    decoding = result.evaluation.decoding
    return {} if decoding is None else {"decoding": asdict(decoding)}


def save_weights(result: Result, folder: Path) -> None:
    """Write the weights of the best epoch atomically."""
    save_file({name: w.contiguous() for name, w in result.weights.items()}, folder / HALF_WRITTEN)
    (folder / HALF_WRITTEN).chmod(0o600)
    (folder / HALF_WRITTEN).replace(folder / WEIGHTS)
