"""Events of a run: plain values for displays, trackers and tests.

The coordinator calls every listener with each event, in order, on its own thread. A listener
must return quickly. One that raises is dropped for the rest of the run: a display never stops it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supermax.engine.gain import Gain

if TYPE_CHECKING:
    from supermax.engine.summary import Summary
    from supermax.engine.trial.notes import Fact


class Event:
    """Base class of all events."""


@dataclass(frozen=True)
class RunStarted(Event):
    """Start of a run: the study is open and locked, and no trial was launched yet."""

    study_name: str
    directions: tuple[str, ...]  # "minimize" or "maximize", one per objective
    target: int | None  # n_trials; None: no limit
    finished: int  # finished trials of the study so far
    resumed: int  # trials of an earlier run that this one resumes
    workers: int
    run_dir: str
    best: tuple[int, float] | None  # trial number and value; None for several objectives
    metrics: tuple[str, ...] = ()  # names of the values, one per objective; (): not named
    evaluated_on: tuple[str, int] | None = None  # split and number of examples; None: not known


@dataclass(frozen=True)
class TrialStarted(Event):
    number: int
    attempt: int
    cell: int
    at: float  # time.monotonic() when the task was sent
    reserved: int | None = None  # bytes of memory reserved for it; None: no planner


@dataclass(frozen=True)
class TrialReported(Event):
    number: int
    step: int
    value: float


@dataclass(frozen=True)
class TrialNoted(Event):
    """Progress notes of the trial: new values by name; None removes a name."""

    number: int
    facts: dict[str, Fact]


@dataclass(frozen=True)
class TrialFinished(Event):
    number: int
    state: str  # COMPLETE, PRUNED or FAIL
    values: tuple[float, ...] | None
    params: dict[str, object]  # under the names the objective uses
    attempts: int
    seconds: float  # of all attempts
    finished: int  # finished trials in the study, this one included
    copied: bool = False  # it has the result of an equal configuration, and did not run


@dataclass(frozen=True)
class TrialPaused(Event):
    """End of an attempt without an end of its trial, which this run or another one continues."""

    number: int
    at_rung: bool = False
    """It waits in this run to be among the best. False: the run is stopping, or has lost it."""


@dataclass(frozen=True)
class StudyChanged(Event):
    """Trials that other runs have finished, or another number of workers in these runs."""

    finished: int  # finished trials in the study
    best: tuple[int, float] | None  # trial number and value; None for several objectives
    workers: int | None = None  # of the other runs; None: unknown, the study is in a file


@dataclass(frozen=True)
class FaultSeen(Event):
    number: int
    attempt: int
    kind: str
    culprit: str
    message: str
    decision: str  # for people: "retry in 1.0 s", "pruned", "failed", ...
    retried: bool = False  # the trial gets another attempt
    counted: bool = True  # False: in another run, or an earlier one


@dataclass(frozen=True)
class CellStarted(Event):
    cell: int
    pid: int


@dataclass(frozen=True)
class CellEnded(Event):
    cell: int
    trials: int
    note: str | None  # description of an unusual end; None: it ended normally


@dataclass(frozen=True)
class Notice(Event):
    """Text for the user: trials left RUNNING, a slower mode, a storage that does not respond."""

    text: str


@dataclass(frozen=True)
class OutOfService(Event):
    """A GPU, or a machine of a cluster, was taken out of service; the run continues with the
    others."""

    place: str
    why: str


@dataclass(frozen=True)
class GainEstimated(Event):
    """Expected gain of further trials. If it is over, no new ones start."""

    gain: Gain


@dataclass(frozen=True)
class RunStopping(Event):
    reason: str
    running: int


@dataclass(frozen=True)
class RunEnded(Event):
    summary: Summary


Listener = Callable[[Event], None]
