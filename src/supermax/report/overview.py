"""One line for each study of a storage: its state, progress, best value and last fault.

Study ──overview()──▶ Overview ──▶ a row of the dashboard's first page
"""

from __future__ import annotations

from dataclasses import dataclass

from optuna.study import Study

from supermax.engine.home import find_home
from supermax.engine.locks import holder
from supermax.naming import SETTINGS
from supermax.records import FaultRecord, StudyRecord, finished, read
from supermax.words import one_line

_LOOKED_AT = 50
"""Newest trials, among which the last fault is looked for."""


@dataclass(frozen=True)
class Overview:
    study_id: int
    name: str
    state: str
    """running, finished, paused (trials are missing) or new."""
    progress: str
    best: str
    fault: str


def overview(study: Study) -> Overview:
    """Sum a study up, from its storage and its run folder."""
    record = read(study)
    target = _target(study)
    done = finished(record.trials)
    running = holder(find_home(study).lock) is not None
    return Overview(
        study._study_id,
        record.name,
        _state(running, done, target),
        f"{done:,} of {target:,}" if target else f"{done:,}",
        _best(record),
        _last_fault(record),
    )


def _target(study: Study) -> int | None:
    settings = study.user_attrs.get(SETTINGS)
    trials = settings.get("trials") if isinstance(settings, dict) else None
    return trials if isinstance(trials, int) and trials > 0 else None


def _state(running: bool, done: int, target: int | None) -> str:
    if running:
        return "running"
    if target is not None and done < target:
        return "paused" if done else "new"
    return "finished" if done else "new"


def _best(record: StudyRecord) -> str:
    ranking = record.ranking()
    if not ranking or ranking[0].values is None:
        return ""
    title = record.titles[0] if record.titles else "value"
    more = " …" if len(ranking[0].values) > 1 else ""
    return f"{title} {ranking[0].values[0]:.4g}{more} (trial {ranking[0].number})"


def _last_fault(record: StudyRecord) -> str:
    faults = [fault for trial in record.trials[-_LOOKED_AT:] for fault in trial.faults]
    if not faults:
        return ""
    last = max(faults, key=_when)
    return one_line(f"{last.kind} (trial {last.trial})")


def _when(fault: FaultRecord) -> float:
    return fault.at or 0.0
