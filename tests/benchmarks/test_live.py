"""Results of live searches."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "search"))
import live_results  # isort: skip
from live_results import Epoch, Key, Search, Training  # isort: skip
from trainings import DEFAULTS  # isort: skip

KEY = Key("supermax", "emotion", 0)


def search(*curves: list[tuple[float, float]]) -> Search:
    """Return a search of trials with these times and validation scores."""
    epochs = [
        [Epoch(n, time, score, 0.0) for n, (time, score) in enumerate(curve, 1)]
        for curve in curves
    ]
    return Search(KEY, 9.0, [{**DEFAULTS, "optim.lr": 1e-5 * (n + 1)} for n in range(9)], epochs)


def training(place: int, seed: int, validation: float, test: float = 0.5) -> Training:
    return Training(KEY, place, seed, [Epoch(1, 0.0, validation, test), Epoch(2, 1.0, 0.1, 0.9)])


def test_configurations_are_ordered_by_their_best_value_within_the_budget() -> None:
    found = search([(1, 0.2), (4, 0.9)], [(2, 0.5)], [(3, math.nan), (5, 0.6)])
    assert [round(c.score, 1) for c in live_results.best_of(found)] == [0.9, 0.6, 0.5]
    within = live_results.best_of(found, budget=3)
    assert [round(c.score, 1) for c in within] == [0.5, 0.2, 0.0]
    assert within[0].params["optim.lr"] == pytest.approx(2e-5)


def test_the_race_chooses_by_its_own_seeds_alone() -> None:
    found = {}
    for seed in (*live_results.RACE_SEEDS, *live_results.FRESH_SEEDS):
        fresh = seed in live_results.FRESH_SEEDS
        for place, score in enumerate([0.5, 0.7, 0.6]):
            value = 1 - score if fresh else score
            found[place, seed] = training(place, seed, value + seed / 1000, test=place / 10)
    assert live_results.raced(found) == 1
    assert live_results.fresh_test(found, 1) == pytest.approx(0.1)  # at the best validation epoch
    assert math.isnan(live_results.fresh_test(found, 5))


def test_lines_are_read_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "live.jsonl"
    made = search([(1, 0.2), (4, 0.9)]), training(0, 21, 0.4)
    file.write_text("".join(json.dumps(asdict(line)) + "\n" for line in made), encoding="utf-8")
    searches, trainings = live_results.read_lines(file)
    assert searches == {KEY: made[0]}
    assert trainings == {(KEY, 0, 21): made[1]}


def test_the_table_has_a_row_per_task_and_contender(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "live.jsonl"
    made = search([(float(n), 0.2 + n / 1000) for n in range(300)])

    def row() -> list[str]:
        live_results.print_table(file)
        return capsys.readouterr().out.splitlines()[1].split()

    lines: list[Search | Training] = [made]
    file.write_text(json.dumps(asdict(made)) + "\n", encoding="utf-8")
    assert row()[:4] == ["emotion", "supermax", "1", "9"]
    assert row()[7] == "0.4690"  # of the 270 epochs of the budget
    assert row()[8:] == ["0", "nan", "nan", "0"]
    lines += [
        training(place, s, 0.2 + 0.1 * place + s / 1000, 0.4 + 0.1 * place)
        for place in range(live_results.CONTESTANTS)
        for s in (*live_results.RACE_SEEDS, *live_results.FRESH_SEEDS)
    ]
    file.write_text("".join(json.dumps(asdict(each)) + "\n" for each in lines), encoding="utf-8")
    assert row()[8:] == ["1", "0.4000", "0.6000", "1"]


def test_pairs_compare_the_winner_with_the_best_of_both_searches() -> None:
    searches, seeds = {}, {}
    for number in range(2):
        for contender in ("supermax", "optuna"):
            key = Key(contender, "emotion", number)
            searches[key] = replace(search([(1, 0.5)]), key=key)
            seeds[key] = {
                (place, s): training(place, s, 0.2 + 0.1 * place + s / 1000, 0.4 + place / 10)
                for place, s in live_results.further_trainings(key)
            }
    del seeds[Key("supermax", "emotion", 1)][2, live_results.FRESH_SEEDS[0]]
    regrets, *tests = live_results.pair_rows(searches, seeds)
    assert regrets.endswith("mean +0.000 (0.000), higher in 0 of 2, lower in 0: ")
    assert all(text.endswith(": 1 pairs") for text in tests)
    seeds[Key("supermax", "emotion", 1)] = seeds[Key("supermax", "emotion", 0)]
    _, *tests = live_results.pair_rows(searches, seeds)
    expected = "mean +0.200 (0.000), higher in 2 of 2, lower in 0: +0.200, +0.200"
    assert [text.split(": ", 1)[1] for text in tests] == [expected] * 3
