"""Admission control: trials start where their memory fits, or are planned smaller."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import optuna
import pytest

import supermax
from supermax.engine import events
from supermax.engine.jobs.job import decision_about, ran_out_of_memory
from supermax.engine.jobs.provision import DeviceUsage, Provision, Refusal
from supermax.engine.run.admission import Admission
from supermax.results.records import read_record
from tests import ROOT
from tests.engine.executors import EXECUTOR, local_only
from tests.few import a_few, quick_are

pytestmark = pytest.mark.usefixtures("quick")
HELD: list[Any] = []


@dataclass
class Room:
    """Simple planner: a trial needs its parameter `size`, less after each failure."""

    rooms: dict[str | None, int]
    seen: list[DeviceUsage] = field(default_factory=list)
    asked: list[tuple[int, int]] = field(default_factory=list)

    def provide(self, trial: Any, failed: Sequence[dict[str, Any]]) -> Provision | Refusal:
        size = trial.suggest_int("size", 1, 8)
        self.asked.append((trial.number, len(failed)))
        needed = size >> len(failed)
        most = max(self.rooms.values())
        if not needed or needed > most:
            return Refusal(f"It needs {size}.", max(size / most - 1, 0.25))
        return Provision(needed, {"size": needed})

    def room(self, occupied: DeviceUsage) -> int | None:
        self.seen.append(occupied)
        here = occupied.device if EXECUTOR == "local" else None
        return self.rooms[here] - occupied.reserved


class Watcher:
    """Listener that tracks the reserved memory, by device."""

    def __init__(self) -> None:
        self.running: dict[int, int] = {}
        self.most = self.together = 0
        self.events: list[events.Event] = []

    def __call__(self, event: events.Event) -> None:
        self.events.append(event)
        if isinstance(event, events.TrialStarted):
            self.running[event.number] = event.reserved or 0
        if isinstance(event, events.TrialFinished | events.FaultSeen):
            self.running.pop(event.number, None)
        self.most = max(self.most, sum(self.running.values()))
        self.together = max(self.together, len(self.running))


def asleep(trial: Any) -> float:
    size = trial.suggest_int("size", 1, 8)
    assert trial.plan["size"] == size
    time.sleep(0.05)
    return float(size)


@local_only  # a host has one trial at a time there
def test_trials_share_a_device_as_far_as_they_fit(study: optuna.Study) -> None:
    room, watcher = Room({None: 9}), Watcher()
    supermax.optimize(
        study, asleep, n_trials=24, workers=4, reuse_cells=True, planner=room, progress=watcher
    )
    assert Counter(t.state.name for t in study.trials) == {"COMPLETE": 24}
    assert watcher.most <= 9
    assert watcher.together > 1
    notes = [t.user_attrs["supermax"]["reserved"]["device"] for t in study.trials]
    assert notes == [t.params["size"] for t in study.trials]


@pytest.mark.slow
def test_refused_trial_is_reported_as_infeasible_without_a_cell(study: optuna.Study) -> None:
    watcher = Watcher()
    supermax.optimize(study, asleep, n_trials=20, planner=Room({None: 4}), progress=watcher)
    started = {e.number for e in watcher.events if isinstance(e, events.TrialStarted)}
    for trial in study.trials:
        if trial.params["size"] > 4:
            assert trial.state.name == "PRUNED"
            violation = trial.system_attrs["constraints:supermax:infeasible"]
            assert violation == pytest.approx(max(trial.params["size"] / 4 - 1, 0.25))
            assert trial.number not in started
        else:
            assert trial.state.name == "COMPLETE"
    assert 0 < len(started) < 20
    faults = read_record(study).faults()
    assert {fault.message for fault in faults} >= {"It needs 8."}
    seen = [e for e in watcher.events if isinstance(e, events.FaultSeen)]
    assert {e.decision for e in seen} == {"reported to the sampler as infeasible"}
    ledger = read_record(study).trial(seen[0].number).folder.records()
    assert [line["decision"] for line in ledger] == ["reported to the sampler as infeasible"]


def test_run_halts_when_no_trial_fits(study: optuna.Study) -> None:
    words = "first 20 trials of this run were.* The last one: It needs 8. Give the run more memory"
    for _ in range(25):
        study.enqueue_trial({"size": 8})
    with pytest.raises(supermax.RunHalted, match=words):
        supermax.optimize(study, asleep, planner=Room({None: 4}), progress=False)
    states = Counter(trial.state.name for trial in study.trials)
    assert states == {"PRUNED": 20, "WAITING": 5}


@pytest.mark.slow
def test_run_continues_when_one_trial_has_fitted(study: optuna.Study) -> None:
    for size in (1, *[8] * 24):
        study.enqueue_trial({"size": size})
    supermax.optimize(study, starving, 25, planner=Room({None: 4}), progress=False)
    assert Counter(trial.state.name for trial in study.trials) == {"PRUNED": 25}


def test_record_has_the_plan_of_each_attempt(study: optuna.Study) -> None:
    study.enqueue_trial({"size": 8})
    room = Room({None: 8})
    supermax.optimize(study, hungry, 1, planner=room, progress=False)
    assert [seen.fresh for seen in room.seen] == sorted(seen.fresh for seen in room.seen)
    assert {seen.fresh for seen in room.seen} == {False, True}  # after a shortage
    (trial,) = read_record(study).trials
    assert [a.reserved for a in trial.attempts] == [8, 4, 2]
    assert [a.plan for a in trial.attempts] == [{"size": 8}, {"size": 4}, {"size": 2}]


def hungry(trial: Any) -> float:
    """Run out of memory above 2; save a checkpoint."""
    size = trial.suggest_int("size", 1, 8)
    (trial.checkpoint_dir / f"{trial.attempt}").touch()
    if trial.plan["size"] > 2:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: you tried to allocate 99 bytes")
    return float(size)


def test_trial_out_of_memory_is_planned_again(study: optuna.Study) -> None:
    room = Room({None: 8})
    summary = supermax.optimize(study, hungry, 12, planner=room, retries=0, progress=False)
    assert summary.trials["COMPLETE"] == 12
    assert summary.retries == summary.faults["host out of memory"] > 0
    record = read_record(study)
    for trial in record.trials:
        tries = 1 + sum(trial.params["size"] >> i > 2 for i in range(3))
        assert trial.notes["attempts"] == tries
        assert trial.notes["reserved"]["device"] <= 2
        launches = [line["plan"]["size"] for line in trial.folder.records() if "launch" in line]
        assert launches == [trial.params["size"] >> i for i in range(tries)]
        assert all(f.decision == "tried again with another memory plan" for f in trial.faults)
        assert len(list((trial.folder.path / "checkpoint").iterdir())) == tries


def starving(trial: Any) -> float:
    trial.suggest_int("size", 1, 8)
    raise MemoryError("no more")


def test_trial_that_fits_with_no_plan_gets_a_constraint(study: optuna.Study) -> None:
    supermax.optimize(study, starving, 4, planner=Room({None: 8}), progress=False)
    for trial in study.trials:
        assert trial.state.name == "PRUNED"
        assert trial.system_attrs["constraints:supermax:infeasible"] >= 0.25
        assert trial.user_attrs["supermax"]["attempts"] == trial.params["size"].bit_length()


class Wordy(Room):
    """Planner that returns the same plan with another explanation."""

    def provide(self, trial: Any, failed: Any) -> Provision:
        return Provision(1, {"size": 1}, why=f"the {len(failed)}th time")


def test_explanation_is_not_part_of_the_plan(study: optuna.Study) -> None:
    supermax.optimize(study, starving, 1, planner=Wordy({None: 8}), progress=False)
    (trial,) = read_record(study).trials
    assert [attempt.why for attempt in trial.attempts] == ["the 0th time"]
    assert trial.state == "PRUNED"


KILLED = """
import os, signal, sys
import optuna, supermax
from tests.engine.run.test_admission import Room, hungry

class Dies(Room):
    def provide(self, trial, failed):
        if failed and sys.argv[2] == "provide":  # the next plan is not made yet
            os.kill(os.getpid(), signal.SIGKILL)
        return super().provide(trial, failed)

    def room(self, occupied):
        if self.asked[-1] == (0, 1):  # it is made and noted, and nothing is launched yet
            os.kill(os.getpid(), signal.SIGKILL)
        return super().room(occupied)

study = optuna.load_study(study_name="test", storage=sys.argv[1])
supermax.optimize(study, hungry, 1, planner=Dies({None: 8}), progress=False)
"""


def kill_after_out_of_memory(study: optuna.Study, url: str, where: str) -> None:
    """Leave a trial of size 8 whose run was killed in the planner's method `where`, at its second
    call."""
    study.enqueue_trial({"size": 8})
    command = [sys.executable, "-c", KILLED, url, where]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -signal.SIGKILL
    (trial,) = read_record(study).trials
    assert trial.state == "RUNNING"


@pytest.mark.parametrize("where", quick_are(["provide"], ["provide", "room"]))
def test_sigkill_around_a_new_plan_loses_and_repeats_nothing(
    study: optuna.Study, url: str, where: str
) -> None:
    kill_after_out_of_memory(study, url, where)
    room = Room({None: 8})
    supermax.optimize(study, hungry, 1, planner=room, progress=False)
    (trial,) = read_record(study).trials
    assert trial.state == "COMPLETE"
    assert room.asked[0] == (0, 1)  # it is known that 8 was too large, and known once
    assert [attempt.plan for attempt in trial.attempts] == [{"size": n} for n in (8, 4, 2)]
    faults = [line["attempt"] for line in trial.folder.records() if "fault" in line]
    assert faults == [1, 2]


@pytest.mark.slow
def test_run_without_a_planner_does_not_split_planned_trials(
    study: optuna.Study, url: str
) -> None:
    kill_after_out_of_memory(study, url, "provide")
    supermax.optimize(study, lambda trial: 1.0, 1, progress=False)
    (trial,) = read_record(study).trials
    assert trial.state == "COMPLETE"
    assert [fault.decision.partition(" ")[0] for fault in trial.faults] == ["retry"]


class Fixed(Room):
    """Planner that provides once and then refuses with a given violation."""

    violation: Any = 1.0

    def provide(self, trial: Any, failed: Sequence[dict[str, Any]]) -> Provision | Refusal:
        super().provide(trial, failed)
        return Refusal("Half of it is too much.", self.violation) if failed else EIGHT


EIGHT = Provision(8, {"size": 8})


@pytest.mark.parametrize(
    ("violation", "told"), a_few([(0.5, 0.5), (float("nan"), 1.0), ("much", 1.0), (-3, 1.0)])
)
def test_refusal_after_out_of_memory_is_reported_like_one_before(
    study: optuna.Study, violation: Any, told: float
) -> None:
    planner = Fixed({None: 8})
    planner.violation = violation
    supermax.optimize(study, starving, 1, planner=planner, progress=False)
    assert study.trials[0].system_attrs["constraints:supermax:infeasible"] == told
    (fault,) = read_record(study).faults()
    assert fault.message == "MemoryError: no more. Half of it is too much."
    assert fault.decision == "pruned, constraint supermax:infeasible"


class Stubborn(Room):
    """Planner that returns the same plan, or one that differs in an unused key only."""

    step = 0

    def provide(self, trial: Any, failed: Sequence[dict[str, Any]]) -> Provision | Refusal:
        super().provide(trial, ())
        return Provision(8, {"sizes": (8,), "called": self.step * len(failed)})


@pytest.mark.parametrize(
    ("step", "attempts", "why"),
    [
        (0, 1, "a plan that was too large before."),
        pytest.param(1, 31, "30 more plans ran out of memory as well.", marks=pytest.mark.slow),
    ],
)
def test_planner_without_smaller_plans_ends_the_trial(
    study: optuna.Study, step: int, attempts: int, why: str
) -> None:
    planner = Stubborn({None: 8})
    planner.step = step
    summary = supermax.optimize(study, starving, 1, planner=planner, progress=False)
    (trial,) = study.trials
    assert trial.state.name == "PRUNED"
    assert trial.system_attrs["constraints:supermax:infeasible"] == 1.0
    assert trial.user_attrs["supermax"]["attempts"] == attempts
    assert summary.retries == attempts - 1
    assert read_record(study).faults()[-1].message.endswith(why)


PLANNED = {"launch": 1, "cell": 1, "reserved": 8, "plan": {"size": 8}, "where": "device"}


@pytest.mark.parametrize(
    ("said", "short", "again"),
    [
        ({"decision": "in other words", "again": True, "replanned": True}, [{"size": 8}], True),
        ({"decision": "split further, and tried again"}, [{"size": 8}], True),  # an older ledger
        ({"decision": "retry in 0.5 s with blocking launches"}, [], True),
        ({"decision": "split further", "again": False}, [], False),
        ({"decision": "failed"}, [], False),
        ({"decision": None}, [], False),
    ],
)
def test_decision_is_read_from_the_ledger(
    said: dict[str, Any], short: list[dict[str, Any]], again: bool
) -> None:
    ledger = [PLANNED, {"fault": {}, "attempt": 1, **said}]
    assert ran_out_of_memory(ledger) == short
    assert ran_out_of_memory([*ledger, ledger[-1]]) == short
    assert decision_about(ledger, 1)["again"] is again
    assert decision_about(ledger, 2) == {}


@local_only
def test_trials_are_placed_on_devices_where_they_fit(
    study: optuna.Study, monkeypatch: Any
) -> None:
    monkeypatch.setattr("supermax._util.system.count_gpus", lambda: None)
    room = Room({"0": 3, "1": 8})
    where: dict[int, str | None] = {}

    def note(trial: Any) -> float:
        trial.set_user_attr("device", os.environ["CUDA_VISIBLE_DEVICES"])
        trial.suggest_int("size", 1, 8)
        time.sleep(0.02)
        return 0.0

    supermax.optimize(
        study, note, 16, workers=2, devices=["0", "1"], planner=room, progress=False,
        reuse_cells=True,
    )  # fmt: skip
    for trial in study.trials:
        where[trial.number] = trial.user_attrs["device"]
        if trial.params["size"] > 3:
            assert where[trial.number] == "1"
    assert set(where.values()) == {"0", "1"}
    assert {seen.device for seen in room.seen} == {"0", "1"}


def test_trial_waits_for_memory_of_other_programs(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supermax.engine.run.coordinator.RECHECK_INTERVAL", 0.05)

    class Busy(Room):
        def room(self, occupied: DeviceUsage) -> int | None:
            super().room(occupied)
            return 8 - occupied.reserved if len(self.seen) > 5 else 0

    watcher = Watcher()
    room = Busy({None: 8})
    supermax.optimize(study, asleep, 2, planner=room, progress=watcher)
    assert len(study.trials) == 2
    notices = [e.text for e in watcher.events if isinstance(e, events.Notice)]
    assert [text for text in notices if "waits" in text] == [
        f"Trial 0 waits: it needs {study.trials[0].params['size']} B of memory and 0 B are "
        f"free, although no trial of this run is running. End other programs that use the "
        f"memory, or stop the run and restrict the space to smaller values."
    ]


def test_notice_about_a_waiting_trial_is_repeated_after_ten_minutes(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supermax.engine.run.coordinator.RECHECK_INTERVAL", 0.01)
    looks = count(start=0, step=300)  # seconds between two looks
    made = partial(Admission, clock=lambda: float(next(looks)))
    monkeypatch.setattr("supermax.engine.run.coordinator.Admission", made)

    class Busy(Room):
        def room(self, occupied: DeviceUsage) -> int | None:
            super().room(occupied)
            return 8 if len(self.seen) > 5 else 0

    watcher = Watcher()
    supermax.optimize(study, asleep, 1, planner=Busy({None: 8}), progress=watcher)
    notices = [e.text for e in watcher.events if isinstance(e, events.Notice)]
    assert sum("waits" in text for text in notices) == 3  # at 0, 600 and 1200 s, of 5 checks


@dataclass
class Shrinking(Room):
    """Planner whose plans follow the free memory, which is less after the first check."""

    least: int = 1
    free: int = 8

    def provide(self, trial: Any, failed: Sequence[dict[str, Any]]) -> Provision | Refusal:
        size = trial.suggest_int("size", 8, 8)
        self.asked.append((trial.number, len(failed)))
        if self.free < self.least:
            return Refusal("There is too little.", 0.5)
        return Provision(min(size, self.free), {"size": min(size, self.free)})

    def room(self, occupied: DeviceUsage) -> int | None:
        self.free = 2
        return 2


@pytest.mark.parametrize(("least", "state"), [(1, "COMPLETE"), (3, "PRUNED")])
def test_waiting_trial_is_planned_again_for_the_free_memory(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch, least: int, state: str
) -> None:
    monkeypatch.setattr("supermax.engine.run.coordinator.RECHECK_INTERVAL", 0.01)
    planner = Shrinking({None: 8}, least=least)
    supermax.optimize(study, lambda trial: float(trial.plan["size"]), 1, planner=planner)
    (trial,) = study.trials
    assert (trial.state.name, len(planner.asked)) == (state, 2)
    assert trial.value == (2.0 if state == "COMPLETE" else None)


class Keeps(Room):
    """Planner with used cells that hold 4, also for a while after they were dismissed."""

    def room(self, occupied: DeviceUsage) -> int | None:
        self.seen.append(occupied)
        kept = [seen.idle for seen in self.seen[-3:]]
        return 8 - occupied.reserved - 4 * max(kept)


def test_idle_cells_are_dismissed_when_memory_is_short(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supermax.engine.run.coordinator.RECHECK_INTERVAL", 0.01)
    for size in (2, 8):
        study.enqueue_trial({"size": size})
    watcher = Watcher()
    summary = supermax.optimize(
        study, asleep, 2, reuse_cells=True, planner=Keeps({None: 8}), progress=watcher
    )
    assert (summary.trials["COMPLETE"], summary.cells) == (2, 2)
    assert not [e for e in watcher.events if isinstance(e, events.Notice)]


def leaky(trial: Any) -> float:
    HELD.append(np.ones(300 * 131_072))  # 300 MiB
    return float(trial.suggest_float("x", 0, 1))


@pytest.mark.slow
def test_growing_cell_is_replaced_and_the_ledger_has_its_growth(
    study: optuna.Study,
) -> None:
    watcher = Watcher()
    summary = supermax.optimize(study, leaky, 8, reuse_cells=True, progress=watcher)
    assert summary.trials["COMPLETE"] == 8
    assert summary.cells == 3
    left = [
        line["unclean"]
        for trial in read_record(study).trials
        for line in trial.folder.records()
        if "unclean" in line
    ]
    assert len(left) == 2
    grown = [re.search(r"it has grown by (\d+) MiB", text) for text in left]
    assert [int(match[1]) for match in grown if match] == pytest.approx([600, 600], abs=10)
    notes = [e.note for e in watcher.events if isinstance(e, events.CellEnded) and e.note]
    assert any("it has grown by" in note for note in notes)


def faithful(trial: Any) -> float:
    np.ones(600 * 131_072)
    return float(trial.suggest_float("x", 0, 1))


@pytest.mark.slow
def test_cell_that_frees_its_memory_is_kept(study: optuna.Study) -> None:
    summary = supermax.optimize(study, faithful, 8, reuse_cells=True, progress=False)
    assert summary.cells == 1
