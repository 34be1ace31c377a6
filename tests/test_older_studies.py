"""A study written by version 0.1.0 before the package was reorganised: it opens, resumes, reports.

The archive holds a SQLite database, its run folder and an encoder with 12,000 weights. Two trials
are complete. The third lost its coordinator (kill -9), went on, and was paused with a checkpoint.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import optuna
import pytest

from tests import ROOT
from tests.ui.cli.helping import sm

ARCHIVE = ROOT / "tests" / "assets" / "study-0.1.tar.gz"
SEARCH = [
    *("criteria", "--models", "encoder", "--preset", "demo", "--epochs", "60"),
    *("--patience", "60", "--set", "data.posts=80", "--workers", "1", "--no-supervisor"),
]


@pytest.fixture(autouse=True)
def older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "supermax.db.supermax" / "criteria"


def trials() -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name="criteria", storage="sqlite:///supermax.db").trials


def test_an_older_study_is_shown(tmp_path: Path) -> None:
    assert "2/4 finished" in sm("status", "criteria")
    assert "0.48485" in sm("best", "criteria")
    assert "coordinator lost" in sm("faults", "criteria")
    sm("report", "criteria")
    assert "0.4848" in (tmp_path / "report.html").read_text()


@pytest.mark.usefixtures("quick", "preloaded")
def test_an_older_trial_goes_on_from_its_checkpoint(older: Path) -> None:
    before = trials()
    sm("tune", *SEARCH, "--trials", "3")
    after = trials()
    assert [trial.state.name for trial in after] == ["COMPLETE"] * 3
    assert [trial.values for trial in after[:2]] == [trial.values for trial in before[:2]]
    assert after[2].params == before[2].params
    lines = (older / "trials" / "00002" / "curve.jsonl").read_text().splitlines()
    steps = [step for attempt, step, _ in map(json.loads, lines) if attempt == 3]
    assert steps == [59, 60]  # the second attempt had reported 58 epochs
