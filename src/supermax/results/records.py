"""Read-only view of a study and its run folder.

study, run folder ──read_record()──▶ StudyRecord ──▶ TrialRecord ──▶ attempts, faults, curve, log
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from supermax._util.attributes import (
    CLAIM,
    EXPERIMENT,
    NOTICES,
    ORIGIN,
    RECORD,
    RESULT,
    metric_names,
    plain_params,
)
from supermax._util.text import metric_title
from supermax.engine.jobs.job import fault_from
from supermax.engine.ranking import broken, end_of, front, ranked
from supermax.engine.sharing.shared_run import RunOfStudy, runs_of
from supermax.engine.storage.history import fill_cache
from supermax.engine.storage.locations import find_location
from supermax.engine.storage.logs import tail_of
from supermax.engine.storage.run_folder import LedgerEntry, StudyFolder, TrialFolder
from supermax.engine.trial.oom import OomDetails
from supermax.engine.trial.stacks import Frame, own_frame
from supermax.errors import UserError
from supermax.results.race import RaceRecord, race_of


@dataclass(frozen=True)
class FaultRecord:
    """Fault of an attempt: its kind, culprit, decision and evidence."""

    trial: int
    attempt: int
    kind: str
    culprit: str
    message: str
    advice: str
    decision: str = ""
    at: float | None = None
    """Unix time."""
    seconds: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    last_step: int | None = None
    peak_rss: int | None = None
    traceback: str | None = None
    log_tail: str = ""
    signature: str = ""
    """Signature that repeated faults share; empty if the ledger is gone."""
    memory: OomDetails | None = None
    """Memory when an allocation failed; None for other faults, and in older ledgers."""

    @property
    def frame(self) -> Frame | None:
        """Innermost frame of the user's own code in the traceback or the log; None if unknown."""
        return own_frame(self.traceback or self.log_tail)


@dataclass(frozen=True)
class AttemptRecord:
    """Attempt at a trial: one launch in a cell."""

    number: int
    cell: int
    started: float
    ended: float | None
    """Unix time; None: it is running, or the run died while it ran."""
    how: str
    """End of the attempt: COMPLETE, PRUNED or FAIL; "fault": the trial was retried; "paused": at a
    rung; "stopped": with the run; "open": unknown."""
    fault: FaultRecord | None = None
    reserved: int | None = None
    """Bytes reserved for it; None if memory was not planned."""
    plan: dict[str, Any] | None = None
    """Execution plan, such as its micro-batch; None if memory was not planned."""
    why: str | None = None
    """Reason why the plan differs from what was asked for; None if it does not."""
    unclean: str | None = None
    """Leftovers in its cell, such as leaked memory; None if there were none."""


@dataclass(frozen=True)
class TrialRecord:
    """Trial with its files in the run folder."""

    trial: FrozenTrial
    folder: TrialFolder

    @property
    def number(self) -> int:
        return int(self.trial.number)

    @property
    def state(self) -> str:
        return str(self.trial.state.name)

    @property
    def shown_state(self) -> str:
        """State, or PAUSED if the trial is RUNNING in the study and its last attempt has ended."""
        ended = bool(self.attempts) and self.attempts[-1].how in ("paused", "stopped")
        return "PAUSED" if ended and self.state == "RUNNING" else self.state

    @property
    def values(self) -> list[float] | None:
        values: list[float] | None = self.trial.values
        return values

    @cached_property
    def params(self) -> dict[str, Any]:
        """Parameters under the names that the objective uses."""
        return plain_params(self.trial)

    @property
    def encoder(self) -> str | None:
        name = self.params.get("encoder.name")
        return None if name is None else str(name)

    @property
    def notes(self) -> dict[str, Any]:
        """Notes of the engine on the trial: attempts, seconds, memory peaks, short faults."""
        kept = self.trial.user_attrs.get(RECORD)
        return _valid(kept, _NOTES) if isinstance(kept, dict) else {}

    @property
    def result(self) -> dict[str, Any]:
        """Result of an agent's trial: metrics, best epoch, number of weights; {} for others."""
        kept = self.trial.user_attrs.get(RESULT)
        if not isinstance(kept, dict):
            return {}
        found = _valid(kept, _RESULT)
        if isinstance(found.get("steps"), str):
            found["steps"] = _current_terms(found["steps"])
        metrics = found.get("metrics", {})
        return found | {"metrics": {str(k): v for k, v in metrics.items() if _is_number(v)}}

    @property
    def labels(self) -> list[str]:
        """Class labels in their order; [] if unknown."""
        return [str(label) for label in self.result.get("labels", ())]

    @property
    def metrics(self) -> list[tuple[str, float]]:
        """Metrics of an agent's trial under their display names."""
        found = self.result.get("metrics", {})
        return [(metric_title(name, self.labels), value) for name, value in found.items()]

    @property
    def started(self) -> float | None:
        """Start as Unix time."""
        return _unix_time(self.trial.datetime_start)

    @property
    def ended(self) -> float | None:
        """End as Unix time; None while it runs."""
        return end_of(self.trial)

    @property
    def seconds(self) -> float | None:
        """Seconds of all attempts; in older studies, of the last one; None if unknown."""
        return self.notes.get("spent", self.notes.get("seconds"))

    @property
    def origin(self) -> dict[str, Any] | None:
        """Study and number that a trial was carried over from; None if it ran in this study."""
        found: dict[str, Any] | None = self.trial.system_attrs.get(ORIGIN)
        return found

    @property
    def broken(self) -> dict[str, float]:
        """Constraints that it violates, and by how much."""
        return broken(self.trial)

    @property
    def curve(self) -> dict[int, float]:
        """Reported values by step; for a running trial, those in the study so far."""
        return dict(sorted(self.trial.intermediate_values.items()))

    @property
    def log(self) -> str:
        """Tail of its log."""
        return tail_of(self.folder.log)

    @cached_property
    def attempts(self) -> list[AttemptRecord]:
        """Attempts in its ledger; [] if that is gone."""
        return _attempts(self)

    @property
    def faults(self) -> list[FaultRecord]:
        """Faults in its ledger; if that is gone, the short ones in the study."""
        found = [a.fault for a in self.attempts if a.fault is not None] or _refusals(self)
        return found or [
            _short_fault(self.number, i, short)
            for i, short in enumerate(self.notes.get("faults", ()), 1)
            if isinstance(short, dict)
        ]


def _refusals(trial: TrialRecord) -> list[FaultRecord]:
    """Return the faults in the ledger of a trial that was refused before its first attempt."""
    found = []
    for line in trial.folder.records():
        with contextlib.suppress(KeyError, TypeError, ValueError):  # a line of another version
            if "fault" in line and not line["attempt"]:
                found.append(_fault(trial.number, line))
    return found


@dataclass(frozen=True)
class StudyRecord:
    """Study at the time when it was read. Each property queries the storage at most once."""

    study: Study
    run_dir: Path
    trials: list[TrialRecord]
    runs: tuple[RunOfStudy, ...] = ()
    """Runs on all machines, the latest first; (): the study is not on a database server."""

    @cached_property
    def name(self) -> str:
        return str(self.study.study_name)

    @cached_property
    def directions(self) -> list[str]:
        return [direction.name.lower() for direction in self.study.directions]

    @cached_property
    def experiment(self) -> dict[str, Any]:
        """Configuration of a study of an agent: agent, data, objectives, metric_versions, limits;
        {} for others."""
        kept = self.study.user_attrs.get(EXPERIMENT)
        return kept if isinstance(kept, dict) else {}

    @cached_property
    def notices(self) -> list[str]:
        """Sentences about the data of a study of an agent; [] for others."""
        kept = self.study.user_attrs.get(NOTICES)
        return [str(line) for line in kept] if isinstance(kept, list) else []

    def note(self, key: str) -> Mapping[str, object]:
        """Return the dictionary in a user attribute of the study; {} if there is none."""
        kept = self.study.user_attrs.get(key)
        return kept if isinstance(kept, dict) else {}

    def on_validation(self, objective: int = 0) -> bool:
        """Return whether an objective is a metric of the validation split rather than a cost."""
        if not self.experiment:
            return False
        name = self.objectives[objective]
        versions = self.experiment.get("metric_versions")
        return name in (versions if isinstance(versions, dict) else ()) or any(
            name in trial.result.get("metrics", ()) for trial in self.trials
        )

    @cached_property
    def objectives(self) -> list[str]:
        """Names of the objectives; `value`, or `value 0`, `value 1`, if they have none."""
        names = self.experiment.get("objectives")
        several = len(self.directions) > 1
        return (
            [str(name) for name in names]
            if names and len(names) == len(self.directions)
            else [f"value {i}" for i, _ in enumerate(self.directions)]
            if several
            else ["value"]
        )

    @cached_property
    def titles(self) -> list[str]:
        """Display names of the objectives."""
        if not self.experiment and (names := metric_names(self.study)):
            return list(names)
        labels = next((trial.labels for trial in self.trials if trial.labels), [])
        return [metric_title(name, labels) for name in self.objectives]

    def trial(self, number: int) -> TrialRecord:
        """Return a trial by its number. Raises UserError if there is none."""
        for trial in self.trials:
            if trial.number == number:
                return trial
        last = f"; the last is {self.trials[-1].number}" if self.trials else ""
        raise UserError(f"The study '{self.name}' has no trial {number}{last}.")

    def of(self, *states: str) -> list[TrialRecord]:
        """Return the trials in one of these states."""
        return [trial for trial in self.trials if trial.state in states]

    def ranking(self) -> list[TrialRecord]:
        """Return the complete trials that violate no constraint, best first; for several
        objectives, those on the Pareto front first."""
        return self._records(self._ranked)

    @cached_property
    def race(self) -> RaceRecord | None:
        """Race of the best configurations over fresh seeds; None: there was none, or other trials
        have become the best since."""
        return race_of(self.study, self._ranked)

    def best_first(self) -> list[TrialRecord]:
        """Return the ranking with the winner of the race, if there is one, before the others."""
        winner = self.race.winner if self.race is not None else None
        return sorted(self.ranking(), key=lambda trial: trial.number != winner)

    def best(self) -> TrialRecord:
        """Return the winner of the race, else the first trial of the ranking. Raises UserError if
        no trial has a value."""
        if not self._ranked:
            states = Counter(trial.state.lower() for trial in self.trials)
            shown = ", ".join(f"{n} {state}" for state, n in states.items()) or "no trials"
            raise UserError(f"No trial of '{self.name}' has a value yet ({shown}).")
        return self.best_first()[0]

    def front(self) -> list[TrialRecord]:
        """Return the Pareto front; for one objective, the best trial."""
        return self._records(front(self._ranked, self._study_directions))

    @cached_property
    def _study_directions(self) -> list[StudyDirection]:
        return [StudyDirection[direction.upper()] for direction in self.directions]

    @cached_property
    def _ranked(self) -> list[FrozenTrial]:
        return ranked((trial.trial for trial in self.trials), self._study_directions)

    def _records(self, trials: Iterable[FrozenTrial]) -> list[TrialRecord]:
        by_number = {trial.number: trial for trial in self.trials}
        return [by_number[trial.number] for trial in trials]

    def faults(self) -> list[FaultRecord]:
        """Return all faults of the study, in the order of their trials."""
        return [fault for trial in self.trials for fault in trial.faults]


def read_record(study: Study, run_dir: Path | None = None) -> StudyRecord:
    """Return the study as it is now. `run_dir` is its run folder, if not at the default place."""
    folder = StudyFolder(run_dir or find_location(study).run_dir)
    fill_cache(study._storage, study._study_id)
    trials = study.get_trials(deepcopy=False)
    runs = tuple(runs_of(study))
    return StudyRecord(study, folder.path, _records(trials, folder, runs), runs)


def _records(
    trials: Iterable[FrozenTrial], folder: StudyFolder, runs: Sequence[RunOfStudy]
) -> list[TrialRecord]:
    """Return the trials with their folders: each is in the folder of the run that owned it last,
    if this machine can reach that."""
    others: dict[object, StudyFolder] = {
        run.info.run: StudyFolder(Path(run.info.run_dir)) for run in runs
    }
    records = []
    for trial in trials:
        owner = others.get(trial.system_attrs.get(CLAIM), folder)
        found = owner.trial(trial.number)
        reachable = owner is folder or os.access(found.path, os.R_OK | os.X_OK)
        records.append(TrialRecord(trial, found if reachable else folder.trial(trial.number)))
    return records


def _attempts(trial: TrialRecord) -> list[AttemptRecord]:
    """Return the attempts in the ledger: each launch, with its end from the lines after it."""
    launches: dict[int, dict[str, Any]] = {}
    unclean: dict[int, str] = {}
    ends: dict[int, tuple[float, str, FaultRecord | None]] = {}
    for line in trial.folder.records():
        with contextlib.suppress(KeyError, TypeError, ValueError):  # a line of another version
            if "launch" in line:
                launch: dict[str, Any] = {"cell": line["cell"], "started": line["at"]}
                launch |= {key: line.get(key) for key in ("reserved", "plan", "why")}
                launches[line["launch"]] = launch
            elif "unclean" in line:
                unclean[line["attempt"]] = str(line["unclean"])
            elif "fault" in line:
                ends[line["attempt"]] = (line["at"], "fault", _fault(trial.number, line))
            elif "stopped" in line:
                how = "paused" if line.get("paused") else "stopped"
                ends[line["stopped"]] = (line["at"], how, None)
    found = []
    for number, launch in launches.items():
        ended, how, fault = ends.get(number, (None, "open", None))
        kept = how in ("paused", "stopped")  # how the attempt ended, not its trial
        if number == max(launches) and trial.trial.state.is_finished() and not kept:
            ended, how = ended or trial.ended, trial.state
        found.append(
            AttemptRecord(
                number, ended=ended, how=how, fault=fault, unclean=unclean.get(number), **launch
            )
        )
    return found


def _fault(number: int, line: LedgerEntry) -> FaultRecord:
    fault = fault_from(line["fault"])
    return FaultRecord(
        trial=number,
        attempt=line["attempt"],
        kind=fault.name,
        culprit=str(fault.culprit),
        message=fault.message,
        advice=fault.advice,
        decision=line.get("decision") or "",
        at=line.get("at"),
        seconds=line.get("seconds"),
        exit_code=line.get("exit_code"),
        signal=line.get("signal"),
        last_step=line.get("last_step"),
        peak_rss=line.get("peak_rss"),
        traceback=line.get("traceback"),
        log_tail=line.get("log_tail") or "",
        signature=fault.signature,
        memory=OomDetails(**memory) if (memory := line.get("memory")) else None,
    )


_NOTES = {
    "seconds": (int, float),
    "spent": (int, float),
    "attempts": (int,),
    "result_of": (int,),
    "peak_rss": (int, float),
    "device_allocated": (int, float),
    "device_reserved": (int, float),
    "faults": (list,),
}
_RESULT: dict[str, tuple[type, ...]] = {
    "metrics": (dict,),
    "labels": (list,),
    "confusion": (list,),
    "spans": (dict,),
    "best_epoch": (int,),
    "decoding": (dict,),
    "epochs": (int,),
    "samples_per_second": (int, float),
    "train_loss": (list,),
}


_FORMER_STEPS = {
    "one by one": "eager",
    "compiled and recorded": "compiled, CUDA graphs",
    "recorded": "CUDA graphs",
}
"""Descriptions of how steps were executed, as earlier versions wrote them."""
_FORMER_UPDATES = "; updates by torch alone: "


def _current_terms(steps: str) -> str:
    """Return a description of steps in current terms, also for studies of earlier versions."""
    steps = steps.replace(_FORMER_UPDATES, "; no fused AdamW kernel: ")
    for former, current in _FORMER_STEPS.items():
        rest = steps.removeprefix(former)
        if rest != steps and rest[:1] in ("", ":", ",", ";"):
            return current + rest
    return steps


def _valid(kept: dict[str, Any], types: Mapping[str, tuple[type, ...]]) -> dict[str, Any]:
    """Return the items without those of a wrong type: any program may set the attribute."""
    return {k: v for k, v in kept.items() if k not in types or isinstance(v, types[k])}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short_fault(trial: int, attempt: int, short: Mapping[str, object]) -> FaultRecord:
    kind, culprit, message, advice = (
        str(short.get(key, "")) for key in ("kind", "culprit", "message", "advice")
    )
    return FaultRecord(trial, attempt, kind, culprit, message, advice)


def _unix_time(when: datetime | None) -> float | None:
    return None if when is None else when.timestamp()


def finished(trials: Iterable[TrialRecord]) -> int:
    """Return the number of finished trials."""
    done = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
    return sum(trial.trial.state in done for trial in trials)
