"""Measures on searches that can be computed by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.toy import toy_table

from measure import (  # isort: skip
    Run,
    curve,
    half_of,
    improvements_of,
    mean_ranks,
    ratio,
    summary,
    tasks_of,
    worst_task,
)
from simulate import Epoch, Replay  # isort: skip


HALF_OF_LCBENCH = {3945: "reporting", 7593: "tuning", 34539: "reporting"}
"""Written down once: another rule would mix tasks that are tuned on with those reported."""


def run(
    improvements: list[tuple[int, float]],
    contender: str = "one",
    task: str = "a",
    seed: int = 0,
    budget: int = 100,
) -> Run:
    steps = [(spent, float(spent), regret) for spent, regret in improvements]
    return Run(contender, task, seed, 1, 10, budget, 10, steps, 0.0)


def reaching(epochs: int | None, task: str = "a", seed: int = 0, contender: str = "one") -> Run:
    """Return a search that reaches a regret of 0 after so many epochs."""
    return run([(1, 1.0), *([] if epochs is None else [(epochs, 0.0)])], contender, task, seed)


def test_improvements_of_a_known_search() -> None:
    table = toy_table()
    losses = [table.median, table.median + 1, table.best + 0.25, table.best]
    epochs = [Epoch(float(i), 0, loss) for i, loss in enumerate(losses)]
    found = improvements_of(Replay(epochs, 1), table)
    assert [(spent, seconds) for spent, seconds, _ in found] == [(1, 0.0), (3, 2.0), (4, 3.0)]
    assert [regret for _, _, regret in found] == pytest.approx([1.0, 0.5, 0.0])


def test_regret_after_epochs() -> None:
    known = run([(2, 0.8), (10, 0.04)])
    assert [known.regret_at(e) for e in (1, 2, 9, 10, 100)] == [math.inf, 0.8, 0.8, 0.04, 0.04]
    assert known.final == 0.04
    assert known.epochs_until(0.05) == 10
    assert known.epochs_until(0.01) is None


def test_ratio_is_the_geometric_mean() -> None:
    ours = [reaching(10, "a"), reaching(40, "b")]
    theirs = [reaching(40, "a"), reaching(80, "b")]
    found = ratio(ours, theirs, 0.05)
    assert found.mean == pytest.approx(math.sqrt(1 / 4 * 1 / 2))
    assert found.low == pytest.approx(1 / 4)
    assert found.high == pytest.approx(1 / 2)
    assert (found.misses, found.baseline_misses, found.runs) == (0, 0, 2)


def test_a_miss_costs_the_budget() -> None:
    found = ratio([reaching(None)], [reaching(50)], 0.05)
    assert found.mean == pytest.approx(2.0)
    assert (found.misses, found.baseline_misses) == (1, 0)
    both = ratio([reaching(None)], [reaching(None)], 0.05)
    assert (both.mean, both.misses, both.baseline_misses) == (1.0, 1, 1)


def test_ratio_takes_shared_tasks_only_and_weighs_them_equally() -> None:
    ours = [reaching(10, "a", seed) for seed in range(9)] + [reaching(40, "b"), reaching(1, "c")]
    theirs = [reaching(20, "a"), reaching(20, "b")]
    found = ratio(ours, theirs, 0.05)
    assert found.mean == pytest.approx(1.0)
    assert found.runs == 10


def test_bound_covers_the_ratio_of_noisy_searches() -> None:
    rng = np.random.default_rng(1)

    def noisy(scale: float) -> list[Run]:
        costs = np.exp(rng.normal(0, 0.3, (20, 5))) * scale
        return [reaching(round(c), f"{t}", s) for (t, s), c in np.ndenumerate(costs)]

    found = ratio(noisy(20), noisy(40), 0.05)
    assert found.low < 0.5 < found.high
    assert found.high / found.low < 1.3


def test_curve_has_the_quartiles() -> None:
    runs = [run([(1, r), (50, r / 10)]) for r in (0.1, 0.2, 0.3, 0.4, 0.5)]
    found = curve(runs, [0.1, 1.0])
    assert found == pytest.approx(np.array([[0.2, 0.02], [0.3, 0.03], [0.4, 0.04]]))
    assert curve(runs, [0.001]).tolist() == [[math.inf]] * 3


def test_mean_ranks_share_ties() -> None:
    finals = {"one": (0.1, 0.3), "two": (0.2, 0.3), "three": (0.3, 0.1)}
    runs = {
        name: [run([(1, regret)], name, seed=seed) for seed, regret in enumerate(regrets)]
        for name, regrets in finals.items()
    }
    assert mean_ranks(runs) == {"one": 1.75, "two": 2.25, "three": 2.0}


def test_worst_task_has_the_highest_median() -> None:
    regrets = {"a": (0.0, 0.1, 9.0), "b": (0.2, 0.3, 0.4)}
    runs = [run([(1, r)], task=t, seed=s) for t, rs in regrets.items() for s, r in enumerate(rs)]
    assert worst_task(runs) == (0.3, "b")


def test_summary_has_a_row_per_contender_and_states_misses() -> None:
    runs = [reaching(10, contender="ours"), reaching(None, contender="optuna")]
    head, best, other = summary(runs, "optuna").splitlines()
    assert "epochs to 0.05 (misses)" in head
    assert best.startswith("ours")
    assert "0.10 [0.10, 0.10] (0/1)" in best
    assert "1.00 [1.00, 1.00] (1/1)" in other


def test_halves_are_fixed_and_alike_in_size() -> None:
    tasks = [f"task-{i}" for i in range(1000)]
    assert 450 < sum(half_of(task) == "tuning" for task in tasks) < 550
    half = {task: half_of(f"lcbench-{task}") for task in (3945, 7593, 34539)}
    assert half == HALF_OF_LCBENCH


def test_the_reporting_half_needs_a_reason_and_is_logged(tmp_path: Path) -> None:
    log, tasks = tmp_path / "log", [f"task-{i}" for i in range(10)]
    tuning = tasks_of("tuning", tasks, reason=None, log=log)
    assert not log.exists()
    with pytest.raises(ValueError, match="reason"):
        tasks_of("reporting", tasks, reason=None, log=log)
    reporting = tasks_of("reporting", tasks, reason="release 1", log=log)
    tasks_of("reporting", tasks, reason="release 2", log=log)
    assert sorted(tuning + reporting) == tasks
    assert [line.split(" ", 1)[1] for line in log.read_text().splitlines()] == [
        "release 1",
        "release 2",
    ]
