"""Sending under kills at every step and with late or lost answers: each run exists once."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState, create_trial

from supermax.engine.storage.run_folder import TrialFolder
from supermax.results.records import TrialRecord
from supermax.results.tracking.backend import (
    KEY,
    MetricPoint,
    Missing,
    NewRun,
    RequestRefused,
    Run,
    Unreachable,
)
from supermax.results.tracking.content import About, content
from supermax.results.tracking.record import Record, TrackingFolder
from supermax.results.tracking.sending import Sender

ABOUT = About("identity", "study", ["f1"], {})


class Killed(BaseException):
    """Simulated kill, which no handler catches."""


class FakeServer:
    """Fake of a tracker with a database: `create` always makes a new run, an equal metric is
    stored once, and no step is removed. `trouble` is called before and after each call takes
    effect."""

    def __init__(self, trouble: Callable[[str], None] = lambda _: None) -> None:
        self.trouble = trouble
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, dict[str, Any]] = {}

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if name.startswith("_") or not callable(found) or name == "trouble":
            return found

        def watched(*args: Any) -> Any:
            self.trouble(f"before {name}")
            answer = found(*args)
            self.trouble(f"after {name}")
            return answer

        return watched

    def connect(self) -> None:
        pass

    def experiment(self, name: str) -> str:
        return self.experiments.setdefault(name, str(len(self.experiments)))

    def find(self, experiment: str, key: str) -> list[Run]:
        return [
            Run(name, run["status"])
            for name, run in sorted(self.runs.items())
            if run["tags"].get(KEY) == key and not run["deleted"]
        ]

    def create(self, experiment: str, new: NewRun) -> Run:
        made = f"run{len(self.runs):03d}"
        self.runs[made] = {
            "name": new.name,
            "tags": {**new.tags, KEY: new.key},
            "status": "RUNNING",
            "params": {},
            "points": set(),
            "files": {},
            "deleted": False,
        }
        return Run(made, "RUNNING")

    def get(self, run: str) -> Run | None:
        found = self.runs.get(run)
        return None if found is None or found["deleted"] else Run(run, found["status"])

    def delete(self, run: str) -> None:
        self.runs[run]["deleted"] = True

    def history(self, run: str, key: str) -> dict[int, float]:
        return {point.step: point.value for point in self.runs[run]["points"] if point.key == key}

    def log(
        self, run: str, params: dict[str, object], points: list[MetricPoint], tags: dict[str, str]
    ) -> None:
        if run not in self.runs:
            raise Missing(run)
        self.runs[run]["params"] |= params
        self.runs[run]["points"] |= set(points)
        self.runs[run]["tags"] |= tags

    def upload(self, run: str, name: str, whole: str) -> None:
        self.runs[run]["files"][name] = whole

    def end(self, run: str, status: str, at: int | None) -> None:
        self.runs[run]["status"] = status

    @property
    def active(self) -> list[dict[str, Any]]:
        return [run for run in self.runs.values() if not run["deleted"]]


def trial(folder: Path, state: TrialState, curve: dict[int, float]) -> TrialRecord:
    done = state is TrialState.COMPLETE
    made = create_trial(
        state=state, value=0.5 if done else None, intermediate_values=curve, user_attrs={}
    )
    made.number = 7
    made.datetime_start = made.datetime_start or made.datetime_complete
    return TrialRecord(made, TrialFolder(folder))


@pytest.fixture
def life(tmp_path: Path) -> list[TrialRecord]:
    """Return a trial at successive times: it reports, starts over, reports, and ends."""
    moments: list[tuple[TrialState, dict[int, float]]] = [
        (TrialState.RUNNING, {}),
        (TrialState.RUNNING, {0: 1.0, 1: 2.0}),
        (TrialState.RUNNING, {0: 1.5}),
        (TrialState.RUNNING, {0: 1.5, 1: 2.5}),
        (TrialState.COMPLETE, {0: 1.5, 1: 2.5, 2: 3.5}),
    ]
    seen = [trial(tmp_path, *moment) for moment in moments]
    for one in seen:
        one.trial.datetime_start = seen[-1].trial.datetime_start
    return seen


def is_right(server: FakeServer, last: TrialRecord) -> bool:
    runs = [run for run in server.active if "supermax.trial" in run["tags"]]
    assert len(server.active) == len(runs) + 1  # and the study's own
    (run,) = runs
    wanted = content(ABOUT, last)
    steps = Counter(point.step for point in run["points"] if point.key == "curve/f1")
    curve = {point.step: point.value for point in run["points"] if point.key == "curve/f1"}
    assert set(steps.values()) == {1}
    assert curve == wanted.curve
    assert {point for point in run["points"] if point.key != "curve/f1"} == set(wanted.points)
    assert run["status"] == "FINISHED"
    assert set(run["files"]) == {"configuration.json"}
    return True


def session(server: FakeServer, folder: TrackingFolder) -> Sender:
    """Return the sender of a new process."""
    return Sender(server, folder.record(ABOUT.key), ABOUT)


def sent(server: FakeServer, folder: TrackingFolder, life: list[TrialRecord]) -> Record:
    """Send with as many processes as needed, each of which continues from the current state."""
    sender = session(server, folder)
    for moment in life:
        while True:
            try:
                sender.open(0)
                sender.send(moment)
                break
            except Killed:
                sender = session(server, folder)
            except (Unreachable, RequestRefused):
                pass
    while True:
        try:
            sender.end_study({"x": "y"}, "FINISHED")
            return sender.record
        except Killed:
            sender = session(server, folder)
        except Unreachable:
            pass


def at(call: int, raised: type[BaseException]) -> Callable[[str], None]:
    """Return a function that fails once, at the nth call."""
    count = itertools.count()

    def trouble(_: str) -> None:
        if next(count) == call:
            raise raised("now")

    return trouble


def instants(life: list[TrialRecord], folder: TrackingFolder) -> int:
    count = itertools.count()
    sent(FakeServer(lambda _: next(count) and None), folder, life)
    return next(count)


@pytest.mark.parametrize("raised", [Killed, Unreachable])
def test_a_failure_at_every_step(
    life: list[TrialRecord], tmp_path: Path, raised: type[BaseException]
) -> None:
    total = instants(life, TrackingFolder(tmp_path, "count"))
    assert total > 30
    for call in range(total):
        server, folder = FakeServer(at(call, raised)), TrackingFolder(tmp_path, f"at{call}")
        record = sent(server, folder, life)
        assert is_right(server, life[-1]), call
        assert record.done == {7}


def test_repeated_failures(life: list[TrialRecord], tmp_path: Path) -> None:
    """Answers are lost, and the process is killed now and then."""
    count = itertools.count(1)

    def trouble(_: str) -> None:
        now = next(count)
        if now % 37 == 0:
            raise Killed
        if now % 11 == 0:
            raise Unreachable

    server = FakeServer(trouble)
    sent(server, TrackingFolder(tmp_path, "x"), life)
    server.trouble = lambda _: None
    assert is_right(server, life[-1])


class LateServer(FakeServer):
    """A server that hangs: what was asked when nobody waited any more is done all the same, and
    after the next question has been answered."""

    def __init__(self, late: int) -> None:
        super().__init__()
        self._late = late
        self._creations = itertools.count()
        self._asked: tuple[Any, ...] | None = None

    def create(self, *asked: Any) -> Run:
        if next(self._creations) == self._late:
            self._asked = asked
            raise Unreachable("no answer")
        return super().create(*asked)

    def find(self, experiment: str, key: str) -> list[Run]:
        found = super().find(experiment, key)
        if self._asked is not None:
            FakeServer.create(self, *self._asked)
            self._asked = None
        return found


@pytest.mark.parametrize("late", range(3))
def test_a_run_that_was_created_too_late_is_deleted(
    life: list[TrialRecord], tmp_path: Path, late: int
) -> None:
    server = LateServer(late)
    sent(server, TrackingFolder(tmp_path, "x"), life)
    assert len(server.runs) > len(server.active)
    assert is_right(server, life[-1])


def test_without_its_record_the_sender_finds_existing_runs(
    life: list[TrialRecord], tmp_path: Path
) -> None:
    """Another machine, or a run folder that was removed."""
    server = FakeServer()
    for name, until in (("a", 2), ("b", 4), ("c", 5)):
        sent(server, TrackingFolder(tmp_path, name), life[:until])
    calls: list[str] = []
    server.trouble = calls.append
    sent(server, TrackingFolder(tmp_path, "d"), life[-1:])
    assert "after create" not in calls
    assert is_right(server, life[-1])


def test_another_database_behind_the_same_address(life: list[TrialRecord], tmp_path: Path) -> None:
    folder = TrackingFolder(tmp_path, "x")
    sent(FakeServer(), folder, life)
    new = FakeServer()
    sent(new, folder, life[-1:])
    assert is_right(new, life[-1])


def test_metrics_are_sent_without_files_if_files_are_refused(
    life: list[TrialRecord], tmp_path: Path
) -> None:
    def trouble(call: str) -> None:
        if call == "before upload":
            raise Unreachable("no such bucket")

    server = FakeServer(trouble)
    record = sent(server, TrackingFolder(tmp_path, "x"), life)
    assert record.done == {7}
    (run,) = [run for run in server.active if "supermax.trial" in run["tags"]]
    assert run["status"] == "FINISHED"
    assert not run["files"]
