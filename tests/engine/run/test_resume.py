"""Resumption after a kill: finished trials are kept, running ones resume."""

from __future__ import annotations

import io
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

import supermax
from supermax._util import system
from supermax._util.attributes import CLAIM
from supermax.engine import events
from supermax.engine.jobs import policy
from supermax.engine.jobs.job import time_spent
from supermax.engine.processes.prestart import TAG
from supermax.engine.run.coordinator import Coordinator
from supermax.engine.storage.locations import find_location
from supermax.engine.storage.run_folder import TrialFolder
from supermax.engine.summary import Summary
from supermax.engine.trial.outcome import Outcome, Raised
from supermax.ui.display import status
from supermax.ui.display.plain import PlainDisplay
from tests import ROOT
from tests.conftest import eventually, ignoring
from tests.few import a_few

pytestmark = pytest.mark.usefixtures("quick")


def start_staged(
    url: str, marks: Path, n_trials: int, ignored: Sequence[int] = ()
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *ignoring(*ignored),
            *(sys.executable, "-m", "tests.engine.programs", "staged"),
            *(url, str(marks), str(n_trials)),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    (tmp_path / "marks").mkdir()
    return tmp_path / "marks"


@pytest.mark.slow
def test_running_trials_resume_after_sigkill_of_all_processes(url: str, marks: Path) -> None:
    first = start_staged(url, marks, 14)
    assert eventually(lambda: (marks / "12-1-1").exists() and (marks / "13-1-1").exists(), 30)
    pids = [json.loads(mark.read_text())["pid"] for mark in marks.iterdir()]
    for pid in {*pids, first.pid}:
        os.kill(pid, signal.SIGKILL)
    first.communicate()
    study = optuna.load_study(study_name="staged", storage=url)
    x_before = {trial.number: trial.params["x"] for trial in study.trials[12:]}
    drawn = {number: claimed_trial(study, number).relative_params() for number in x_before}
    assert [t.state for t in study.trials[12:]] == [TrialState.RUNNING] * 2

    (marks / "go").touch()
    second = start_staged(url, marks, 14)
    second.communicate(timeout=60)
    assert second.returncode == 0
    trials = optuna.load_study(study_name="staged", storage=url).trials
    assert len(trials) == 14
    for trial in trials[12:]:
        assert trial.state is TrialState.COMPLETE
        assert trial.params["x"] == x_before[trial.number]
        with_x = drawn[trial.number]
        assert with_x is not None
        assert trial.params["y"] == with_x["y"][1]  # drawn with x, asked for only now
        assert trial.value == trial.params["x"] + trial.params["y"]
        assert trial.user_attrs["supermax"]["attempts"] == 2
        # From the checkpoint on: step 0 and 1 are the first attempt's, 2 the second's.
        assert list(trial.intermediate_values) == [0, 1, 2]
        assert not (marks / f"{trial.number}-2-0").exists()
        assert (marks / f"{trial.number}-2-2").exists()


@pytest.mark.parametrize("signum", a_few([signal.SIGINT, signal.SIGTERM, signal.SIGHUP]))
def test_stop_signals_end_the_run_cleanly_and_the_trial_resumes(
    url: str, marks: Path, signum: signal.Signals
) -> None:
    first = start_staged(url, marks, 13)
    assert eventually((marks / "12-1-1").exists, 30)
    first.send_signal(signum)
    assert eventually((marks / "stopping").exists)
    (marks / "go").touch()  # lets the trial come to its next report, where it stops
    output, _ = first.communicate(timeout=30)
    if signum == signal.SIGINT:
        assert first.returncode == 0
        assert output.strip() == "interrupt"
    else:
        assert first.returncode == -signum  # it had its way, after all was safe
    study = optuna.load_study(study_name="staged", storage=url)
    assert study.trials[12].state is TrialState.RUNNING
    second = start_staged(url, marks, 13)
    second.communicate(timeout=60)
    assert second.returncode == 0
    trial = optuna.load_study(study_name="staged", storage=url).trials[12]
    assert trial.state is TrialState.COMPLETE
    assert "faults" not in trial.user_attrs["supermax"]  # a stop is no fault


@pytest.mark.slow
def test_signals_ignored_from_the_start_do_not_stop_the_run(url: str, marks: Path) -> None:
    """As under nohup, and behind a shell's &. An ignored SIGCHLD must not hide exit statuses."""
    ignored = (signal.SIGHUP, signal.SIGINT)
    program = start_staged(url, marks, 13, ignored=(*ignored, signal.SIGCHLD))
    assert eventually((marks / "12-1-1").exists, 30)
    for signum in ignored:
        program.send_signal(signum)
    (marks / "go").touch()
    assert program.communicate(timeout=60)[0].strip() == "None"  # nothing has stopped it
    assert program.returncode == 0
    assert not (marks / "stopping").exists()
    trial = optuna.load_study(study_name="staged", storage=url).trials[12]
    assert trial.state is TrialState.COMPLETE
    assert trial.user_attrs["supermax"]["attempts"] == 1


@pytest.mark.slow
def test_many_signals_do_not_interrupt_the_shutdown(url: str, marks: Path) -> None:
    program = start_staged(url, marks, 13)
    assert eventually((marks / "12-1-1").exists, 30)
    (marks / "go").touch()
    while program.poll() is None:
        program.send_signal(signal.SIGTERM)
    program.communicate()
    assert program.returncode == -signal.SIGTERM
    study = optuna.load_study(study_name="staged", storage=url)
    run_dir = find_location(study).run_dir
    assert status.find_status(run_dir, run_dir / "lock")[1] == status.ENDED


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once(url: str, marks: Path) -> None:
    program = start_staged(url, marks, 13)
    assert eventually((marks / "12-1-1").exists, 30)
    pid = json.loads((marks / "12-1-1").read_text())["pid"]
    program.send_signal(signal.SIGINT)
    # It never reports again by itself, so the first one alone would take 30 s.
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait(1.0)
    program.send_signal(signal.SIGINT)
    program.communicate(timeout=10)
    assert program.returncode != 0
    assert system.is_zombie(pid)


def claimed_trial(study: optuna.Study, number: int) -> TrialFolder:
    """Return what a killed run leaves: a RUNNING trial with its claim, and a folder."""
    return TrialFolder(find_location(study).run_dir / "trials" / f"{number:05d}")


def leave_running(study: optuna.Study) -> int:
    """Create a RUNNING trial as a killed run of this study leaves it."""
    supermax.optimize(study, lambda trial: 0.0, n_trials=1, progress=False)
    claim = study.trials[0].system_attrs[CLAIM]
    trial = study.ask()
    trial.suggest_float("x", -10, 10)
    study._storage.set_trial_system_attr(trial._trial_id, CLAIM, claim)
    return trial.number


def never(trial: Any) -> float:
    raise AssertionError("ran although its outcome was there")


def test_outcome_found_in_the_folder_is_stored(study: optuna.Study) -> None:
    number = leave_running(study)
    folder = claimed_trial(study, number)
    folder.append({"launch": 1})
    folder.write_outcome(Outcome(attempt=1, state="complete", values=(4.5,)))
    supermax.optimize(study, never, n_trials=2, progress=False)
    assert study.trials[number].value == 4.5
    assert "faults" not in study.trials[number].user_attrs["supermax"]


def test_a_fault_of_an_earlier_run_is_not_counted_in_this_one(study: optuna.Study) -> None:
    number = leave_running(study)
    folder = claimed_trial(study, number)
    folder.append({"launch": 1})
    raised = Raised("ValueError", "no such luck", "", "objective.py:1")
    folder.write_outcome(Outcome(attempt=1, state="raised", raised=raised))
    said = io.StringIO()
    summary = supermax.optimize(study, never, n_trials=2, progress=PlainDisplay(said))
    assert study.trials[number].state is TrialState.FAIL
    assert summary.faults == {}
    assert "(it had ended so in an earlier run)" in said.getvalue()
    assert "1 fault" not in said.getvalue()
    assert "faults: none" in said.getvalue()


def test_outcome_of_an_earlier_attempt_is_ignored(study: optuna.Study) -> None:
    number = leave_running(study)
    folder = claimed_trial(study, number)
    folder.append({"launch": 1})
    folder.write_outcome(Outcome(attempt=1, state="complete", values=(4.5,)))
    folder.append({"launch": 2})
    supermax.optimize(study, lambda trial: float(trial.attempt), n_trials=2, progress=False)
    assert study.trials[number].value == 3.0


def test_torn_files_are_ignored(study: optuna.Study) -> None:
    number = leave_running(study)
    folder = claimed_trial(study, number)
    folder.append({"launch": 1})
    with (folder.path / "ledger.jsonl").open("a") as file:
        file.write('{"launch": 2, "ce')
    (folder.path / "outcome.json").write_text('{"attempt": 1, "sta')
    supermax.optimize(study, lambda trial: float(trial.attempt), n_trials=2, progress=False)
    assert study.trials[number].value == 2.0


def test_trial_that_crashes_the_host_is_not_retried_without_end(study: optuna.Study) -> None:
    number = leave_running(study)
    folder = claimed_trial(study, number)
    for attempt in range(1, 21):
        folder.append({"launch": attempt})
    supermax.optimize(study, never, n_trials=2, progress=False)
    trial = study.trials[number]
    assert trial.state is TrialState.FAIL
    assert trial.user_attrs["supermax"]["faults"][-1]["kind"] == "coordinator lost"


def test_running_trials_of_other_programs_are_reported_and_not_touched(
    study: optuna.Study,
) -> None:
    foreign = study.ask()
    seen: list[events.Event] = []
    supermax.optimize(study, lambda trial: 1.0, n_trials=2, progress=seen.append)
    notices = [event.text for event in seen if isinstance(event, events.Notice)]
    assert any(f"({foreign.number})" in text and "study.tell" in text for text in notices)
    assert study.trials[foreign.number].state is TrialState.RUNNING
    assert len(study.trials) == 3


def test_n_trials_counts_all_finished_trials(study: optuna.Study) -> None:
    for target, told in ((3, 3), (5, 2), (5, 0), (2, 0), (0, 0)):
        summary = supermax.optimize(study, lambda trial: 1.0, n_trials=target, progress=False)
        assert summary.told == told
    assert len(study.trials) == 5


def run_out_of_time(study: optuna.Study, objective: Any) -> Summary:
    """Run until a timeout that leaves a trial time to begin, on this machine."""
    for timeout in (1.5, 6.0, 24.0, 96.0):
        summary = supermax.optimize(study, objective, 1, timeout=timeout, progress=False)
        if summary.trials["RUNNING"]:
            break
    return summary


@pytest.mark.slow
def test_run_timeout_pauses_running_trials(study: optuna.Study) -> None:
    def objective(trial: Any) -> float:
        if trial.attempt == 1:
            for step in itertools.count():
                trial.report(0.0, step)
                trial.checkpoint_dir.joinpath("seen").write_text(str(step))
        return 1.0

    paused = run_out_of_time(study, objective)
    assert paused.stopped_by == "timeout"
    assert paused.trials["RUNNING"] == 1
    assert paused.faults == {}
    done = supermax.optimize(study, objective, n_trials=1, progress=False)
    assert done.trials["COMPLETE"] == 1
    # The second attempt reported nothing, and the first one's curve is all there is.
    assert study.trials[0].user_attrs["supermax"]["attempts"] == 2


@pytest.mark.slow
def test_duration_of_a_trial_includes_all_attempts(study: optuna.Study) -> None:
    def objective(trial: Any) -> float:
        if trial.attempt == 1:
            while True:
                time.sleep(0.01)
        if trial.attempt == 2:
            time.sleep(0.6)
            os.abort()
        return 1.0

    run_out_of_time(study, objective)
    seen: list[events.Event] = []
    supermax.optimize(study, objective, n_trials=1, progress=seen.append)
    kept = study.trials[0].user_attrs["supermax"]
    [finished] = [event for event in seen if isinstance(event, events.TrialFinished)]
    assert kept["spent"] > kept["seconds"] + 0.6
    assert finished.seconds == pytest.approx(kept["spent"], abs=0.01)


def test_time_between_two_runs_is_not_counted() -> None:
    """The next run writes the fault of a killed one, possibly days later."""
    ledger = [
        {"launch": 1, "at": 0.0},
        {"fault": {}, "attempt": 1, "again": True, "seconds": 0.0, "at": 200_000.0},
        {"launch": 2, "at": 200_001.0},
        {"stopped": 2, "at": 200_061.0},
        {"launch": 3, "at": 300_000.0},
        {"fault": {}, "attempt": 3, "again": True, "seconds": 7.0, "at": 300_007.0},
        {"launch": 4, "at": 300_008.0},
        {"fault": {}, "attempt": 4, "again": False, "seconds": 9.0, "at": 300_017.0},
    ]
    assert time_spent(ledger) == pytest.approx(67.0)


class SlowToLoad:
    """Objective with slow imports."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __setstate__(self, fields: dict[str, Any]) -> None:
        vars(self).update(fields)
        time.sleep(self.seconds)

    def __call__(self, trial: Any) -> float:
        return 1.0


class KilledWhileLoading:
    """Objective whose process is killed a given number of times while it loads."""

    def __init__(self, place: Path, times: int) -> None:
        self.place, self.times = place, times

    def __setstate__(self, fields: dict[str, Any]) -> None:
        vars(self).update(fields)
        with self.place.open("a") as file:
            file.write("x")
        if self.place.stat().st_size <= self.times:
            os.kill(os.getpid(), signal.SIGKILL)

    def __call__(self, trial: Any) -> float:
        return 1.0


def test_a_kill_while_the_objective_is_loaded_does_not_end_the_run(
    study: optuna.Study, tmp_path: Path
) -> None:
    done = supermax.optimize(study, KilledWhileLoading(tmp_path / "a", 2), 1, progress=False)
    assert done.finished == 1
    with pytest.raises(supermax.EnvironmentFault, match=r"died 3 time.* while it loaded"):
        supermax.optimize(study, KilledWhileLoading(tmp_path / "b", 9), 2, progress=False)


@pytest.mark.slow
def test_a_run_timeout_counts_from_when_the_first_cell_is_ready(study: optuna.Study) -> None:
    objective = SlowToLoad(8.0)
    done = supermax.optimize(study, objective, n_trials=1, timeout=7.0, progress=False)
    assert done.finished == 1
    assert done.stopped_by is None


def test_a_deadline_counts_the_start_too(study: optuna.Study) -> None:
    deadline = time.monotonic() + 0.5
    paused = supermax.optimize(
        study, SlowToLoad(3.0), n_trials=1, deadline=deadline, progress=False
    )
    assert paused.stopped_by == "timeout"
    assert paused.finished == 0


@pytest.mark.slow
def test_trial_that_never_reports_gets_sigterm_when_the_run_stops(study: optuna.Study) -> None:
    def objective(trial: Any) -> float:
        if trial.attempt == 1:
            while True:
                pass
        return 1.0

    paused = run_out_of_time(study, objective)
    assert paused.stopped_by == "timeout"
    assert paused.trials["RUNNING"] == 1
    assert supermax.optimize(study, objective, n_trials=1, progress=False).finished == 1


def test_intermediate_values_are_those_of_the_last_attempt(study: optuna.Study) -> None:
    def objective(trial: Any) -> float:
        steps = 5 if trial.attempt == 1 else 2
        for step in range(steps):
            trial.report(trial.attempt * 100 + step, step)
        if trial.attempt == 1:
            os.abort()
        return 0.0

    supermax.optimize(study, objective, n_trials=1, progress=False)
    assert study.trials[0].intermediate_values == {0: 200.0, 1: 201.0}


def test_failed_trials_run_again_under_new_numbers(study: optuna.Study, tmp_path: Path) -> None:
    flag = tmp_path / "fixed"

    def objective(trial: Any) -> float:
        x = trial.suggest_float("x", -10, 10)
        if trial.number % 2 and not flag.exists():
            raise ValueError("a bug")
        return x

    supermax.optimize(study, objective, n_trials=4, progress=False)
    failed = [t for t in study.trials if t.state is TrialState.FAIL]
    assert [t.number for t in failed] == [1, 3]
    flag.touch()
    assert supermax.retry(study) == [1, 3]
    assert supermax.retry(study) == []
    supermax.optimize(study, objective, n_trials=6, progress=False)
    for old, new in zip(failed, study.trials[4:], strict=True):
        assert new.state is TrialState.COMPLETE
        assert new.params == old.params
        assert new.user_attrs["supermax"]["repeats"] == old.number


def test_a_run_halts_when_the_first_trials_all_fail_alike(study: optuna.Study) -> None:
    def objective(trial: Any) -> float:
        raise KeyError("learning_rate")

    with pytest.raises(supermax.RunHalted, match="first 3 trials") as halted:
        supermax.optimize(study, objective, n_trials=100, progress=False)
    assert "KeyError: 'learning_rate'" in str(halted.value)
    assert [t.state for t in study.trials] == [TrialState.FAIL] * 3


def test_processes_of_a_killed_run_are_killed_at_the_next_start(study: optuna.Study) -> None:
    """Here one outside the session that has outlived fork server and coordinator."""
    supermax.optimize(study, lambda trial: 1.0, n_trials=1, progress=False)
    claim = study.trials[0].system_attrs[CLAIM]
    stray = subprocess.Popen(
        ["sleep", "600"], env={**os.environ, TAG: claim}, start_new_session=True
    )
    supermax.optimize(study, lambda trial: 1.0, n_trials=2, progress=False)
    assert stray.wait(5) == -signal.SIGKILL


def test_retry_whose_pause_ends_between_two_looks_at_the_clock(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run must not wait for an event that never comes."""
    monkeypatch.setattr(policy, "_BACK_OFF", 0.7)
    compute = Coordinator.next_deadline

    def late(coordinator: Coordinator) -> float | None:
        if coordinator.trials.waiting and coordinator.pool.has_idle:
            pause = coordinator.trials.waiting[0].not_before - time.monotonic()
            time.sleep(max(0.0, pause) + 0.01)
        return compute(coordinator)

    def crash_once(trial: Any) -> float:
        if trial.attempt == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        return 1.0

    monkeypatch.setattr(Coordinator, "next_deadline", late)
    assert supermax.optimize(study, crash_once, 1, timeout=15, progress=False).finished == 1
