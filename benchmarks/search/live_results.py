"""Results of live searches: the lines of live.py, and their table.

Regrets are those of the incumbent's configuration, as the recorded trainings predict them for the
mean over seeds (tweeteval.py). The best value of a single training would be luck in part.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tables import Table
from trainings import EPOCHS, RECORDING
from tweeteval import read

from supermax.search.race_rules import RaceRules, race_state

BUDGET = 30 * EPOCHS
"""Epochs of a search."""
CONTESTANTS = 3
"""Configurations of a race."""
RACE_SEEDS, FRESH_SEEDS = (11, 12, 13, 14, 15), (21, 22, 23)
Config = dict[str, Any]


class Key(NamedTuple):
    """One search."""

    contender: str
    task: str
    seed: int


class Epoch(NamedTuple):
    """Scores after an epoch of a trial."""

    epoch: int
    time: float
    validation: float
    test: float


@dataclass(frozen=True)
class Search:
    """Line of a search."""

    key: Key
    seconds: float
    params: list[Config]
    """Configuration of each trial."""
    epochs: list[list[Epoch]]


@dataclass(frozen=True)
class Training:
    """Line of a training with a further seed."""

    key: Key
    place: int
    """Place of its configuration among those of the search, by validation score."""
    seed: int
    epochs: list[Epoch]


Trainings = dict[tuple[int, int], Training]
"""Trainings of a search with further seeds, by place and seed."""


def read_lines(file: Path) -> tuple[dict[Key, Search], dict[tuple[Key, int, int], Training]]:
    """Read the searches and the trainings that are done."""
    searches, trainings = {}, {}
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    for line in map(json.loads, lines):
        key = Key(*line["key"])
        if "params" in line:
            epochs = [[Epoch(*e) for e in trial] for trial in line["epochs"]]
            searches[key] = Search(key, line["seconds"], line["params"], epochs)
        else:
            epoch = [Epoch(*e) for e in line["epochs"]]
            known = Training(key, line["place"], line["seed"], epoch)
            trainings[key, known.place, known.seed] = known
    return searches, trainings


class Chosen(NamedTuple):
    """Configuration that a search found."""

    score: float
    params: Config


def best_of(found: Search, budget: int = BUDGET) -> list[Chosen]:
    """Return the configurations by their best validation score within a budget of epochs."""
    limit = _time_of(found, budget)
    scores = [
        max((score_of(e.validation) for e in epochs if e.time <= limit), default=-math.inf)
        for epochs in found.epochs
    ]
    order = sorted(range(len(scores)), key=lambda number: (-scores[number], number))
    return [Chosen(scores[n], found.params[n]) for n in order if scores[n] > -math.inf]


def _time_of(found: Search, budget: int) -> float:
    """Return the time at which the search had spent so many epochs."""
    times = sorted(e.time for epochs in found.epochs for e in epochs)
    return times[min(budget, len(times)) - 1]


def score_of(value: float) -> float:
    """Return a validation score; 0 for a training that diverged."""
    return value if math.isfinite(value) else 0.0


def at_best(epochs: Sequence[Epoch]) -> Epoch:
    """Return the epoch with the best validation score."""
    return max(epochs, key=lambda e: (score_of(e.validation), -e.epoch))


def further_trainings(key: Key) -> list[tuple[int, int]]:
    """Return place and seed of the trainings that a search needs after its end: those of a race,
    and those with the seeds of the test."""
    if key.contender != "supermax":
        return [(0, seed) for seed in FRESH_SEEDS]
    return list(itertools.product(range(CONTESTANTS), (*RACE_SEEDS, *FRESH_SEEDS)))


def is_complete(key: Key, found: Trainings) -> bool:
    """Return whether a search has all its trainings with further seeds."""
    return all(pair in found for pair in further_trainings(key))


def _race_scores(found: Trainings) -> dict[tuple[int, int], float]:
    return {
        pair: at_best(training.epochs).validation
        for pair, training in found.items()
        if pair[1] in RACE_SEEDS
    }


def best_mean(found: Trainings) -> int:
    """Return the place with the best mean over the seeds of a race."""
    scores = _race_scores(found)
    means = {p: np.mean([scores[p, s] for s in RACE_SEEDS]) for p in range(CONTESTANTS)}
    return max(means, key=lambda place: means[place])


def raced(found: Trainings) -> int:
    """Return the place of the winner of a race, as the search would run it."""
    scores = _race_scores(found)
    places = sorted({place for place, _ in scores})
    winner = race_state(places, scores, RaceRules(RACE_SEEDS)).winner
    return 0 if winner is None else winner


@functools.cache
def _table(name: str) -> Table:
    return read(RECORDING, name)  # fits a surrogate


def incumbent_regret(found: Search, share: float) -> float:
    """Return the regret of the incumbent, as the recorded trainings predict it for the mean over
    seeds."""
    table = _table(f"{found.key.task}-whole")
    best = best_of(found, round(share * BUDGET))[0]
    return table.regret(float(table.curve(best.params).min()))


def print_table(file: Path) -> None:
    """Print a row per task and contender, then the comparisons in pairs (pair_rows)."""
    searches, trainings = read_lines(file)
    seeds: dict[Key, Trainings] = defaultdict(dict)
    for (key, place, seed), training in trainings.items():
        seeds[key][place, seed] = training
    groups: dict[tuple[str, str], list[Search]] = defaultdict(list)
    for key, found in searches.items():
        groups[key.task, key.contender].append(found)
    print(f"{'task':16}{'contender':12}{'searches':>9}{'trials':>7}{'regret 25%':>11}{'50%':>7}"
          f"{'100%':>7}{'best value':>11}{'tested':>7}{'test of it':>11}{'test, raced':>12}"
          f"{'as high':>9}")  # fmt: skip
    for (task, contender), group in sorted(groups.items()):
        regrets = [np.mean([incumbent_regret(s, x) for s in group]) for x in (0.25, 0.5, 1.0)]
        value = np.mean([best_of(s)[0].score for s in group])
        number = np.mean([len(s.params) for s in group])
        own = [seeds[s.key] for s in group if is_complete(s.key, seeds[s.key])]
        best = [fresh_test(each, 0) for each in own]
        winner = [fresh_test(each, raced(each)) for each in own]
        as_high = sum(new >= old for new, old in zip(winner, best, strict=True))
        tests = [np.mean(x) if x else math.nan for x in (best, winner)]
        print(f"{task:16}{contender:12}{len(group):9}{number:7.0f}{regrets[0]:11.3f}"
              f"{regrets[1]:7.3f}{regrets[2]:7.3f}{value:11.4f}{len(own):7}"
              f"{tests[0]:11.4f}{tests[1]:12.4f}{as_high:9}")  # fmt: skip
    print(*pair_rows(searches, seeds), sep="\n")


def pair_rows(searches: Mapping[Key, Search], seeds: Mapping[Key, Trainings]) -> Iterator[str]:
    """Yield differences between `supermax` and `optuna` with the same task and seed, and between
    the winner of a race and the best of its search."""
    regrets, tests, by_rule, by_mean = [], [], [], []
    for key in searches:
        other = key._replace(contender="optuna")
        if key.contender != "supermax" or other not in searches:
            continue
        regrets.append(-incumbent_regret(searches[key], 1) + incumbent_regret(searches[other], 1))
        if is_complete(key, seeds[key]) and is_complete(other, seeds[other]):
            best, own = fresh_test(seeds[key], 0), seeds[key]
            winner = fresh_test(own, raced(own))
            tests.append(winner - fresh_test(seeds[other], 0))
            by_rule.append(winner - best)
            by_mean.append(fresh_test(own, best_mean(own)) - best)
    yield f"regret at the end, optuna less supermax: {_differences(regrets)}"
    yield f"test, winner of supermax less best of optuna: {_differences(tests)}"
    yield f"test, winner of the race less best of the search: {_differences(by_rule)}"
    yield f"test, best mean of the race less best of the search: {_differences(by_mean)}"


def _differences(found: Sequence[float]) -> str:
    """Return mean and standard error, and the differences that are not 0."""
    if len(found) < 2:
        return f"{len(found)} pairs"
    error = np.std(found, ddof=1) / math.sqrt(len(found))
    above, below = sum(x > 0 for x in found), sum(x < 0 for x in found)
    listed = ", ".join(f"{x:+.3f}" for x in sorted(found) if x)
    return (f"mean {np.mean(found):+.3f} ({error:.3f}), higher in {above} of {len(found)}, "
            f"lower in {below}: {listed}")  # fmt: skip


def fresh_test(found: Trainings, place: int) -> float:
    """Return the mean test score of a configuration over seeds that no choice has seen."""
    own = [at_best(found[place, s].epochs).test for s in FRESH_SEEDS if (place, s) in found]
    return float(np.mean(own)) if own else math.nan
