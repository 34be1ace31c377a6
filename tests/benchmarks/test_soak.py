"""Soak: what it counts, and a short one."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import optuna
import pytest

from tests import ROOT

FAULTS = ROOT / "benchmarks" / "faults"
sys.path.append(str(FAULTS))

import soak  # noqa: E402


def test_lost_wrong_duplicated_repeated_and_running_trials_are_counted(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    study = optuna.create_study(storage=f"sqlite:///{tmp_path}/home/study.db")
    for value in (0.1, 0.2, 0.3):
        study.tell(study.ask(), value)
    study.ask()
    ends = [(0, 0.1), (1, 0.9), (2, 0.3), (2, 0.3), (3, 0.4)]
    lines = [json.dumps({"index": index, "value": value}) for index, value in ends]
    (tmp_path / "ended.jsonl").write_text("\n".join(lines))
    options = argparse.Namespace(trials=2, seed=0, share=0.0)
    result = soak.Soak(tmp_path, options).result(1.0, {"clean": 2})
    assert (result.finished, result.lost, result.wrong) == (2, 1, 1)
    assert (result.duplicated, result.repeated, result.running) == (1, 1, 1)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a file system")
def test_a_run_under_fire_loses_nothing(tmp_path: Path) -> None:
    into = tmp_path / "soak.json"
    command = [sys.executable, FAULTS / "soak.py", "--trials", "400", "--into", into]
    subprocess.run(command, check=True, timeout=1500)
    result = json.loads(into.read_text())
    bad = ("lost", "wrong", "duplicated", "running", "orphans", "restarts")
    assert result["finished"] == 400
    assert {name: result[name] for name in bad} == dict.fromkeys(bad, 0)
    assert result["growth"] < 60 << 20
    assert sum(result["faults"].values()) == 80
    assert sum(result["kills"].values()) >= 5
    assert result["outages"] == 2
