"""The first trial of an encoder on a device is preceded by short probes; they never cost it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import supermax.agents.calibrating as calibrating
from supermax.agents.calibrating import probed
from supermax.records import read
from supermax.space import loads
from supermax.training.config import read_config
from supermax.training.data.synthetic import synthetic
from supermax.training.steps import Execution
from supermax.tuning import Tuning

pytestmark = pytest.mark.usefixtures("quick")
CONFIG = read_config(
    {"agent": "criteria", "encoder": {"name": "tiny-bert"}, "train": {"effective_batch": 8}}
)
SPACE = """
name: small
parameters:
  encoder.name: {choices: [tiny-bert]}
  train.effective_batch: {choices: [8]}
  optim.lr: {choices: [0.001]}
"""
ONE = {"micro_batch": 4, "checkpointing": False, "length": 24}


def small(folder: Path, name: str) -> Tuning:
    return Tuning(
        "criteria",
        synthetic(40, difficulty=0.0, seed=3, max_words=12),
        str(folder / "s.db"),
        folder / "cache",
        name=name,
        space=loads(SPACE),
        trials=1,
        limits={"epochs": 1, "patience": None},
        tell=lambda _: None,
    )


def test_probes_come_before_the_first_trial_only_and_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "known"))
    first = small(tmp_path, "first")
    tuned = first.run(progress=False)
    (trial,) = read(tuned.study).trials
    asked = (trial.attempts[0].plan or {})["probes"]
    assert [(one["micro_batch"], one["checkpointing"]) for one in asked] == [
        (8, False), (4, False), (8, True),
    ]  # fmt: skip
    (page,) = first.book().folder.glob("*.jsonl")
    lines = [json.loads(line) for line in page.read_text().splitlines()]
    noted = [(line["micro_batch"], line["checkpointing"], line["tokens"]) for line in lines]
    assert noted[:3] == [
        (one["micro_batch"], one["checkpointing"], one["micro_batch"] * one["length"])
        for one in asked
    ]
    second = small(tmp_path, "second").run(progress=False)
    assert "probes" not in (read(second.study).trials[0].attempts[0].plan or {})


def test_a_probe_that_fails_costs_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(calibrating, "probe", broken)
    assert probed(CONFIG, Execution(), [ONE]) == []
    assert "A probe before the trial failed: " in capsys.readouterr().err


def test_a_probe_measures_its_time() -> None:
    (found,) = probed(CONFIG, Execution(), [ONE])
    assert found.seconds is not None
    assert 0 < found.seconds < 5
    assert (found.tokens, found.allocated) == (96, 0)
