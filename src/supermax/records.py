"""A study with its run folder, to be looked at: nothing here changes either.

study, run folder ──read()──▶ StudyRecord ──▶ TrialRecord ──▶ attempts, faults, curve, log
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from supermax.engine.folder import StudyFolder, TrialFolder
from supermax.engine.home import find_home
from supermax.engine.job import fault_from
from supermax.engine.logs import tail_of
from supermax.engine.protocol import RECORD
from supermax.engine.stacks import Frame, own_frame
from supermax.errors import UserError
from supermax.naming import EXPERIMENT, NOTICES, ORIGIN, RESULT, metric_names, plain_params
from supermax.ranking import broken, front, ranked
from supermax.words import metric_title


@dataclass(frozen=True)
class FaultRecord:
    """How an attempt went wrong, whose fault it was, and what was done."""

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
    """Equal for two faults that are the same thing again; empty where only the study is left."""

    @property
    def frame(self) -> Frame | None:
        """Innermost frame of the user's own code, where a traceback or the log shows one."""
        return own_frame(self.traceback or self.log_tail)


@dataclass(frozen=True)
class AttemptRecord:
    """One launch of a trial in a cell."""

    number: int
    cell: int
    started: float
    ended: float | None
    """Unix time; None: it is running, or the run was lost while it ran."""
    how: str
    """COMPLETE, PRUNED, FAIL; "fault": the trial was tried again; "stopped": with the run;
    "open": nothing is known of its end."""
    fault: FaultRecord | None = None
    reserved: int | None = None
    """Bytes that were kept for it."""
    plan: dict[str, Any] | None = None
    """How it was to be executed, where memory was planned."""
    why: str | None = None
    """It was planned so, where that is not what was asked for."""
    unclean: str | None = None
    """What it left its cell in, if that was more than nothing."""


@dataclass(frozen=True)
class TrialRecord:
    trial: FrozenTrial
    folder: TrialFolder

    @property
    def number(self) -> int:
        return int(self.trial.number)

    @property
    def state(self) -> str:
        return str(self.trial.state.name)

    @property
    def values(self) -> list[float] | None:
        values: list[float] | None = self.trial.values
        return values

    @cached_property
    def params(self) -> dict[str, Any]:
        """Under the names the objective uses."""
        return plain_params(self.trial)

    @property
    def encoder(self) -> str | None:
        name = self.params.get("encoder.name")
        return None if name is None else str(name)

    @property
    def notes(self) -> dict[str, Any]:
        """What the engine keeps of the trial: attempts, seconds, peaks, short faults."""
        kept = self.trial.user_attrs.get(RECORD)
        return _sound(kept, _NOTES) if isinstance(kept, dict) else {}

    @property
    def result(self) -> dict[str, Any]:
        """What an agent's trial came to: metrics, best epoch, parameters; {} for others."""
        kept = self.trial.user_attrs.get(RESULT)
        if not isinstance(kept, dict):
            return {}
        found = _sound(kept, _RESULT)
        metrics = found.get("metrics", {})
        return found | {"metrics": {str(k): v for k, v in metrics.items() if _is_number(v)}}

    @property
    def labels(self) -> list[str]:
        """The classes it was taught to tell apart, in their order, where that is known."""
        return [str(label) for label in self.result.get("labels", ())]

    @property
    def metrics(self) -> list[tuple[str, float]]:
        """What an agent's trial measured, under names for people."""
        found = self.result.get("metrics", {})
        return [(metric_title(name, self.labels), value) for name, value in found.items()]

    @property
    def started(self) -> float | None:
        return _seconds(self.trial.datetime_start)

    @property
    def ended(self) -> float | None:
        return _seconds(self.trial.datetime_complete)

    @property
    def seconds(self) -> float | None:
        """Seconds of all attempts; in older studies, of the last one."""
        return self.notes.get("spent", self.notes.get("seconds"))

    @property
    def origin(self) -> dict[str, Any] | None:
        """For a trial that another version of the study ran: where it comes from."""
        found: dict[str, Any] | None = self.trial.system_attrs.get(ORIGIN)
        return found

    @property
    def broken(self) -> dict[str, float]:
        """Constraints that it violates, and by how much."""
        return broken(self.trial)

    @property
    def curve(self) -> dict[int, float]:
        """What was reported, by step; of a running trial what the study knows so far."""
        return dict(sorted(self.trial.intermediate_values.items()))

    @property
    def log(self) -> str:
        """The end of its output."""
        return tail_of(self.folder.log)

    @cached_property
    def attempts(self) -> list[AttemptRecord]:
        return _attempts(self)

    @property
    def faults(self) -> list[FaultRecord]:
        """From its ledger; where that is gone, what the study kept."""
        found = [a.fault for a in self.attempts if a.fault is not None] or _refusals(self)
        return found or [
            FaultRecord(self.number, i, **_texts(short))
            for i, short in enumerate(self.notes.get("faults", ()), 1)
            if isinstance(short, dict)
        ]


def _refusals(trial: TrialRecord) -> list[FaultRecord]:
    """What the ledger says of a trial that never had a cell."""
    found = []
    for line in trial.folder.records():
        with contextlib.suppress(KeyError, TypeError, ValueError):  # a line of another version
            if "fault" in line and not line["attempt"]:
                found.append(_fault(trial.number, line))
    return found


@dataclass(frozen=True)
class StudyRecord:
    """A study as it was when it was read: what follows from it is asked of the storage once."""

    study: Study
    run_dir: Path
    trials: list[TrialRecord]

    @cached_property
    def name(self) -> str:
        return str(self.study.study_name)

    @cached_property
    def directions(self) -> list[str]:
        return [direction.name.lower() for direction in self.study.directions]

    @cached_property
    def experiment(self) -> dict[str, Any]:
        """For a study of an agent: agent, data, objectives, metric_versions, limits; {} for
        others."""
        kept = self.study.user_attrs.get(EXPERIMENT)
        return kept if isinstance(kept, dict) else {}

    @cached_property
    def notices(self) -> list[str]:
        """For a study of an agent: sentences about its data."""
        kept = self.study.user_attrs.get(NOTICES)
        return [str(line) for line in kept] if isinstance(kept, list) else []

    def note(self, key: str) -> dict[str, Any]:
        """Return what was noted on the study under a name; {} where nothing was."""
        kept = self.study.user_attrs.get(key)
        return kept if isinstance(kept, dict) else {}

    def on_validation(self, objective: int = 0) -> bool:
        """Tell whether an objective is a metric of the validation split, and not a cost."""
        if not self.experiment:
            return False
        name = self.objectives[objective]
        versions = self.experiment.get("metric_versions")
        return name in (versions if isinstance(versions, dict) else ()) or any(
            name in trial.result.get("metrics", ()) for trial in self.trials
        )

    @cached_property
    def objectives(self) -> list[str]:
        """Names of the values."""
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
        """The objectives under names for people."""
        if not self.experiment and (names := metric_names(self.study)):
            return list(names)
        labels = next((trial.labels for trial in self.trials if trial.labels), [])
        return [metric_title(name, labels) for name in self.objectives]

    def trial(self, number: int) -> TrialRecord:
        for trial in self.trials:
            if trial.number == number:
                return trial
        last = f"; the last is {self.trials[-1].number}" if self.trials else ""
        raise UserError(f"The study '{self.name}' has no trial {number}{last}.")

    def of(self, *states: str) -> list[TrialRecord]:
        return [trial for trial in self.trials if trial.state in states]

    def ranking(self) -> list[TrialRecord]:
        """Complete trials that break no constraint, best first; of several objectives those of
        the front before the others."""
        return self._records(self._ranked)

    def best(self) -> TrialRecord:
        """The first of the ranking. Raises UserError where there is none."""
        if not self._ranked:
            states = Counter(trial.state.lower() for trial in self.trials)
            shown = ", ".join(f"{n} {state}" for state, n in states.items()) or "no trials"
            raise UserError(f"No trial of '{self.name}' has come to a value yet ({shown}).")
        return self.ranking()[0]

    def front(self) -> list[TrialRecord]:
        """The trials no other is better than in everything; for one objective the best one."""
        return self._records(front(self._ranked, self._wishes))

    @cached_property
    def _wishes(self) -> list[StudyDirection]:
        return [StudyDirection[direction.upper()] for direction in self.directions]

    @cached_property
    def _ranked(self) -> list[FrozenTrial]:
        return ranked((trial.trial for trial in self.trials), self._wishes)

    def _records(self, trials: Iterable[FrozenTrial]) -> list[TrialRecord]:
        by_number = {trial.number: trial for trial in self.trials}
        return [by_number[trial.number] for trial in trials]

    def faults(self) -> list[FaultRecord]:
        """All faults of the study, in the order of their trials."""
        return [fault for trial in self.trials for fault in trial.faults]


def read(study: Study, run_dir: Path | None = None) -> StudyRecord:
    """The study as it is now. `run_dir`: where its run files are, if not in their usual place."""
    folder = StudyFolder(run_dir or find_home(study).run_dir)
    trials = study.get_trials(deepcopy=False)
    return StudyRecord(study, folder.path, _records(trials, folder))


def _records(trials: Iterable[FrozenTrial], folder: StudyFolder) -> list[TrialRecord]:
    return [TrialRecord(trial, folder.trial(trial.number)) for trial in trials]


def _attempts(trial: TrialRecord) -> list[AttemptRecord]:
    """From the ledger: a launch, and what the lines after it say of its end."""
    open_: dict[int, dict[str, Any]] = {}
    left: dict[int, str] = {}
    ends: dict[int, tuple[float, str, FaultRecord | None]] = {}
    for line in trial.folder.records():
        with contextlib.suppress(KeyError, TypeError, ValueError):  # a line of another version
            if "launch" in line:
                open_[line["launch"]] = {"cell": line["cell"], "started": line["at"]}
                kept, plan = line.get("reserved"), line.get("plan")
                open_[line["launch"]] |= {"reserved": kept, "plan": plan, "why": line.get("why")}
            elif "unclean" in line:
                left[line["attempt"]] = str(line["unclean"])
            elif "fault" in line:
                ends[line["attempt"]] = (line["at"], "fault", _fault(trial.number, line))
            elif "stopped" in line:
                ends[line["stopped"]] = (line["at"], "stopped", None)
    found = []
    for number, begun in open_.items():
        ended, how, fault = ends.get(number, (None, "open", None))
        if number == max(open_) and trial.trial.state.is_finished() and how != "stopped":
            ended, how = ended or trial.ended, trial.state
        found.append(
            AttemptRecord(
                number, ended=ended, how=how, fault=fault, unclean=left.get(number), **begun
            )
        )
    return found


def _fault(number: int, line: dict[str, Any]) -> FaultRecord:
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
    )


_NOTES = {
    "seconds": (int, float),
    "spent": (int, float),
    "attempts": (int,),
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
    "epochs": (int,),
    "samples_per_second": (int, float),
    "train_loss": (list,),
}


def _sound(kept: dict[str, Any], kinds: Mapping[str, tuple[type, ...]]) -> dict[str, Any]:
    """Without what is not of its kind: anybody may set an attribute of that name."""
    return {k: v for k, v in kept.items() if k not in kinds or isinstance(v, kinds[k])}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _texts(short: dict[str, Any]) -> dict[str, Any]:
    return {key: str(short.get(key, "")) for key in ("kind", "culprit", "message", "advice")}


def _seconds(when: datetime | None) -> float | None:
    return None if when is None else when.timestamp()


def finished(trials: Iterable[TrialRecord]) -> int:
    done = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
    return sum(trial.trial.state in done for trial in trials)
