"""Parameters, metrics, tags and files of a trial's run, from its record. Pure functions.

Output, tracebacks and user attributes are left out: they may contain texts of the data. The time
of a metric is that of the trial, never that of sending: MLflow stores a metric once for the same
name, step, time and value, so sending it again is idempotent.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from supermax._util.text import masked
from supermax.results.records import FaultRecord, TrialRecord
from supermax.results.tracking.backend import (
    CURVE,
    FAILED,
    FINISHED,
    KILLED,
    PREFIX,
    RUNNING,
    MetricPoint,
)
from supermax.results.tracking.names import digest, key, stored_text

K = TypeVar("K")
_STATUS = {"COMPLETE": FINISHED, "FAIL": FAILED, "PRUNED": KILLED}
_MOST_MESSAGE = 300
_MOST_STEP = 2**63
_MOST_VALUE = sys.float_info.max
_LEDGER_FIELDS = (
    "launch",
    "cell",
    "attempt",
    "stopped",
    "decision",
    "exit_code",
    "signal",
    "seconds",
    "last_step",
    "peak_rss",
    "kernel_oom_kills",
    "at",
)


@dataclass(frozen=True)
class About:
    """Facts of the study that the runs of its trials contain."""

    identity: str
    name: str
    objectives: Sequence[str]
    experiment: Mapping[str, object]
    """Configuration of a study of an agent; {} for others."""

    @property
    def key(self) -> str:
        return digest(self.identity)

    @property
    def version(self) -> str:
        """Version of the study: N of a name that ends with @N."""
        found = re.fullmatch(r".+@([1-9]\d*)", self.name, re.DOTALL)
        return found[1] if found is not None else "1"


@dataclass(frozen=True)
class Content:
    """Target state of a trial's run. Times are in milliseconds."""

    name: str
    start: int
    end: int | None
    status: str
    params: dict[str, object]
    curve: dict[int, float]
    points: list[MetricPoint]
    tags: dict[str, str]
    files: dict[str, str]

    @property
    def ended(self) -> bool:
        return self.status != RUNNING


def trial_key(about: About, trial: TrialRecord) -> str:
    """Return a key that is unique to a trial. It includes the start time, because a deleted
    study's trial may have had the same number."""
    return digest(about.identity, trial.number, trial.started)


def curve_key(about: About) -> str:
    return key(CURVE + about.objectives[0])


def curve_of(trial: TrialRecord) -> dict[int, float]:
    """Return the reported values, with infinities clipped as MLflow stores them, so that the two
    can be compared."""
    return {
        step: min(max(value, -_MOST_VALUE), _MOST_VALUE) if math.isinf(value) else value
        for step, value in trial.curve.items()
        if abs(step) < _MOST_STEP
    }


def started(about: About, trial: TrialRecord) -> dict[str, str]:
    """Return the tags that a run is created with."""
    tags = {
        f"{PREFIX}study": about.name,
        f"{PREFIX}version": about.version,
        f"{PREFIX}trial": str(trial.number),
        f"{PREFIX}state": trial.state,
    }
    if (origin := trial.origin) is not None:
        tags[f"{PREFIX}origin"] = f"trial {origin.get('number')} of {origin.get('study')}"
    return {name: stored_text(value) for name, value in tags.items()}


def content(about: About, trial: TrialRecord) -> Content:
    """Return the target state of a trial's run."""
    start = milliseconds(trial.started)
    done = trial.trial.state.is_finished()
    end = max(start, milliseconds(trial.ended)) if done else None
    faults = trial.faults if done else []
    return Content(
        name=f"trial {trial.number}",
        start=start,
        end=end,
        status=_STATUS.get(trial.state, RUNNING),
        params={key(name): value for name, value in trial.params.items()},
        curve=curve_of(trial),
        points=[] if end is None else [*_points(about, trial, end), *_losses(trial, start)],
        tags={} if not done else {**started(about, trial), **_fault_tags(faults)},
        files={} if not done else _files(about, trial, faults),
    )


def _points(about: About, trial: TrialRecord, end: int) -> list[MetricPoint]:
    """Return the final values, an agent's metrics, and the resources that the trial used."""
    notes = trial.notes
    found = {
        **_numbers(trial.result.get("metrics", {})),
        **_numbers({name: trial.result.get(name) for name in ("best_epoch", "parameters")}),
        **dict(zip(about.objectives, trial.values or (), strict=False)),
        "run/seconds": trial.seconds,
        "run/attempts": notes.get("attempts"),
        "run/peak_host_bytes": notes.get("peak_rss"),
        "run/peak_device_bytes": notes.get("device_allocated"),
    }
    return [MetricPoint(key(name), value, end, 0) for name, value in _numbers(found).items()]


def _losses(trial: TrialRecord, start: int) -> list[MetricPoint]:
    """Return the training loss of an agent's trial by epoch."""
    losses = trial.result.get("train_loss")
    if not isinstance(losses, list):
        return []
    name = f"{CURVE}train_loss"
    numbers = _numbers(dict(enumerate(losses, 1)))
    return [MetricPoint(name, value, start, epoch) for epoch, value in numbers.items()]


def _numbers(found: Mapping[K, object]) -> dict[K, float]:
    """Return the items that are numbers, including infinities and NaN, which trackers store."""
    return {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _fault_tags(faults: Sequence[FaultRecord]) -> dict[str, str]:
    if not faults:
        return {}
    last = faults[-1]
    return {
        f"{PREFIX}faults": str(len(faults)),
        f"{PREFIX}fault.kind": stored_text(last.kind),
        f"{PREFIX}fault.culprit": stored_text(last.culprit),
        f"{PREFIX}fault.message": _message(last.message),
    }


def _message(message: str) -> str:
    return stored_text(masked(message, users=False), _MOST_MESSAGE)


def _files(about: About, trial: TrialRecord, faults: Sequence[FaultRecord]) -> dict[str, str]:
    configuration = {
        "study": about.name,
        "trial": trial.number,
        "parameters": trial.params,
        "experiment": about.experiment,
    }
    files = {"configuration.json": _json(configuration)}
    if faults:
        files["ledger.json"] = _json(list(_ledger(trial)))
    return files


def _ledger(trial: TrialRecord) -> Iterator[dict[str, object]]:
    """Yield launches, faults and stops, without output and tracebacks, which stay in the run
    folder."""
    for entry in trial.folder.records():
        line: dict[str, object] = dict(entry)
        kept = {name: line[name] for name in _LEDGER_FIELDS if line.get(name) is not None}
        if isinstance(fault := line.get("fault"), dict):
            short = {name: fault.get(name) for name in ("kind", "culprit")}
            kept["fault"] = short | {"message": _message(str(fault.get("message", "")))}
        yield kept


def _json(data: object) -> str:
    whole = json.dumps(data, indent=1, ensure_ascii=False, default=str)
    return whole.encode("utf-8", "backslashreplace").decode()


def milliseconds(seconds: float | None) -> int:
    return max(0, round((seconds or 0.0) * 1000))


def same_content(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def is_superseded(sent: dict[int, float], now: dict[int, float]) -> bool:
    """Return whether the tracker has a step that the trial no longer has, because another attempt
    started before it. Trackers cannot remove steps, so the trial needs another run."""
    return any(
        step not in now or not same_content(value, now[step]) for step, value in sent.items()
    )
