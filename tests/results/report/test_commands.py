"""`supermax report` and `supermax dashboard`, from a terminal."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import optuna
import pytest
from typer.testing import CliRunner

from supermax import SupermaxError
from supermax.ui.cli import app


@pytest.fixture
def db(tmp_path: Path) -> str:
    path = tmp_path / "s.db"
    study = optuna.create_study(storage=f"sqlite:///{path}", study_name="criteria")
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
    return str(path)


def run(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    if isinstance(done.exception, SupermaxError):
        return str(done.exception)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_report(db: str, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    said = run("report", "criteria", "-o", str(target), "--storage", db)
    assert "The report of 'criteria' is in" in said
    assert "criteria" in target.read_text(encoding="utf-8")


def test_wrong_targets_are_user_errors(db: str, tmp_path: Path) -> None:
    out = str(tmp_path / "r.html")
    assert "did you mean 'criteria'?" in run("report", "criterai", "-o", out, "--storage", db)
    assert "There is no file" in run("report", "criteria", "-o", out, "--storage", "nowhere.db")
    assert "is not a report" in run("report", "criteria", "-o", db, "--storage", db)
    assert "is a folder" in run("report", "criteria", "-o", str(tmp_path), "--storage", db)
    assert "did you mean 'criteria'?" in run("dashboard", "criterai", "--storage", db)
    assert "from 0 to 65535" in run("dashboard", "--storage", db, "--port", "99999")


@pytest.mark.slow
def test_the_dashboard_serves_until_ctrl_c(db: str) -> None:
    command = [sys.executable, "-c", "from supermax.ui.cli import main; main()", "dashboard"]
    process = subprocess.Popen(
        [*command, "criteria", "--storage", db, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "Ctrl-C" in line:
            break
    (report,) = [line.split(": ")[-1].strip() for line in lines if line.startswith("Report of")]
    assert any("only be read" in line for line in lines)
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with browser.open(report, timeout=60) as answer:
        assert b"criteria" in answer.read()
        assert "token" not in answer.url
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(report.partition("?")[0], timeout=60)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Stopped." in rest
    assert "Traceback" not in errors
