"""Probes before the first trial of an encoder on a device, which never fail the trial."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

import supermax.tasks.probing as probing
from supermax.engine.jobs.provision import DeviceUsage, Provision
from supermax.memory.estimate import CONTEXT
from supermax.memory.measurements import MeasurementLog
from supermax.space import loads
from supermax.tasks.objective import AgentObjective
from supermax.tasks.probing import run_probes
from supermax.tasks.provisioning import MemoryPlanner
from supermax.training.config import read_config
from supermax.training.data.splits import split
from supermax.training.data.synthetic import synthetic
from supermax.training.steps.execution import Execution

pytestmark = pytest.mark.usefixtures("quick", "preloaded")
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


class Card:
    whole = 80 << 30

    def available(self, device: str | None, pids: Any, ours: int) -> int:
        return self.whole


def made_for_a_gpu(folder: Path) -> MemoryPlanner:
    splits = split(synthetic(40, difficulty=0.0, seed=3, max_words=12))
    objective = AgentObjective(
        "criteria", loads(SPACE), splits.train, splits.validation, folder / "cache", ["macro_f1"],
        {"epochs": 1, "patience": None}, Execution(device="cuda", precision="bf16"),
    )  # fmt: skip
    return MemoryPlanner(objective, MeasurementLog(folder / "known", "a card", "torch 1"), Card())


def plan_of(planner: MemoryPlanner, failed: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    values = {"encoder.name": "tiny-bert", "train.effective_batch": 8, "optim.lr": 0.001}
    found = planner.provide(optuna.trial.FixedTrial(values), failed)
    assert isinstance(found, Provision)
    return found.plan


def test_the_first_trial_of_an_encoder_that_nothing_is_known_of_probes_it(tmp_path: Path) -> None:
    planner = made_for_a_gpu(tmp_path)
    first = plan_of(planner)
    asked = [(one["micro_batch"], one["checkpointing"]) for one in first["probes"]]
    assert asked == [(8, False)]
    assert "probes" not in plan_of(planner)
    assert "probes" in plan_of(made_for_a_gpu(tmp_path))  # nothing was noted yet


def test_what_a_trial_probed_is_known_to_the_next_run(tmp_path: Path) -> None:
    planner = made_for_a_gpu(tmp_path)
    plan = plan_of(planner)
    objective = replace(planner.objective, execution=Execution(), book=planner.book)

    class Here(optuna.trial.FixedTrial):
        folder = tmp_path / "trial"
        checkpoint_dir = folder / "checkpoint"

    Here.checkpoint_dir.mkdir(parents=True)
    trial = Here({"encoder.name": "tiny-bert", "train.effective_batch": 8, "optim.lr": 0.001})
    trial.plan = {**plan, "memory": None}
    objective(trial)
    (page,) = planner.book.folder.glob("*.jsonl")
    lines = [json.loads(line) for line in page.read_text().splitlines()]
    noted = [(line["micro_batch"], line["checkpointing"], line["tokens"]) for line in lines]
    assert noted[: len(plan["probes"])] == [
        (one["micro_batch"], one["checkpointing"], one["micro_batch"] * one["length"])
        for one in plan["probes"]
    ]


def test_a_trial_that_ran_out_of_memory_is_not_probed(tmp_path: Path) -> None:
    planner = made_for_a_gpu(tmp_path)
    plan = plan_of(planner)
    assert "probes" not in plan_of(made_for_a_gpu(tmp_path), [plan])


@pytest.mark.parametrize(
    "strange", [{}, {"size": 4}, {"micro_batch": "8"}, {"memory": None}, {"evaluated": 1.5}]
)
def test_what_another_planner_left_in_the_ledger_is_left_out(
    tmp_path: Path, strange: dict[str, Any]
) -> None:
    planner = made_for_a_gpu(tmp_path)
    plan = plan_of(planner)
    other = plan | strange if strange.keys() & plan.keys() else strange
    smaller = plan_of(planner, [plan])
    assert plan_of(planner, [other, plan]) == smaller
    assert plan_of(planner, [other]) == {k: v for k, v in plan.items() if k != "probes"} != smaller


def test_a_used_cells_context_counts_once_where_it_is_taken(tmp_path: Path) -> None:
    planner = made_for_a_gpu(tmp_path)
    context = CONTEXT["cuda"]
    idle, none = DeviceUsage("0", 7, 2, frozenset()), DeviceUsage("0", 7, 0, frozenset())
    assert planner.room(none) == Card.whole - 7
    assert planner.room(idle) == Card.whole - 7 - context
    assert planner.room(replace(idle, fresh=True)) == Card.whole - 7 - 2 * context


def test_a_probe_that_fails_costs_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(probing, "probe_memory", broken)
    assert run_probes(CONFIG, Execution(), [ONE]) == []
    assert "A probe before the trial failed: " in capsys.readouterr().err


def test_a_probe_measures_its_time() -> None:
    (found,) = run_probes(CONFIG, Execution(), [ONE])
    assert found.seconds is not None
    assert found.seconds > 0
    assert (found.tokens, found.allocated) == (96, 0)
