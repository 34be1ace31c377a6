"""Random SIGKILLs to processes of a run must not affect the study."""

from __future__ import annotations

import contextlib
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import optuna
import psutil
import pytest
from optuna.trial import TrialState

from tests import ROOT
from tests.conftest import engine_processes, eventually
from tests.engine.programs import loss_after, value_of


def start(url: str, n_trials: int, program: str = "chaos") -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.engine.programs", program, url, str(n_trials)], cwd=ROOT
    )


def kin() -> list[psutil.Process]:
    """Return the fork server and the cells, and those left by an earlier run."""
    found = []
    for pid in engine_processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


IN_A_ROW = 3
"""Kills with no trial between them."""


def finished(url: str) -> int:
    return counted(url, "SELECT count(*) FROM trial_values")


def three_reports(url: str) -> int:
    """Return how many times three reports were stored: paused trials finish at the end."""
    return counted(url, "SELECT count(*) FROM trial_intermediate_values") // 3


def counted(url: str, query: str) -> int:
    path = url.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        return int(database.execute(query).fetchone()[0])


def run_under_fire(
    url: str,
    n_trials: int,
    seed: int,
    longest: float,
    mercy: tuple[int, ...] = (0, 0, 1, 2, 5),
    name: str = "chaos",
    done: Callable[[str], int] = finished,
) -> dict[str, int]:
    """Run to the target while processes are killed at random, and restart the coordinator whenever
    it dies. Return the number of kills by role.

    Between two kills a random number of trials from `mercy` finishes (as counted by `done`), also
    on a slow machine. After several kills in a row without a trial one finishes: a run ends after
    five cells in a row that do not start.
    """
    dice = random.Random(seed)
    killed = {"coordinator": 0, "cell or fork server": 0}
    deadline = time.monotonic() + longest
    program = start(url, n_trials, name)
    target, in_a_row = 1, 0
    try:
        while program.poll() != 0:
            assert time.monotonic() < deadline, f"not done in {longest} s; killed {killed}"
            time.sleep(dice.uniform(0.005, 0.05))
            if program.poll() not in (None, 0):
                assert program.returncode == -signal.SIGKILL
                program = start(url, n_trials, name)
            with contextlib.suppress(sqlite3.Error):  # not there yet
                if done(url) < target:
                    continue
            others = kin()
            if len(others) < 2:
                continue
            if sum(killed.values()) == 2 or dice.random() < 0.1:  # the third always
                program.kill()
                killed["coordinator"] += program.wait() == -signal.SIGKILL
            else:
                with contextlib.suppress(psutil.NoSuchProcess):
                    dice.choice(others).kill()
                    killed["cell or fork server"] += 1
            pardoned = dice.choice(mercy)
            in_a_row = in_a_row + 1 if pardoned == 0 else 0
            if in_a_row == IN_A_ROW:
                pardoned, in_a_row = 1, 0
            target = done(url) + pardoned
    finally:
        program.kill()
        program.wait()
    return killed


def check_nothing_shows(url: str, n_trials: int) -> None:
    study = optuna.load_study(study_name="chaos", storage=url)
    trials = study.trials
    assert [trial.number for trial in trials] == list(range(n_trials))
    for trial in trials:
        assert trial.state is TrialState.COMPLETE
        assert trial.value == value_of(**trial.params)
        curve = [value_of(**trial.params) + 3 - step for step in range(3)]
        assert list(trial.intermediate_values.values()) == curve


@pytest.mark.parametrize(
    ("n_trials", "least"),
    [
        pytest.param(25, (1, 4), marks=pytest.mark.slow),
        pytest.param(200, (3, 10), marks=pytest.mark.slow),
    ],
)
def test_every_trial_is_stored_once_with_its_value(
    url: str, n_trials: int, least: tuple[int, int]
) -> None:
    killed = run_under_fire(url, n_trials, seed=7, longest=400)
    assert killed["coordinator"] >= least[0]
    assert killed["cell or fork server"] >= least[1]
    check_nothing_shows(url, n_trials)


@pytest.mark.parametrize(
    ("n_trials", "least"), [(14, (1, 2)), pytest.param(200, (3, 10), marks=pytest.mark.slow)]
)
def test_paused_trials_survive(
    url: str, n_trials: int, least: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACE", "0.005")
    killed = run_under_fire(
        url, n_trials, seed=7, longest=400, name="promotion", done=three_reports
    )
    assert killed["coordinator"] >= least[0]
    assert killed["cell or fork server"] >= least[1]
    trials = optuna.load_study(study_name="chaos", storage=url).trials
    assert [trial.number for trial in trials] == list(range(n_trials))
    for trial in trials:
        losses = [loss_after(trial.params["x"], epoch) for epoch in range(1, 10)]
        seen = list(trial.intermediate_values.values())
        assert seen == losses[: len(seen)]
        assert trial.state is (TrialState.COMPLETE if len(seen) == 9 else TrialState.PRUNED)
    assert sum(trial.state is TrialState.COMPLETE for trial in trials) >= n_trials // 9
    best = min(loss_after(trial.params["x"], 9) for trial in trials)
    assert min(trial.value for trial in trials if trial.value is not None) == best


@pytest.mark.chaos_long
@pytest.mark.parametrize("seed", range(4))
def test_every_trial_is_stored_once_after_many_kills(url: str, seed: int) -> None:
    run_under_fire(url, n_trials=1000, seed=seed, longest=1800, mercy=(0, 1, 5, 10, 20))
    check_nothing_shows(url, 1000)


def test_killing_the_coordinator_ends_all_processes(tmp_path: Path, url: str) -> None:
    program = start(url, 100_000)
    try:
        assert eventually(lambda: len(kin()) >= 3)
        program.kill()
        program.wait()
        assert eventually(lambda: not kin(), within=5.0)
    finally:
        program.kill()
        program.wait()
