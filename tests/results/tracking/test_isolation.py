"""A tracker that hangs, crashes, raises at import or fills the disk affects no trial."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import create_trial

import supermax
from supermax.errors import UserError
from supermax.results.tracking import check_trackers, tracked
from supermax.results.tracking.kinds import KINDS, shown_tracker, split_kind
from tests.conftest import eventually
from tests.few import quick_are

pytestmark = pytest.mark.usefixtures("engine_preloaded")
CRASHES = {
    "hangs": ("import time\nwhile True: time.sleep(1)", "has not responded for"),
    "segfault": (
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        "died 2 times (signal SIGSEGV)",
    ),
    "exits": ("import os; os._exit(7)", "died 2 times (exit code 7)"),
    "raises": ("raise RuntimeError('no such symbol')", "RuntimeError: no such symbol"),
    "system exit": ("import sys; sys.exit('no')", "died 2 times (exit code 1)"),
}


@pytest.fixture
def broken(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Install a wandb that misbehaves at import. Returns the words of the message."""
    code, words = CRASHES[request.param]
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "wandb.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    monkeypatch.setattr("supermax.results.tracking.process._PAUSES", (0.01, 30.0))
    if request.param == "hangs":
        monkeypatch.setattr("supermax.results.tracking.process._SILENT", 4.0)
    return words


def objective(trial: Any) -> float:
    trial.report(0.5, 0)
    return float(trial.suggest_float("x", 0, 1))


@pytest.mark.parametrize("broken", quick_are(["raises", "segfault"], CRASHES), indirect=True)
def test_a_broken_tracker_does_not_affect_the_run(
    broken: str, study: optuna.Study, quick: None
) -> None:
    told: list[str] = []
    imported = "wandb" in sys.modules
    with tracked(study, "wandb", patience=0.5, tell=told.append):
        summary = supermax.optimize(study, objective, 3, progress=False, reuse_cells=True)
        assert eventually(lambda: bool(told), within=60)
        ending = time.monotonic()
    assert time.monotonic() - ending < 10
    assert ("wandb" in sys.modules) == imported
    assert summary.trials["COMPLETE"] == 3
    assert (summary.retries, summary.faults, summary.stopped_by) == (0, {}, None)
    assert broken in told[0]
    assert len([text for text in told if "The run is not affected" in text]) == 1
    assert "3 trials are not in Weights & Biases yet" in told[-1]


HANGS_ONCE = """
import pathlib, time
place = pathlib.Path(__file__).with_name("hung")
if not place.exists():
    place.touch()
    time.sleep(1000)
raise RuntimeError("second start")
"""


@pytest.mark.slow
def test_a_tracker_that_hangs_is_started_again(
    study: optuna.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb.py").write_text(HANGS_ONCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("supermax.results.tracking.process._SILENT", 15.0)
    monkeypatch.setattr("supermax.results.tracking.process._HUNG", 20.0)
    study.add_trial(create_trial(value=1.0))
    told: list[str] = []
    with tracked(study, "wandb", patience=0, tell=told.append) as tracker:
        first = tracker.pid
        assert eventually(lambda: "second start" in str(tracker.standing.trouble), within=120)
        assert tracker.pid != first
    assert "has not responded for" in told[0]


def test_a_folder_that_cannot_be_written_does_not_affect_the_run(
    study: optuna.Study, quick: None, tmp_path: Path
) -> None:
    """The record of what was sent, too: its folder is a file."""
    pytest.importorskip("mlflow")
    (tmp_path / "study.db.supermax" / "test").mkdir(parents=True)
    (tmp_path / "study.db.supermax" / "test" / "tracking").touch()
    told: list[str] = []
    with tracked(study, tell=told.append):
        summary = supermax.optimize(study, objective, 2, progress=False)
    assert summary.trials["COMPLETE"] == 2
    assert "tracking, which records what was sent to trackers, cannot be created" in told[0]


def test_a_missing_package_is_named_before_the_first_trial(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for kind, about in KINDS.items():
        with pytest.raises(UserError) as raised:
            supermax.optimize(study, objective, 1, track=[kind], progress=False)
        words = f"{about.title} is not installed: pip install 'supermax[{kind}]'"
        assert str(raised.value) == words
    assert len(study.trials) == 0


def test_values_of_track() -> None:
    assert split_kind("mlflow") == ("mlflow", None)
    assert split_kind("tensorboard:logs/x") == ("tensorboard", "logs/x")
    assert split_kind("wandb:team/notes") == ("wandb", "team/notes")
    assert split_kind("mlflow:http://localhost:5000") == ("mlflow", "http://localhost:5000")
    for former in ("http://localhost:5000", "sqlite:///m.db", "m.db", "./wandb.db", "databricks"):
        assert split_kind(former) == ("mlflow", former)
    assert shown_tracker("mlflow:http://me:pw@host/x") == "http://***@host/x"
    assert shown_tracker("wandb:team/notes") == "wandb:team/notes"
    with pytest.raises(UserError, match="did you mean tensorboard"):
        split_kind("tensorbord")
    with pytest.raises(UserError, match="twice"):
        check_trackers(["mlflow", "mlflow"])
