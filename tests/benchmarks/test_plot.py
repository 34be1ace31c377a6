"""Figures of searches: which runs they show, and their files."""

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


def test_a_panel_shows_the_searches_that_all_of_its_contenders_have() -> None:
    both, one = run("optuna", "lcbench-1"), run("optuna", "lcbench-2")
    other = run("supermax", "lcbench-1")
    found = plot.shared_runs([both, one, other], ["supermax", "optuna", "smac-hyperband"])
    assert found == {"supermax": [other], "optuna": [both]}


def test_contenders_without_a_shared_search_leave_a_panel_empty() -> None:
    runs = [run("optuna", "lcbench-1"), run("supermax", "lcbench-1", seed=1)]
    assert not any(plot.shared_runs(runs, ["supermax", "optuna"]).values())


def test_the_last_of_several_runs_of_a_search_counts() -> None:
    runs = [run("optuna", task, final=f) for task, f in [("lcbench-1", 0.5), ("taskset-1", 0.1)]]
    runs.append(run("optuna", "lcbench-1"))
    assert plot.families_of(runs) == {"lcbench": [runs[2]], "taskset": [runs[1]]}


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
