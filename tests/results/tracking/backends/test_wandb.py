"""W&B without an account: offline runs that are read back, and what happens without a login."""

from __future__ import annotations

import importlib.util
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import optuna
import pytest

import supermax
from supermax.engine.storage.locations import find_location
from supermax.errors import UserError
from supermax.results.tracking import tracked
from supermax.results.tracking.backends.wandb import OFFLINE, SETTINGS, wandb_destination
from tests.conftest import eventually
from tests.results.tracking.backends.test_tensorboard import filled
from tests.results.tracking.reading import WandbRun, read_wandb_run

pytest.importorskip("wandb")


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))  # no login
    monkeypatch.delenv("NETRC", raising=False)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")


def runs_in(folder: Path) -> dict[str, WandbRun]:
    """Return offline runs by trial; fail on a trial with two runs."""
    runs = [read_wandb_run(path) for path in folder.glob("wandb/offline-run-*")]
    names = Counter(str(run.config.get("supermax.trial", "study")) for run in runs)
    assert set(names.values()) <= {1}, names
    return {str(run.config.get("supermax.trial", "study")): run for run in runs}


def curve(run: WandbRun) -> list[tuple[int, float]]:
    return [(row["step"], row["curve/value"]) for row in run.rows]


@pytest.mark.slow
def test_offline_runs_are_complete_and_written_once(
    study: optuna.Study, tmp_path: Path, offline: None
) -> None:
    with tracked(study, "wandb", patience=120) as tracker:
        filled(study)
    assert (tracker.unsent(), tracker.standing.trouble) == (0, None)
    with tracked(study, "wandb", patience=120):  # nothing to send
        pass
    runs = runs_in(tmp_path)
    assert set(runs) == {"0", "1", "2", "study"}
    for number in range(3):
        run = runs[str(number)]
        assert curve(run) == [(step, number + step / 10) for step in range(3)]
        assert (run.config["x"], run.config["kind"]) == (0.5, "a")
        assert (run.group, run.project) == ("test", "test")
        assert run.exit_code == (1 if number == 1 else 0)
    assert runs["0"].summary["value"] == 0.0
    assert runs["2"].config["supermax.state"] == "PRUNED"
    assert runs["study"].config["supermax.best.trial"] == "0"


def slow_objective(trial: Any) -> float:
    x = float(trial.suggest_float("x", 0, 1))
    for step in range(4):
        trial.report(step / 10, step)
        time.sleep(0.3)
    if trial.number == 0 and trial.attempt == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    return x


@pytest.mark.slow
def test_a_killed_tracker_and_a_retried_trial_leave_one_run_each(
    study: optuna.Study,
    tmp_path: Path,
    offline: None,
    quick: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("supermax.results.tracking.process._PAUSES", (0.01,) * 10)
    with tracked(study, "wandb", patience=200) as tracker:

        def kill(study: optuna.Study, trial: Any) -> None:
            if trial.number in (0, 2) and (pid := tracker.pid) is not None:
                assert eventually(lambda: bool(list(tmp_path.glob("wandb/*/*.wandb"))), within=60)
                os.kill(pid, signal.SIGKILL)

        summary = supermax.optimize(study, slow_objective, 4, progress=False, callbacks=[kill])
    assert summary.trials["COMPLETE"] == 4
    assert tracker.unsent() == 0
    runs = runs_in(tmp_path)
    assert set(runs) == {"0", "1", "2", "3", "study"}
    for number in range(4):
        assert curve(runs[str(number)]) == [(step, step / 10) for step in range(4)]
        assert runs[str(number)].exit_code == 0
    assert runs["0"].summary["run/attempts"] == 2


@pytest.mark.slow
def test_without_a_login_the_message_says_what_to_do_and_doing_it_works(
    study: optuna.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(study)
    told: list[str] = []
    with tracked(study, "wandb", patience=120, tell=told.append) as tracker:
        assert eventually(lambda: bool(told), within=120)
        tracker.stop(0)
    assert "Weights & Biases: no login. Run `wandb login`, or set WANDB_MODE=offline" in told[0]
    assert "The run is not affected" in told[0]
    assert len([text for text in told if "The run is not affected" in text]) == 1
    assert "supermax track test --storage" in told[-1]
    assert "--uri wandb" in told[-1]
    words = shlex.split(told[-1].partition("or run: supermax ")[2])
    done = subprocess.run(
        [sys.executable, "-m", "supermax", *words],
        env={**os.environ, "WANDB_MODE": "offline"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"3 trials of 'test' sent to {tmp_path / 'wandb'}." in done.stdout
    assert set(runs_in(tmp_path)) == {"0", "1", "2", "study"}


def test_projects(study: optuna.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = find_location(study)
    assert wandb_destination("team/notes", home).track == "wandb:team/notes"
    assert wandb_destination(None, home).track == "wandb"
    assert wandb_destination(None, home).file == tmp_path
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    assert wandb_destination(None, home).uri == "mine"
    with pytest.raises(UserError, match="write wandb:ENTITY/PROJECT"):
        wandb_destination("a/b/c", home)


def test_wandb_knows_the_settings() -> None:
    """Error reports above all: a setting of another name would switch nothing off."""
    spec = importlib.util.find_spec("wandb")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    named = (package / "env.py").read_text() + (package / "sdk" / "wandb_settings.py").read_text()
    for name in SETTINGS:
        field = name.replace("WANDB__", "WANDB_X_").removeprefix("WANDB_").lower()
        assert f'"{name}"' in named or f"    {field}:" in named, name
    for mode in OFFLINE:
        assert f'"{mode}"' in named
