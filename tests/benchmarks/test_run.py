"""The driver of the comparison: resumes, and keeps the reporting half closed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks import toy  # noqa: F401, sets the path

import run  # isort: skip
from measure import half_of  # isort: skip

TASKS = ["LSTM1", "LSTM2", "LSTM3", "LSTM4", "LSTM5", "LSTM6"]
TUNING = [task for task in TASKS if half_of(f"taskset-{task}") == "tuning"]


@pytest.fixture
def taskset(tmp_path: Path) -> Path:
    """Return a folder with small files in the format of TaskSet."""
    folder, rng = tmp_path / "taskset", np.random.default_rng(0)
    folder.mkdir()
    decays = ("epsilon", "l1", "l2", "linear_decay", "exponential_decay")
    for task in TASKS:
        rows = []
        for _ in range(20):
            hp = {name: 10 ** rng.uniform(-6, -1) for name in ("learning_rate", *decays)}
            hp |= {name: 1 - 10 ** rng.uniform(-4, -0.1) for name in ("beta1", "beta2")}
            losses = (rng.uniform() + 1 / np.arange(1, 10)).tolist()
            rows.append({"hp": hp, "valid": {"loss": losses}})
        file = folder / f"FixedTextRNNClassification_imdb_{task}.json"
        file.write_text(json.dumps(rows), encoding="utf-8")
    return folder


def call(monkeypatch: pytest.MonkeyPatch, taskset: Path, *arguments: str) -> Path:
    into = taskset.parent / "results.jsonl"
    fixed = ["--taskset", str(taskset), "--budget", "4", "--into", str(into)]
    monkeypatch.setattr(sys, "argv", ["run.py", *fixed, *arguments])
    run.main()
    return into


def test_a_further_call_runs_what_is_missing(
    taskset: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    random, both = ["--contenders", "random"], ["--contenders", "random", "optuna"]
    into = call(monkeypatch, taskset, *random, "--seeds", "1")
    first = into.read_text(encoding="utf-8")
    assert {json.loads(line)["task"] for line in first.splitlines()} == {
        f"taskset-{task}" for task in TUNING
    }
    into.write_text(first + first[:40], encoding="utf-8")  # killed while it wrote
    capsys.readouterr()
    call(monkeypatch, taskset, *both, "--seeds", "2")
    printed = capsys.readouterr().out
    assert f"{len(TUNING)} of {4 * len(TUNING)} searches are done." in printed
    assert printed.splitlines()[1].startswith("contender")
    assert into.read_text(encoding="utf-8").startswith(first)
    assert len(run.read_runs(into)) == 4 * len(TUNING)


def test_processes_give_the_same_results(taskset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--contenders", "random", "optuna", "--seeds", "1"]
    into = call(monkeypatch, taskset, *arguments)
    alone = {run._item_of(r): r.improvements for r in run.read_runs(into)}
    into.unlink()
    into = call(monkeypatch, taskset, *arguments, "--jobs", "2")
    assert {run._item_of(r): r.improvements for r in run.read_runs(into)} == alone


def test_the_reporting_half_stays_closed(
    taskset: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    monkeypatch.setattr(run, "REPORTING_LOG", log)
    arguments = ["--contenders", "random", "--seeds", "1", "--half", "reporting"]
    with pytest.raises(SystemExit, match="--open-reporting-half"):
        call(monkeypatch, taskset, *arguments)
    assert not log.exists()
    into = call(monkeypatch, taskset, *arguments, "--open-reporting-half", "a test")
    assert log.read_text(encoding="utf-8").endswith(" a test\n")
    tasks = {r.task.removeprefix("taskset-") for r in run.read_runs(into)}
    assert tasks == set(TASKS) - set(TUNING) != set()


def test_tasks_begin_with_different_configurations() -> None:
    items = [run.Item("random", task, seed, 1, 1) for task in TASKS for seed in range(3)]
    assert len({run.seed_of(item) for item in items}) == len(items)
    assert run.seed_of(items[0]) == run.seed_of(items[0]._replace(contender="optuna"))
