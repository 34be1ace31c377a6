"""Selection on noise in simulated searches whose true values are known."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from supermax._util.attributes import DATA, EXPERIMENT, RESULT
from supermax.results.records import StudyRecord, read_record
from supermax.results.report.page import page
from supermax.results.selection import expected_luck, selection_in, selection_of
from supermax.ui.cli import app

NOISE = 0.02
Truth = Callable[[random.Random, int], float]
TRUTHS: dict[str, Truth] = {
    "equal": lambda rng, i: 0.7,
    "as different as noisy": lambda rng, i: rng.gauss(0.7, NOISE),
    "very different": lambda rng, i: rng.gauss(0.7, 10 * NOISE),
    "half diverge": lambda rng, i: 0.7 if i % 2 else rng.uniform(0, 0.5),
}


def simulated(truth: Truth, seed: int, trials: int) -> tuple[list[float], float]:
    """Return the values of a search, and the error of the highest one."""
    rng = random.Random(seed)
    true = [truth(rng, i) for i in range(trials)]
    values = [one + rng.gauss(0, NOISE) for one in true]
    best = max(range(trials), key=values.__getitem__)
    return values, values[best] - true[best]


@pytest.mark.parametrize("name", TRUTHS)
@pytest.mark.parametrize("trials", [20, 100])
def test_expected_luck_is_that_of_searches_whose_truth_is_known(name: str, trials: int) -> None:
    searches = [simulated(TRUTHS[name], seed, trials) for seed in range(30)]
    luck = statistics.fmean(error for _, error in searches)
    found = statistics.fmean(expected_luck(values, NOISE) for values, _ in searches)
    assert found == pytest.approx(luck, abs=0.5 * NOISE)


def test_luck_of_a_single_outlier_is_small() -> None:
    values = [0.7 + 0.001 * i for i in range(40)]
    assert expected_luck([*values, 0.95], NOISE) < 0.2 * NOISE
    assert expected_luck(values, NOISE) > 0.2 * NOISE


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=50))
def test_luck_is_finite_and_never_negative(values: list[float]) -> None:
    assert 0 <= expected_luck(values, 0.5) < math.inf


def test_best_value_that_came_early_ends_what_pays() -> None:
    rising = [(i, min(0.8, 0.5 + 0.01 * i)) for i in range(100)]
    found = selection_of(rising, NOISE)
    assert found is not None
    assert (found.best, found.last, found.after) == (30, 29, 70)
    assert found.gained == pytest.approx(0.01)
    told = found.lines("accuracy")
    assert "the best of 100" in told[0]
    assert "selection on noise (standard error of accuracy: 0.020)" in told[0]
    assert told[1] == (
        "After trial 29, 70 further trials improved the best value by 0.010, less than the "
        "standard error: they hardly helped."
    )
    (alone,) = found.lines("accuracy", raced=True)
    assert "(standard error of accuracy: 0.020)" in alone


def test_search_that_still_improves_says_so() -> None:
    found = selection_of([(i, 0.012 * i) for i in range(50)], NOISE)
    assert found is not None
    assert found.last == 48
    assert "still improved by more than its standard error" in found.lines("accuracy")[1]


@pytest.fixture
def record(tmp_path: Path) -> StudyRecord:
    """Study of an agent whose trials have accuracies of 80 % on 100 rows, in 50 groups."""
    storage = optuna.storages.get_storage(f"sqlite:///{tmp_path}/s.db")
    study = optuna.create_study(storage=storage, study_name="notes", direction="maximize")
    study.set_user_attr(EXPERIMENT, {"objectives": ["accuracy"]})
    study.set_user_attr(DATA, {"splits": {"validation": {"rows": 100, "groups": 50}}})
    for right in (70, *[80] * 20):
        wrong = (100 - right) // 2
        counts = [[right // 2, wrong], [wrong, right // 2]]
        result = {RESULT: {"confusion": counts, "metrics": {"accuracy": right / 100}}}
        study.add_trial(optuna.trial.create_trial(value=right / 100, user_attrs=result))
    return read_record(study)


def test_report_and_best_say_how_much_is_luck(record: StudyRecord, tmp_path: Path) -> None:
    found = selection_in(record)
    assert found is not None
    # Both rows of a group may be wrong together.
    assert found.noise == pytest.approx(math.sqrt(2 * 0.8 * 0.2 / 100), rel=0.05)
    lead = "Of the value of trial 1, the best of 21, up to"
    done = CliRunner().invoke(app, ["best", "notes", "--storage", str(tmp_path / "s.db")])
    assert lead in " ".join(done.output.split())
    assert lead in page(record)


def test_too_little_is_none() -> None:
    assert selection_of([(i, 0.5) for i in range(9)], NOISE) is None
    assert selection_of([(i, 0.5) for i in range(20)], 0.0) is None
    assert selection_of([(i, math.nan) for i in range(20)], NOISE) is None
