"""Promotion with several objectives: by Pareto fronts, in runs and by itself."""

from __future__ import annotations

import math
import signal
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

import supermax
from supermax._util.attributes import REPORTED
from supermax.engine import events
from supermax.engine.promotion.front_ladder import FrontLadder, best_points, points_of, ranks
from supermax.engine.promotion.ladder import Ladder
from tests.engine.promotion.test_promotion import always

BOTH = [StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE]
numbers = st.one_of(st.integers(0, 6).map(float), st.sampled_from([math.inf, math.nan]))


def reported(number: int, *points: tuple[float, ...]) -> FrozenTrial:
    """Return a running trial with these reports."""
    attrs = {f"{REPORTED}{step}": list(point) for step, point in enumerate(points, 1)}
    trial = create_trial(state=TrialState.RUNNING, system_attrs=attrs)
    trial.number = number
    return trial


def arrive(ladder: FrontLadder, number: int, *points: tuple[float, ...]) -> bool:
    return ladder.pauses(number, ladder.read(reported(number, *points)))


@given(st.lists(st.tuples(numbers, numbers), max_size=25))
def test_dominated_points_come_later(points: list[tuple[float, float]]) -> None:
    clean = [tuple(math.inf if math.isnan(x) else x for x in point) for point in points]
    losses = ranks(points)
    for one, loss in zip(clean, losses, strict=True):
        for other, higher in zip(clean, losses, strict=True):
            if all(a <= b for a, b in zip(one, other, strict=True)) and one != other:
                assert math.floor(loss) < math.floor(higher)
    assert len(set(losses)) == len(losses)  # places within a front differ


def test_points_with_distant_neighbours_come_first() -> None:
    front = [(0.0, 10.0), (1.0, 9.0), (2.0, 8.0), (10.0, 0.0)]
    losses = ranks([*front, (11.0, 11.0)])
    assert max(losses[0], losses[3]) < min(losses[1], losses[2])
    assert losses[4] == max(losses)
    assert ranks([(1e9 * a, b / 1e9) for a, b in front]) == losses[:4]
    assert ranks([]) == []


def test_of_equal_points_one_is_at_the_edge() -> None:
    assert ranks([(1.0, 2.0)] * 5) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
    assert ranks([(math.nan, 1.0)] * 5) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
    low, middle, high = ranks([(0.0, 2.0), (1.0, 1.0), (2.0, 0.0)])
    losses = ranks([(0.0, 2.0), (0.0, 2.0), (2.0, 0.0), (1.0, 1.0), (2.0, 0.0)])
    assert max(low, high) < middle
    assert max(losses[0], losses[2]) < losses[3] < min(losses[1], losses[4])


@pytest.mark.parametrize("value", [1.0, math.nan])
def test_trials_with_the_values_of_all_others_pause(value: float) -> None:
    ladder = FrontLadder(always(), BOTH)
    paused = [arrive(ladder, number, (value, value)) for number in range(12)]
    assert paused == [True] * 12


def test_best_point_so_far_is_that_of_the_first_objective() -> None:
    points = [(3.0, 1.0), (2.0, 9.0), (2.0, 0.0), (math.nan, 0.0), (1.0, 5.0)]
    assert best_points(points) == [(3.0, 1.0), (2.0, 9.0), (2.0, 9.0), (2.0, 9.0), (1.0, 5.0)]


def test_damaged_reports_are_left_out() -> None:
    trial = reported(0, (1.0, 2.0), (3.0,), (5.0, 6.0))
    trial.system_attrs[f"{REPORTED}x"] = [1.0, 2.0]
    assert points_of(trial, 2) == [[1.0, 2.0], [5.0, 6.0]]


def test_trials_added_together_are_ranked_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = [reported(n, *(((7 * n + s) % 10, (3 * n - s) % 10) for s in range(4 + n % 6)))
              for n in range(30)]  # fmt: skip
    single, together = (FrontLadder(supermax.Promotion(max_reports=9), BOTH) for _ in range(2))
    for trial in trials:
        single.add(trial.number, single.read(trial))
    ranked: list[int] = []
    rank = FrontLadder._rank
    monkeypatch.setattr(FrontLadder, "_rank", lambda s, rung: ranked.append(rung) or rank(s, rung))
    together.update(trials)
    assert sorted(ranked) == [1, 3]  # not once for each trial
    assert together._ranked == single._ranked
    assert together._losses == single._losses
    together.update([])
    assert len(ranked) == 2


def test_best_fronts_continue() -> None:
    ladder = FrontLadder(always(), BOTH)
    # Accuracy up, size down: three on the front, then nine that they dominate.
    points = [(0.9, 30.0), (0.8, 20.0), (0.7, 10.0)]
    points += [(0.6 - i / 100, 40.0 + i) for i in range(9)]
    for number, point in enumerate(points):
        if arrive(ladder, number, point):
            ladder.pause(number)
    promoted = []
    while (number := ladder.promotable()) is not None:
        ladder.resume(number)
        promoted.append(number)
    # One of the front may have gone on without a pause.
    assert {0, 1, 2} >= set(promoted) - {3}
    assert ladder.worst_first()[0] == 11


@given(st.lists(st.integers(0, 1000), min_size=3, max_size=30, unique=True))
def test_with_one_objective_it_decides_like_the_other_ladder(values: list[int]) -> None:
    one, other = (
        Ladder(always(), StudyDirection.MINIMIZE),
        FrontLadder(always(), [StudyDirection.MINIMIZE]),
    )
    for number, value in enumerate(map(float, values)):
        paused = one.pauses(number, [value])
        assert arrive(other, number, (value,)) == paused
        if paused:
            one.pause(number)
            other.pause(number)
        assert other.promotable() == one.promotable()
        assert other.worst_first() == one.worst_first()


# Runs.


def nine_points(trial: Any) -> tuple[float, float]:
    """Report both objectives, and continue from a checkpoint."""
    x, size = trial.suggest_float("x", 0, 1), trial.suggest_float("size", 0, 1)
    saved: Path = trial.checkpoint_dir / "epoch"
    first = int(saved.read_text()) if saved.exists() else 0
    for epoch in range(first + 1, 10):
        saved.write_text(str(epoch))
        trial.report([x + 1 / epoch, size], epoch)
        if trial.should_prune():
            raise AssertionError("it pauses, and is not pruned")
    return x, size


def run(study: optuna.Study, n_trials: int, **options: Any) -> supermax.Summary:
    options = {"pruner": always(), "progress": False, "reuse_cells": True} | options
    return supermax.optimize(study, nine_points, n_trials, **options)


@pytest.fixture
def two(url: str) -> optuna.Study:
    sampler = optuna.samplers.RandomSampler(seed=1)
    return optuna.create_study(
        storage=url, study_name="two", directions=["minimize"] * 2, sampler=sampler
    )


@pytest.mark.usefixtures("quick")
def test_trials_with_several_objectives_pause_and_the_front_completes(two: optuna.Study) -> None:
    paused: set[int] = set()

    def stop(event: events.Event) -> None:
        if isinstance(event, events.TrialPaused) and len(paused) < 3:
            paused.add(event.number)
            if len(paused) == 3:
                signal.raise_signal(signal.SIGINT)

    first = run(two, 24, progress=stop)
    assert first.trials["RUNNING"] >= 3
    assert first.stopped_by
    second = run(two, 24)
    assert (second.finished, second.trials["RUNNING"]) == (24, 0)
    assert second.trials["PRUNED"] > 8
    every = [(t.params["x"], t.params["size"]) for t in two.trials]
    losses = ranks(every)
    best = min(range(24), key=losses.__getitem__)
    assert two.trials[best].state is TrialState.COMPLETE
    for trial in two.trials:
        points = points_of(trial, 2)
        wanted = [[trial.params["x"] + 1 / e, trial.params["size"]] for e in range(1, 10)]
        assert points == wanted[: len(points)]
        assert (len(points) == 9) == (trial.state is TrialState.COMPLETE)


@pytest.mark.usefixtures("quick")
def test_other_pruners_never_stop_trials_with_several_objectives(two: optuna.Study) -> None:
    summary = run(two, 3, pruner=optuna.pruners.MedianPruner(0))
    assert summary.trials["COMPLETE"] == 3


@pytest.mark.usefixtures("quick")
def test_a_continued_trial_may_ask_before_it_reports(two: optuna.Study) -> None:
    def objective(trial: Any) -> tuple[float, float]:
        saved = trial.checkpoint_dir / "epoch"
        for epoch in range(int(saved.read_text()) + 1 if saved.exists() else 1, 19):
            saved.write_text(str(epoch))
            if epoch % 2:
                trial.report([trial.number, epoch], epoch)
            trial.should_prune()
        return trial.number, 1

    summary = supermax.optimize(
        two, objective, 8, pruner=always(), progress=False, reuse_cells=True
    )
    assert summary.trials["FAIL"] == 0
    assert max(len(points_of(trial, 2)) for trial in two.trials) == 3  # continued after the first


@pytest.mark.usefixtures("quick")
def test_wrong_reports_are_refused(two: optuna.Study) -> None:
    def objective(trial: Any) -> tuple[float, float]:
        with pytest.raises(NotImplementedError):
            trial.report(1.0, 1)  # as in Optuna
        with pytest.raises(NotImplementedError):
            trial.should_prune()
        for wrong, step in (([1.0], 1), ([1.0, 2.0, 3.0], 1), ([1.0, 2.0], -1)):
            with pytest.raises(ValueError, match="2 values, one per objective"):
                trial.report(wrong, step)
        trial.report((1.0, 2.0), 1)
        assert trial.should_prune() is False
        return 1.0, 2.0

    summary = supermax.optimize(two, objective, 1, progress=False)
    assert summary.trials["COMPLETE"] == 1
