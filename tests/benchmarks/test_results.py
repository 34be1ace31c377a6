"""Searches of several files: each once, and only those that all contenders have."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.benchmarks import toy  # noqa: F401, sets the path

import results  # isort: skip
from measure import Run  # isort: skip


def run(contender: str, task: str, seed: int = 0, final: float = 0.1, trainings: int = 30) -> Run:
    return Run(contender, task, seed, 4, trainings, 270, 30, [(1, 1.0, 2.0), (90, 9.0, final)], 0)


def file_of(path: Path, runs: Sequence[Run]) -> str:
    path.write_text("".join(json.dumps(asdict(r)) + "\n" for r in runs), encoding="utf-8")
    return str(path)


def test_contenders_are_compared_on_the_searches_that_all_have() -> None:
    both, one = run("optuna", "lcbench-1"), run("optuna", "lcbench-2")
    other = run("supermax", "lcbench-1")
    found = results.shared_runs([both, one, other], ["supermax", "optuna", "smac-hyperband"])
    assert found == {"supermax": [other], "optuna": [both]}


def test_another_seed_is_another_search() -> None:
    runs = [run("optuna", "lcbench-1"), run("supermax", "lcbench-1", seed=1)]
    assert not any(results.shared_runs(runs, ["supermax", "optuna"]).values())


def test_a_search_in_two_files_counts_once_and_other_settings_not_at_all(tmp_path: Path) -> None:
    old, new = run("optuna", "lcbench-1", final=0.5), run("optuna", "lcbench-1", final=0.2)
    short = run("optuna", "lcbench-1", trainings=5)
    files = [tmp_path / "old.jsonl", tmp_path / "new.jsonl"]
    for file, runs in zip(files, ([old, short], [new]), strict=True):
        file_of(file, runs)
    options = argparse.Namespace(results=files, workers=4, budget=30, seeds=None)
    assert [found.final for found in results.read_results(options)] == [0.2]


def test_later_seeds_can_be_left_out(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    file_of(file, [run("optuna", "lcbench-1", seed=seed) for seed in range(4)])
    options = argparse.Namespace(results=[file], workers=4, budget=30, seeds=2)
    assert [found.seed for found in results.read_results(options)] == [0, 1]


def test_the_table_has_the_shared_searches_of_the_families(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names, tasks = ("optuna", "random"), ("lcbench-1", "lcbench-2", "tweeteval-a-half")
    runs = [run(name, task, final=0.25) for name in names for task in tasks]
    file = file_of(tmp_path / "runs.jsonl", [*runs, run("optuna", "lcbench-3", final=9.0)])
    results.main([file, "--contenders", *names, "--families", "lcbench"])
    _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[:4] for row in rows] == [[name, "2", "1.50", "2.000"] for name in names]


def test_a_contender_without_a_search_is_named(tmp_path: Path) -> None:
    file = file_of(tmp_path / "runs.jsonl", [run("optuna", "lcbench-1")])
    with pytest.raises(SystemExit, match="without any search: random"):
        results.main([file, "--contenders", "optuna", "random"])


def test_contenders_are_compared_without_the_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("supermax", "random")
    file = file_of(tmp_path / "runs.jsonl", [run(name, "lcbench-1") for name in names])
    results.main([file, "--contenders", *names])
    assert len(capsys.readouterr().out.splitlines()) == 3
    with pytest.raises(SystemExit):
        results.main([file, "--contenders", *names, "--worst", "1"])
    assert "--worst needs the contender optuna." in capsys.readouterr().err


def test_a_contender_may_be_another_one_in_each_family(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = ("lcbench-1", "tweeteval-a-half")
    late = {"optuna": 1.0, "supermax": 0.01, "supermax-defaults": 0.04}
    runs = [run(name, task, final=final) for name, final in late.items() for task in tasks]
    file = file_of(tmp_path / "runs.jsonl", runs)
    name = "supermax@lcbench+supermax-defaults@tweeteval"
    found = results.runs_of(results.read_runs(Path(file)), name)
    assert [(r.contender, r.task, r.final) for r in found] == [
        (name, "lcbench-1", 0.01),
        (name, "tweeteval-a-half", 0.04),
    ]
    results.main([file, "--contenders", "optuna", name, "--worst", "1"])
    *_, of_optuna, row = capsys.readouterr().out.splitlines()
    assert of_optuna.startswith("optuna: lcbench-1 1.00")
    assert row.startswith(f"{name}: lcbench-1 0.33")  # 90 of 270 epochs
