"""Figures of searches: their lines and their files."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.benchmarks import toy  # noqa: F401, sets the path

pytest.importorskip("matplotlib")
import plot  # isort: skip
from contenders import CONTENDERS  # isort: skip
from measure import Run  # isort: skip

PNG = b"\x89PNG\r\n"


def run(contender: str, task: str, seed: int = 0, final: float = 0.1, trainings: int = 30) -> Run:
    return Run(contender, task, seed, 4, trainings, 270, 30, [(1, 1.0, 2.0), (90, 9.0, final)], 0)


def test_a_contender_with_few_tasks_is_left_out() -> None:
    runs = [run("optuna", f"lcbench-{task}") for task in range(4)]
    runs += [run("smac-hyperband", f"lcbench-{task}") for task in range(2)]
    runs.append(run("neps-priorband", "lcbench-0"))
    panel = plot.PANELS["Other projects"]
    assert plot.contenders_of(runs, panel) == ["optuna", "smac-hyperband"]
    assert plot.contenders_of(runs[:4], panel) == []


def test_every_panel_has_known_contenders_with_different_lines() -> None:
    assert plot.STYLES.keys() <= CONTENDERS.keys()
    for contenders in plot.PANELS.values():
        lines = [(plot.STYLES[name].color, plot.STYLES[name].line) for name in contenders]
        assert len(set(lines)) == len(lines)


def test_each_family_gets_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["supermax", "optuna", "syne-tune-asha", "random"]
    runs = [run(name, task) for name in names for task in ("lcbench-1", "tweeteval-a-half")]
    runs += [run("optuna", "taskset-1", trainings=5), run("supermax", "lcbench-2", final=-0.02)]
    results = tmp_path / "results.jsonl"
    results.write_text("".join(json.dumps(asdict(r)) + "\n" for r in runs), encoding="utf-8")
    plot.main([str(results), "--into", str(tmp_path)])
    files = sorted(tmp_path.glob("*.png"))
    assert [file.name for file in files] == ["search-lcbench.png", "search-tweeteval.png"]
    assert all(file.read_bytes().startswith(PNG) for file in files)
    assert capsys.readouterr().out.count("kB") == 2
