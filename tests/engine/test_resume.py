"""Kill everything, call again: nothing finished is lost and running trials go on."""

from __future__ import annotations

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
from supermax.display import status
from supermax.engine import events, kernel
from supermax.engine.folder import TrialFolder
from supermax.engine.home import find_home
from supermax.engine.job import time_spent
from supermax.engine.outcome import Outcome
from supermax.engine.standby import TAG
from supermax.engine.summary import Summary
from supermax.naming import CLAIM
from tests.conftest import eventually, ignoring
from tests.few import a_few

pytestmark = pytest.mark.usefixtures("quick")
ROOT = Path(__file__).parent.parent.parent


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


def test_running_trials_go_on_after_kill_9_of_everything(url: str, marks: Path) -> None:
    first = start_staged(url, marks, 14)
    assert eventually(lambda: (marks / "12-1-1").exists() and (marks / "13-1-1").exists(), 30)
    pids = [json.loads(mark.read_text())["pid"] for mark in marks.iterdir()]
    for pid in {*pids, first.pid}:
        os.kill(pid, signal.SIGKILL)
    first.communicate()
    study = optuna.load_study(study_name="staged", storage=url)
    x_before = {trial.number: trial.params["x"] for trial in study.trials[12:]}
    drawn = {number: claimed_trial(study, number).drawn() for number in x_before}
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
def test_ctrl_c_term_and_a_hang_up_end_cleanly_and_the_trial_goes_on(
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


def test_what_is_ignored_from_the_start_stops_nothing(url: str, marks: Path) -> None:
    """Under nohup, and behind a shell's &. An ignored SIGCHLD must not hide how cells end."""
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


def test_a_storm_of_signals_does_not_cut_the_end_short(url: str, marks: Path) -> None:
    program = start_staged(url, marks, 13)
    assert eventually((marks / "12-1-1").exists, 30)
    (marks / "go").touch()
    while program.poll() is None:
        program.send_signal(signal.SIGTERM)
    program.communicate()
    assert program.returncode == -signal.SIGTERM
    study = optuna.load_study(study_name="staged", storage=url)
    run_dir = find_home(study).run_dir
    assert status.look(run_dir, run_dir / "lock")[1] == status.ENDED


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
    assert kernel.is_zombie(pid)


def claimed_trial(study: optuna.Study, number: int) -> TrialFolder:
    """What a killed run leaves behind: a RUNNING trial with its claim, and a folder."""
    return TrialFolder(find_home(study).run_dir / "trials" / f"{number:05d}")


def leave_running(study: optuna.Study) -> int:
    """Make a RUNNING trial that looks like this study's own run left it."""
    supermax.optimize(study, lambda trial: 0.0, n_trials=1, progress=False)
    claim = study.trials[0].system_attrs[CLAIM]
    trial = study.ask()
    trial.suggest_float("x", -10, 10)
    study._storage.set_trial_system_attr(trial._trial_id, CLAIM, claim)
    return trial.number


def never(trial: Any) -> float:
    raise AssertionError("ran although its outcome was there")


def test_an_outcome_found_in_the_folder_is_told(study: optuna.Study) -> None:
    number = leave_running(study)
    folder = claimed_trial(study, number)
    folder.append({"launch": 1})
    folder.write_outcome(Outcome(attempt=1, state="complete", values=(4.5,)))
    supermax.optimize(study, never, n_trials=2, progress=False)
    assert study.trials[number].value == 4.5
    assert "faults" not in study.trials[number].user_attrs["supermax"]


def test_an_outcome_of_an_older_attempt_does_not_count(study: optuna.Study) -> None:
    number = leave_running(study)
    folder = claimed_trial(study, number)
    folder.append({"launch": 1})
    folder.write_outcome(Outcome(attempt=1, state="complete", values=(4.5,)))
    folder.append({"launch": 2})
    supermax.optimize(study, lambda trial: float(trial.attempt), n_trials=2, progress=False)
    assert study.trials[number].value == 3.0


def test_torn_files_are_as_good_as_none(study: optuna.Study) -> None:
    number = leave_running(study)
    folder = claimed_trial(study, number)
    folder.append({"launch": 1})
    with (folder.path / "ledger.jsonl").open("a") as file:
        file.write('{"launch": 2, "ce')
    (folder.path / "outcome.json").write_text('{"attempt": 1, "sta')
    supermax.optimize(study, lambda trial: float(trial.attempt), n_trials=2, progress=False)
    assert study.trials[number].value == 2.0


def test_a_trial_that_takes_the_host_down_is_not_tried_for_ever(study: optuna.Study) -> None:
    number = leave_running(study)
    folder = claimed_trial(study, number)
    for attempt in range(1, 21):
        folder.append({"launch": attempt})
    supermax.optimize(study, never, n_trials=2, progress=False)
    trial = study.trials[number]
    assert trial.state is TrialState.FAIL
    assert trial.user_attrs["supermax"]["faults"][-1]["kind"] == "coordinator lost"


def test_trials_that_others_left_running_are_reported_and_left_alone(study: optuna.Study) -> None:
    foreign = study.ask()
    seen: list[events.Event] = []
    supermax.optimize(study, lambda trial: 1.0, n_trials=2, progress=seen.append)
    notices = [event.text for event in seen if isinstance(event, events.Notice)]
    assert any(f"({foreign.number})" in text and "study.tell" in text for text in notices)
    assert study.trials[foreign.number].state is TrialState.RUNNING
    assert len(study.trials) == 3


def test_n_trials_is_in_all(study: optuna.Study) -> None:
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


def test_a_run_timeout_pauses_what_runs(study: optuna.Study) -> None:
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


def test_the_time_of_a_trial_is_that_of_all_its_attempts(study: optuna.Study) -> None:
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


def test_the_time_between_two_runs_is_nobodys() -> None:
    """The fault of a run that was killed is written by the next one, days later."""
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
    """An objective whose imports take a while."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __setstate__(self, fields: dict[str, Any]) -> None:
        vars(self).update(fields)
        time.sleep(self.seconds)

    def __call__(self, trial: Any) -> float:
        return 1.0


class KilledWhileLoading:
    """An objective whose process is killed from outside while it loads, so many times."""

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
    with pytest.raises(supermax.EnvironmentFault, match=r"ended 3 time.* while it loaded"):
        supermax.optimize(study, KilledWhileLoading(tmp_path / "b", 9), 2, progress=False)


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


def test_a_trial_that_never_reports_gets_term_when_the_run_stops(study: optuna.Study) -> None:
    def objective(trial: Any) -> float:
        if trial.attempt == 1:
            while True:
                pass
        return 1.0

    paused = run_out_of_time(study, objective)
    assert paused.stopped_by == "timeout"
    assert paused.trials["RUNNING"] == 1
    assert supermax.optimize(study, objective, n_trials=1, progress=False).finished == 1


def test_the_curve_is_that_of_the_attempt_that_counted(study: optuna.Study) -> None:
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


def test_processes_of_a_killed_run_are_swept_at_the_next_start(study: optuna.Study) -> None:
    """One that left its session and outlived keeper and coordinator alike."""
    supermax.optimize(study, lambda trial: 1.0, n_trials=1, progress=False)
    claim = study.trials[0].system_attrs[CLAIM]
    stray = subprocess.Popen(
        ["sleep", "600"], env={**os.environ, TAG: claim}, start_new_session=True
    )
    supermax.optimize(study, lambda trial: 1.0, n_trials=2, progress=False)
    assert stray.wait(5) == -signal.SIGKILL
