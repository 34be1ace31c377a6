"""Evaluate the recorded fine-tuning curves: schedules, ranges, selection and surrogates.

    python benchmarks/search/curves.py

Prints, for the tasks of the tuning half:

    schedules     do epochs 1 and 3 of the nine-epoch schedule rank configurations more like the
                  nine-epoch training than complete schedules of one and three epochs do?
    epochs        the same for each epoch of the nine-epoch schedule, all configurations
    ranges        values of the best tenth and twentieth of the configurations of each task
    rates         the same for learning rates, in tenths of their range
    preset        how many of the best tenth are outside the ranges of the preset `standard`
    batches       learning rate and best epoch of the best tenth by effective batch, what early
                  stopping saves and loses there, and what short schedules lose on all
    selection     best configuration of one seed, and what its other seeds and the test split give
    race          test score of the winner of a race with one fresh seed, less that of the best
                  configuration of the first seed, for two rules that choose the winner
    surrogates    error of the two predictions of left-out configurations (surrogates.py)

The value of a training is its best validation macro F1, as in a search, or the test macro F1 of
the same epoch, which shares no rows with what ranks. Intervals: 95 %, bootstrap over
configurations; means over tasks are for these tasks.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import families
import numpy as np
import tweeteval
from measure import tasks_of
from optuna.distributions import CategoricalDistribution
from scipy.stats import kendalltau, spearmanr  # type: ignore[import-untyped]
from surrogates import GaussianProcess, NearestNeighbour
from trainings import (
    EPOCHS,
    RECORDING,
    SEEDS,
    SHORT,
    SPACE,
    Item,
    Line,
    configurations,
    read_lines,
)

from supermax.space import preset

Lines = dict[Item, Line]
Split = Literal["validation", "test"]
Measure = Callable[[np.ndarray, np.ndarray], float]
SHARES = (0.05, 0.1)
BATCHES = (16, 32, 64)
PATIENCE = (1, 2, 3)
_RESAMPLES = 1000


def tuning_tasks() -> list[str]:
    """Return the tables of the tuning half: task and encoder."""
    names = families.names(families.Sources(tweeteval=RECORDING))
    found = tasks_of("tuning", names, reason=None, log=Path())
    return [name.removeprefix("tweeteval-") for name in found]


def training(lines: Lines, name: str, number: int, epochs: int = EPOCHS, seed: int = 1) -> Line:
    task, encoder = name.rsplit("-", 1)
    return lines[Item(task, encoder, number, epochs, seed)]  # type: ignore[arg-type]


def value(line: Line, split: Split = "validation") -> float:
    """Return the score of a training at the epoch that is best in validation."""
    scores: list[float] = getattr(line, split)
    return scores[int(np.argmax(np.nan_to_num(line.validation)))]


def spearman(guess: np.ndarray, truth: np.ndarray) -> float:
    return float(spearmanr(guess, truth).statistic)


def kendall(guess: np.ndarray, truth: np.ndarray) -> float:
    return float(kendalltau(guess, truth).statistic)


def top_third(guess: np.ndarray, truth: np.ndarray) -> float:
    """Return the share of the best third that is in the best third by the guess."""
    count = round(len(truth) / 3)
    best = set(np.argsort(-truth, kind="stable")[:count])
    return len(best & set(np.argsort(-guess, kind="stable")[:count])) / count


MEASURES: dict[str, Measure] = {"Spearman": spearman, "Kendall": kendall, "top third": top_third}


class Guesses(NamedTuple):
    """Values of the configurations that were also trained with short schedules."""

    numbers: np.ndarray
    prefix: dict[int, np.ndarray]
    """By epoch: score of the nine-epoch training after it."""
    short: dict[int, np.ndarray]
    """By epochs: score of the complete short schedule."""
    truth: dict[Split, np.ndarray]


def guesses(lines: Lines, name: str) -> Guesses:
    task, encoder = name.rsplit("-", 1)
    trained = [{i.configuration for i in lines if i[:2] == (task, encoder) and i.epochs == epochs}
               for epochs in (*SHORT, EPOCHS)]  # fmt: skip
    numbers = sorted(set.intersection(*trained))
    full = [training(lines, name, i) for i in numbers]
    short = {e: [training(lines, name, i, e).validation[-1] for i in numbers] for e in SHORT}
    return Guesses(
        np.array(numbers),
        {e: np.array([line.validation[e - 1] for line in full]) for e in SHORT},
        {e: np.array(scores) for e, scores in short.items()},
        {s: np.array([value(line, s) for line in full]) for s in ("validation", "test")},
    )


class Compared(NamedTuple):
    """A measure of the prefix and of the short schedule, with bootstrap samples of both."""

    prefix: float
    short: float
    samples: np.ndarray
    """Rows: prefix, short schedule."""


def compared(found: Guesses, epochs: int, split: Split, measure: Measure) -> Compared:
    truth, rng = found.truth[split], np.random.default_rng(0)
    both = (found.prefix[epochs], found.short[epochs])
    drawn = rng.integers(len(truth), size=(_RESAMPLES, len(truth)))
    samples = np.array([[measure(guess[rows], truth[rows]) for rows in drawn] for guess in both])
    prefix, short = (measure(guess, truth) for guess in both)
    return Compared(prefix, short, samples)


def schedule_rows(lines: Lines, names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the comparison of prefixes with short schedules, per task and over tasks."""
    yield ["task", "n", "epochs", "value", "measure", "prefix", "short", "prefix - short"]
    found = {name: guesses(lines, name) for name in names}
    for epochs in SHORT:
        for split in ("validation", "test"):
            for title, measure in MEASURES.items():
                each = [compared(found[name], epochs, split, measure) for name in names]
                mean = np.mean([one.samples for one in each], axis=0)
                middle = np.mean([one[:2] for one in each], axis=0)
                over = Compared(float(middle[0]), float(middle[1]), mean)
                counts = [str(len(found[name].numbers)) for name in names]
                for name, count, one in zip(
                    [*names, "mean of tasks"], [*counts, ""], [*each, over], strict=True
                ):
                    yield [name, count, str(epochs), split, title, *_compared_cells(one)]


def _compared_cells(one: Compared) -> list[str]:
    difference = one.samples[0] - one.samples[1]
    parts = [(one.prefix, one.samples[0]), (one.short, one.samples[1]),
             (one.prefix - one.short, difference)]  # fmt: skip
    cells = []
    for i, (middle, samples) in enumerate(parts):
        low, high = np.nanquantile(samples, [0.025, 0.975])
        sign = "+" if i == 2 else ""
        cells.append(f"{middle:{sign}.2f} [{low:.2f}, {high:.2f}]")
    return cells


def epoch_rows(lines: Lines, names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the correlation of the value after each epoch with the value of the training."""
    yield ["task", "value", *(f"epoch {e}" for e in range(1, EPOCHS + 1))]
    for name in names:
        full = [training(lines, name, i) for i in range(len(configurations()))]
        scores = np.array([line.validation for line in full])
        for split in ("validation", "test"):
            truth = np.array([value(line, split) for line in full])
            yield [name, split, *(f"{spearman(column, truth):.2f}" for column in scores.T)]


def best(lines: Lines, name: str, share: float) -> np.ndarray:
    """Return the numbers of the best configurations of a task, in the first seed."""
    values = np.array([value(training(lines, name, i)) for i in range(len(configurations()))])
    return np.argsort(-values, kind="stable")[: round(share * len(values))]


def range_rows(lines: Lines, names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the values of the best configurations, per task and of all tasks together."""
    known = configurations()
    yield ["parameter", "best", *names, "all tasks"]
    for parameter, domain in SPACE.items():
        for share in SHARES:
            found = [[known[i][parameter] for i in best(lines, name, share)] for name in names]
            together = [x for values in found for x in values]
            if isinstance(domain, CategoricalDistribution):
                cells = [_counts(values, domain.choices) for values in (*found, together)]
            else:
                cells = [f"{min(v):.3g} to {max(v):.3g}" for v in (*found, together)]
            yield [parameter, f"{share:.0%}", *cells]


def _counts(values: Sequence[object], choices: Sequence[object]) -> str:
    return ", ".join(f"{choice} {values.count(choice)}" for choice in choices)


def lr_rows(lines: Lines, names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the number of configurations among the best tenth by learning rate, in tenths of its
    range."""
    edges = np.geomspace(1e-5, 5e-4, 11)
    rates = np.array([each["optim.lr"] for each in configurations()])
    yield ["learning rate", "configurations", *names]
    for low, high in itertools.pairwise(edges):
        inside = (rates >= low) & (rates < high)
        counts = [inside[best(lines, name, 0.1)].sum() for name in names]
        yield [f"{low:.2g} to {high:.2g}", str(inside.sum()), *map(str, counts)]


def preset_rows(lines: Lines, names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the number of configurations among the best tenth whose value the preset does not
    have, and the number that chance would give."""
    parameters = preset("criteria", "standard").space.parameters
    known = configurations()
    yield ["parameter", "chance", *names]
    for name in SPACE:
        domain = parameters[name].branches[0]
        outside = np.array([not domain.contains(each[name]) for each in known])
        counts = [str(outside[best(lines, task, 0.1)].sum()) for task in names]
        yield [name, f"{0.1 * outside.sum():.1f}", *counts]


def stopped_early(scores: Sequence[float], patience: int) -> tuple[int, float]:
    """Return the epochs of a training that stops after `patience` epochs without improvement, and
    its best score."""
    lead, worse = -np.inf, 0
    for epoch, score in enumerate(scores, 1):
        lead, worse = (score, 0) if score > lead else (lead, worse + 1)
        if worse == patience:
            return epoch, float(lead)
    return len(scores), float(lead)


class BatchGroup(NamedTuple):
    """Trainings with the same effective batch."""

    best: list[Line]
    """Those of the best tenth of each task."""
    rates: list[float]
    """Their learning rates."""
    shortened: dict[int, list[float]]
    """By epochs: score of the complete short schedule less that of nine epochs."""


def _batch_group(lines: Lines, names: Sequence[str], batch: int) -> BatchGroup:
    known = configurations()
    numbers = {i for i, each in enumerate(known) if each["train.effective_batch"] == batch}
    group = BatchGroup([], [], {epochs: [] for epochs in SHORT})
    for name in names:
        top = [i for i in best(lines, name, 0.1) if i in numbers]
        group.best.extend(training(lines, name, i) for i in top)
        group.rates.extend(known[i]["optim.lr"] for i in top)
        found = guesses(lines, name)
        inside = np.isin(found.numbers, list(numbers))
        for epochs in SHORT:
            difference = found.short[epochs] - found.truth["validation"]
            group.shortened[epochs].extend(difference[inside])
    return group


def batch_rows(lines: Lines, names: Sequence[str]) -> Iterator[list[str]]:
    """Yield what goes with each effective batch: learning rate, epochs, early stopping."""
    yield ["task", "batch", "of the best tenth", "learning rate (geometric mean)", "best epoch",
           *(f"patience {p}: epochs, loss" for p in PATIENCE),
           *(f"schedule of {e} less {EPOCHS}" for e in SHORT)]  # fmt: skip
    for title, chosen in [*((name, [name]) for name in names), ("all tasks", names)]:
        for batch in BATCHES:
            group = _batch_group(lines, chosen, batch)
            scores = [np.nan_to_num(line.validation) for line in group.best]
            cells = [f"{np.mean([np.argmax(each) + 1 for each in scores]):.1f}"]
            for patience in PATIENCE:
                stops = [stopped_early(each, patience) for each in scores]
                lost = [max(each) - score for each, (_, score) in zip(scores, stops, strict=True)]
                cells.append(f"{np.mean([e for e, _ in stops]):.1f}, {np.mean(lost):.3f}")
            cells += [f"{np.mean(group.shortened[epochs]):+.3f}" for epochs in SHORT]
            rate = f"{np.exp(np.mean(np.log(group.rates))):.1e}"
            yield [title, str(batch), str(len(scores)), rate, *cells]


def selection_rows(lines: Lines, names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the best configuration of the first seed, with what other seeds and test give."""
    yield ["task", "configuration", "best of seed 1", "mean of seeds 2, 3", "selection bias",
           "test, seed 1", "test, seeds 2, 3", "highest mean of three", "its test",
           "sd of seeds"]  # fmt: skip
    for name in names:
        top = [int(i) for i in best(lines, name, 20 / len(configurations()))]
        seeds = {i: [training(lines, name, i, seed=s) for s in (1, *SEEDS)] for i in top}
        first, *others = seeds[top[0]]
        fresh = float(np.mean([value(line) for line in others]))
        means = {i: np.mean([value(line) for line in found]) for i, found in seeds.items()}
        winner = max(means, key=lambda i: means[i])
        spread = np.sqrt(np.mean([np.var([value(x) for x in found[1:]], ddof=1)
                                  for found in seeds.values()]))  # fmt: skip
        cells = [value(first), fresh, value(first) - fresh, value(first, "test"),
                 np.mean([value(line, "test") for line in others]), means[winner],
                 np.mean([value(line, "test") for line in seeds[winner]]), spread]  # fmt: skip
        yield [name, str(top[0]), *(f"{cell:.3f}" for cell in cells)]


def race_rows(lines: Lines, names: Sequence[str]) -> Iterator[list[str]]:
    """Yield what a race of the best five of ten configurations changes in the test score.

    The ten are drawn from the best 20, which have three seeds: the first one is that of the
    search, one decides the race, and the other one gives the test score.
    """
    yield ["task", "rule", "difference in test", "at least as high"]
    for name in names:
        top = [int(i) for i in best(lines, name, 20 / len(configurations()))]
        seeds = [[training(lines, name, i, seed=s) for s in SEEDS] for i in top]
        scores = np.array([[value(line) for line in found] for found in seeds])
        test = np.array([[value(line, "test") for line in found] for found in seeds])
        error = np.sqrt(2 * np.mean(np.var(scores, axis=1, ddof=1)))  # of a difference
        random = np.random.default_rng(0)
        drawn = [sorted(random.choice(20, 10, replace=False))[:5] for _ in range(_RESAMPLES)]
        for rule, margin in (("best mean", 0.0), ("within one standard error", error)):
            found = [
                test[winner_of(five, scores[:, race], margin), other] - test[five[0], other]
                for five, (race, other) in itertools.product(drawn, ((0, 1), (1, 0)))
            ]
            share = np.mean(np.array(found) >= 0)
            yield [name, rule, f"{np.mean(found):+.4f}", f"{share:.2f}"]


def winner_of(contestants: Sequence[int], scores: np.ndarray, margin: float) -> int:
    """Return the first contestant whose score is at most `margin` below the best one."""
    lead = max(scores[i] for i in contestants)
    return next(i for i in contestants if lead - scores[i] <= margin)


def surrogate_rows(lines: Lines, names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the errors of predictions of left-out configurations."""
    yield ["task", "surrogate", "Spearman of lowest loss", "error of lowest loss",
           "error of curve"]  # fmt: skip
    for name in names:
        data = tweeteval.recorded(lines, name)
        lowest = data.losses.min(1)
        for kind in (NearestNeighbour, GaussianProcess):
            found = kind(data.points, data.losses).left_out()
            error = np.abs(found.min(1) - lowest).mean()
            cells = [f"{spearman(found.min(1), lowest):.2f}", f"{error:.4f}"]
            yield [name, kind.__name__, *cells, f"{np.abs(found - data.losses).mean():.4f}"]


PARTS: dict[str, Callable[[Lines, Sequence[str]], Iterator[list[str]]]] = {
    "schedules": schedule_rows,
    "epochs": epoch_rows,
    "ranges": range_rows,
    "rates": lr_rows,
    "preset": preset_rows,
    "batches": batch_rows,
    "selection": selection_rows,
    "race": race_rows,
    "surrogates": surrogate_rows,
}


def text_of(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as an aligned table."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recording", type=Path, default=RECORDING)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args(arguments)
    lines, names = read_lines(options.recording), tuning_tasks()
    for part in options.parts:
        print(f"\n{part}\n{text_of(list(PARTS[part](lines, names)))}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
