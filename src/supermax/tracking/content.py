"""What is said of a trial: a trial's record → names, numbers and short texts. Pure.

Not its output, no traceback and no attribute of the user's own: those may hold what people have
written. A metric's time is the trial's own and never the moment of sending: MLflow keeps a metric
once for the same name, step, time and value, so what is sent twice is there once.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from supermax.records import FaultRecord, TrialRecord
from supermax.tracking.names import digest, key, text
from supermax.words import masked

PREFIX = "supermax."
KEY = f"{PREFIX}key"
"""The tag by which a run is found again, whoever made it."""
CURVE = "curve/"
RUNNING, FINISHED, FAILED, KILLED = "RUNNING", "FINISHED", "FAILED", "KILLED"
_STATUS = {"COMPLETE": FINISHED, "FAIL": FAILED, "PRUNED": KILLED}
_MOST_MESSAGE = 300
_MOST_STEP = 2**63
_MOST_VALUE = sys.float_info.max
_KEPT_OF_THE_LEDGER = (
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


class Point(NamedTuple):
    """A value of a metric."""

    key: str
    value: float
    time: int
    step: int


@dataclass(frozen=True)
class About:
    """The study, as far as its trials' runs speak of it."""

    identity: str
    name: str
    objectives: Sequence[str]
    experiment: dict[str, Any]
    """What a study of an agent was made with; {} for others."""

    @property
    def key(self) -> str:
        return digest(self.identity)


@dataclass(frozen=True)
class Content:
    """A trial as MLflow shall know it. Times are milliseconds."""

    name: str
    start: int
    end: int | None
    status: str
    params: dict[str, str]
    curve: dict[int, float]
    points: list[Point]
    tags: dict[str, str]
    files: dict[str, str]

    @property
    def ended(self) -> bool:
        return self.status != RUNNING


def trial_key(about: About, trial: TrialRecord) -> str:
    """Of a trial of this study; another one that took its number started at another time."""
    return digest(about.identity, trial.number, trial.started)


def curve_key(about: About) -> str:
    return key(CURVE + about.objectives[0])


def curve_of(trial: TrialRecord) -> dict[int, float]:
    """What was reported, with infinities as MLflow keeps them, so that the two compare."""
    return {
        step: min(max(value, -_MOST_VALUE), _MOST_VALUE) if math.isinf(value) else value
        for step, value in trial.curve.items()
        if abs(step) < _MOST_STEP
    }


def started(about: About, trial: TrialRecord) -> dict[str, str]:
    """The tags that a run is made with."""
    tags = {
        KEY: trial_key(about, trial),
        f"{PREFIX}study": about.name,
        f"{PREFIX}trial": str(trial.number),
        f"{PREFIX}state": trial.state,
    }
    if (origin := trial.origin) is not None:
        tags[f"{PREFIX}origin"] = f"trial {origin.get('number')} of {origin.get('study')}"
    return {name: text(value) for name, value in tags.items()}


def content(about: About, trial: TrialRecord) -> Content:
    start = milliseconds(trial.started)
    done = trial.trial.state.is_finished()
    end = max(start, milliseconds(trial.ended)) if done else None
    faults = trial.faults if done else []
    return Content(
        name=f"trial {trial.number}",
        start=start,
        end=end,
        status=_STATUS.get(trial.state, RUNNING),
        params={key(name): text(value) for name, value in trial.params.items()},
        curve=curve_of(trial),
        points=[] if end is None else [*_points(about, trial, end), *_losses(trial, start)],
        tags={} if not done else {**started(about, trial), **_fault_tags(faults)},
        files={} if not done else _files(about, trial, faults),
    )


def _points(about: About, trial: TrialRecord, end: int) -> list[Point]:
    """The final values, what an agent's trial came to, and what it took."""
    notes = trial.notes
    found = {
        **_numbers(trial.result.get("metrics")),
        **_numbers({name: trial.result.get(name) for name in ("best_epoch", "parameters")}),
        **dict(zip(about.objectives, trial.values or (), strict=False)),
        "run/seconds": trial.seconds,
        "run/attempts": notes.get("attempts"),
        "run/peak_host_bytes": notes.get("peak_rss"),
        "run/peak_device_bytes": notes.get("device_allocated"),
    }
    return [Point(key(name), value, end, 0) for name, value in _numbers(found).items()]


def _losses(trial: TrialRecord, start: int) -> list[Point]:
    """An agent's training loss, epoch by epoch."""
    losses = trial.result.get("train_loss")
    if not isinstance(losses, list):
        return []
    name = f"{CURVE}train_loss"
    numbers = _numbers(dict(enumerate(losses, 1)))
    return [Point(name, value, start, epoch) for epoch, value in numbers.items()]


def _numbers(found: Any) -> dict[Any, float]:
    """Those that are numbers; infinities and NaN are, MLflow has a place for them."""
    if not isinstance(found, dict):
        return {}
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
        f"{PREFIX}fault.kind": text(last.kind),
        f"{PREFIX}fault.culprit": text(last.culprit),
        f"{PREFIX}fault.message": _message(last.message),
    }


def _message(said: str) -> str:
    return text(masked(said, users=False), _MOST_MESSAGE)


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


def _ledger(trial: TrialRecord) -> Iterator[dict[str, Any]]:
    """Launches, faults and stops, without output and tracebacks; they stay in the run folder."""
    for line in trial.folder.records():
        kept = {name: line[name] for name in _KEPT_OF_THE_LEDGER if line.get(name) is not None}
        if isinstance(fault := line.get("fault"), dict):
            kept["fault"] = {name: fault.get(name) for name in ("kind", "culprit")}
            kept["fault"]["message"] = _message(str(fault.get("message", "")))
        yield kept


def _json(data: Any) -> str:
    whole = json.dumps(data, indent=1, ensure_ascii=False, default=str)
    return whole.encode("utf-8", "backslashreplace").decode()


def milliseconds(seconds: float | None) -> int:
    return max(0, round((seconds or 0.0) * 1000))


def same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def taken_back(sent: dict[int, float], now: dict[int, float]) -> bool:
    """True when MLflow was told of a step that does not count any more: another attempt began
    before it. MLflow forgets nothing, so the trial needs another run."""
    return any(step not in now or not same(value, now[step]) for step, value in sent.items())
