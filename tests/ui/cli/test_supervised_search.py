"""A real search whose run is killed repeatedly, paused and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from supermax.ui.display.status import read
from tests.conftest import eventually
from tests.ui.cli.helping import sm

SMALL = ("--set", "epochs=2", "--set", "seed=1", "--set", "name=supervised")


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "supermax", "tune", "notes.yaml", *SMALL, *more],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def run_of(supervisor: subprocess.Popen[str]) -> psutil.Process | None:
    children = psutil.Process(supervisor.pid).children()
    return children[0] if children else None


def finished() -> int:
    try:
        return int(json.loads(sm("study", "show", "supervised", "--json"))["finished"])
    except AssertionError:  # not there yet
        return 0


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "trials"), [(1, 2), (5, 8)])
def test_a_run_killed_repeatedly_ends_with_the_same_result(
    playground: Path, kills: int, trials: int
) -> None:
    supervisor = start(playground, "--trials", str(trials), "--workers", "2")
    for kill in range(1, kills + 1):
        assert eventually(lambda kill=kill: finished() >= kill, within=90)
        run = run_of(supervisor)
        assert run is not None
        run.kill()
        assert eventually(lambda run=run: run_of(supervisor) not in (run, None), within=20)
    said = supervisor.communicate(timeout=120)[0]
    assert supervisor.returncode == 0, said
    assert said.count("The run died (SIGKILL)") == kills
    assert said.count("texts to classify") == 1  # what is about to be done is said once
    facts = json.loads(sm("study", "show", "supervised", "--json"))
    assert facts["finished"] == trials
    assert set(facts["states"]) <= {"COMPLETE", "PRUNED"}
    assert f"{trials} finished trials in the study" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    "signals",
    [(signal.SIGINT,), pytest.param((signal.SIGINT, signal.SIGINT), marks=pytest.mark.slow)],
)
def test_ctrl_c_pauses_and_the_same_command_resumes(
    playground: Path, signals: tuple[int, ...]
) -> None:
    supervisor = start(playground, "--trials", "2", "--set", "epochs=200", "--set", "patience=200")
    trials = playground / "supermax.db.supermax" / "supervised" / "trials"
    assert eventually(lambda: any(trials.glob("*/curve.jsonl")), within=60)
    supervisor.send_signal(signals[0])
    for signum in signals[1:]:  # not before the first was heard: two at once are one
        assert eventually(lambda: bool((read(trials.parent) or {}).get("stopping")), within=20)
        supervisor.send_signal(signum)
    said = supervisor.communicate(timeout=60)[0]
    assert supervisor.returncode == 130, said
    if len(signals) == 1:
        assert "Run again to go on" in said
        state = trials / "00000" / "checkpoint" / "state.pt"
        assert state.exists()
    facts = json.loads(sm("study", "show", "supervised", "--json"))
    assert facts["states"].get("RUNNING") == 1
    assert facts["finished"] == 0
