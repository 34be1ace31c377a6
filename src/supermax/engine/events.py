"""What a run says about itself while it goes: plain values for displays, trackers and tests.

The coordinator calls every listener with each event, in order, on its own thread. A listener
must be quick. One that raises is dropped for the rest of the run: looking never stops the work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supermax.engine.notes import Fact
    from supermax.engine.summary import Summary


@dataclass(frozen=True)
class RunStarted:
    """The study is open and locked; no trial has been launched yet."""

    study_name: str
    directions: tuple[str, ...]  # "minimize" or "maximize", one per objective
    target: int | None  # n_trials: finished trials the study shall hold in all
    finished: int  # how many it holds already
    resumed: int  # trials an earlier run had claimed and this one goes on with
    workers: int
    run_dir: str
    best: tuple[int, float] | None  # trial number and value; None for several objectives
    metrics: tuple[str, ...] = ()  # names of the values, one per objective; (): not named
    evaluated_on: tuple[str, int] | None = None  # split and number of examples; None: not known


@dataclass(frozen=True)
class TrialStarted:
    number: int
    attempt: int
    cell: int
    at: float  # time.monotonic() when the task was sent
    reserved: int | None = None  # bytes of memory kept for it; None: nobody said


@dataclass(frozen=True)
class TrialReported:
    number: int
    step: int
    value: float


@dataclass(frozen=True)
class TrialNoted:
    """How the trial is doing, as it says itself: new facts, None for one that is no more."""

    number: int
    facts: dict[str, Fact]


@dataclass(frozen=True)
class TrialFinished:
    number: int
    state: str  # COMPLETE, PRUNED or FAIL
    values: tuple[float, ...] | None
    params: dict[str, object]  # under the names the objective uses
    attempts: int
    seconds: float  # of all attempts
    finished: int  # finished trials in the study, this one included


@dataclass(frozen=True)
class TrialPaused:
    """The run is stopping: the trial stays claimed and goes on in the next run."""

    number: int


@dataclass(frozen=True)
class FaultSeen:
    number: int
    attempt: int
    kind: str
    culprit: str
    message: str
    decision: str  # "retry in 1.0 s", "pruned", "failed", ...


@dataclass(frozen=True)
class CellStarted:
    cell: int
    pid: int


@dataclass(frozen=True)
class CellEnded:
    cell: int
    trials: int
    note: str | None  # anything odd about its end


@dataclass(frozen=True)
class Notice:
    """Something a person should read: left-over trials, a slower mode, storage that is slow."""

    text: str


@dataclass(frozen=True)
class RunStopping:
    reason: str
    running: int


@dataclass(frozen=True)
class RunEnded:
    summary: Summary


Event = (
    RunStarted
    | TrialStarted
    | TrialReported
    | TrialNoted
    | TrialFinished
    | TrialPaused
    | FaultSeen
    | CellStarted
    | CellEnded
    | Notice
    | RunStopping
    | RunEnded
)
Listener = Callable[[Event], None]
