"""Contenders compared in pairs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.benchmarks import toy  # noqa: F401, sets the path

import pairs  # isort: skip
from measure import Run  # isort: skip


def run(contender: str, task: str, seed: int, *, final: float, epoch: int = 10) -> Run:
    return Run(contender, task, seed, 4, 1, 100, 5, [(1, 1.0, 2.0), (epoch, 9.0, final)], 0.1)


RUNS = [
    run("a", "lcbench-1", 0, final=0.01, epoch=10),
    run("b", "lcbench-1", 0, final=0.03, epoch=40),
    run("a", "lcbench-1", 1, final=0.02, epoch=10),
    run("b", "lcbench-1", 1, final=0.02, epoch=40),
    run("a", "taskset-1", 0, final=0.04, epoch=20),
    run("b", "taskset-1", 0, final=0.01, epoch=20),
    run("b", "taskset-2", 0, final=0.01),  # a has not searched it
]


def test_pairs_are_of_the_same_task_and_seed() -> None:
    found = pairs.pair_of([r for r in RUNS if r.contender == "a"],
                          [r for r in RUNS if r.contender == "b"])  # fmt: skip
    assert found[:3] == (3, 1, 1)
    assert found.mean == pytest.approx((-0.01 + 0.03) / 2)  # a task counts once
    assert found.error == pytest.approx(0.02)


def test_each_family_has_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results.jsonl"
    file.write_text("".join(json.dumps(asdict(r)) + "\n" for r in RUNS), encoding="utf-8")
    pairs.main([str(file), "a:b"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[3] for line in lines[1:]] == ["all", "lcbench", "taskset"]
    assert lines[2][-3:] == ["0.25", "[0.25,", "0.25]"]
    assert "+0.010 (0.020)" in " ".join(lines[1])
    with pytest.raises(SystemExit):
        pairs.main([str(file), "a-b"])
