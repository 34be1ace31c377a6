"""Summary of each study of a storage: state, progress, best value and last fault.

Study ──overview()──▶ Overview ──▶ a row of the dashboard's first page
"""

from __future__ import annotations

from dataclasses import dataclass

from optuna.study import Study

from supermax._util.attributes import SETTINGS
from supermax._util.text import one_line
from supermax.engine.storage.locations import find_location
from supermax.engine.storage.locks import holder
from supermax.results.machines import at_work
from supermax.results.records import FaultRecord, StudyRecord, finished, read_record

_RECENT_TRIALS = 50
"""Newest trials that are searched for the last fault."""


@dataclass(frozen=True)
class Overview:
    """Row of the dashboard's list of studies."""

    study_id: int
    name: str
    state: str
    """State of the study: running (on which machines, if it is shared), finished, paused (trials
    are missing) or new."""
    progress: str
    best: str
    fault: str


def overview(study: Study) -> Overview:
    """Return the summary of a study, from its storage and its run folder."""
    record = read_record(study)
    target = _target(study)
    done = finished(record.trials)
    running = holder(find_location(study).lock) is not None
    return Overview(
        study._study_id,
        record.name,
        at_work(record.runs) or _state(running, done, target),
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
    ranking = record.best_first()
    if not ranking or ranking[0].values is None:
        return ""
    title = record.titles[0] if record.titles else "value"
    if record.race is not None and (best := record.race.best) is not None:
        return f"{title} {best.mean_text} (trial {best.trial})"
    more = " …" if len(ranking[0].values) > 1 else ""
    return f"{title} {ranking[0].values[0]:.4g}{more} (trial {ranking[0].number})"


def _last_fault(record: StudyRecord) -> str:
    faults = [fault for trial in record.trials[-_RECENT_TRIALS:] for fault in trial.faults]
    if not faults:
        return ""
    last = max(faults, key=_when)
    return one_line(f"{last.kind} (trial {last.trial})")


def _when(fault: FaultRecord) -> float:
    return fault.at or 0.0
