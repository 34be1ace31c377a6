"""Portfolios: configurations to begin a search with, chosen on recorded curves.

    python benchmarks/search/portfolio.py --taskset DIR --lcbench DIR --tweeteval

Writes portfolios.json beside this file: for each task of the tuning half, the portfolio chosen on
the *other* tuning tasks of its family (leave one out; tables of the same data are left out
together); for each family, the one chosen on all of its tuning tasks, with which a task of the
reporting half begins. Prints how near the portfolios come to the best configuration of the task
that was left out, and how near the defaults and random configurations come. The reporting half is
not read.

Choice: of 1,000 configurations drawn evenly and the defaults, the one that lowers the mean
logarithm of the lowest regret the most, again and again. Regrets count between 0.01 and 1. Where
configurations were recorded, the choice is between these, and the first one is the defaults, with
which `supermax tune` begins.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import families
import numpy as np
from measure import data_of, tasks_of
from tables import Params, Table, drawn_evenly

FILE = Path(__file__).with_name("portfolios.json")
SIZE = 8
_CANDIDATES = 1000
_SEED = 12345
_DRAWS = 2000  # of random configurations
_NEAREST, _FARTHEST = 0.01, 1.0  # regrets beyond these do not change the choice


def greedy(regrets: np.ndarray, size: int, first: Sequence[int] = ()) -> list[int]:
    """Return the columns of a portfolio. `regrets`: one row per task, one column per candidate;
    `first`: columns to begin with. It ends early if no candidate lowers the regret of any task
    further."""
    logs = np.log(np.clip(regrets, _NEAREST, _FARTHEST))
    chosen = list(first)
    lowest = logs[:, chosen].min(1, initial=np.inf)
    while len(chosen) < size:
        means = np.minimum(lowest[:, None], logs).mean(0)
        best = int(np.argmin(means))
        if means[best] >= lowest.mean():
            break
        chosen.append(best)
        lowest = np.minimum(lowest, logs[:, best])
    return chosen


def candidates_of(table: Table) -> list[Params]:
    """Return the configurations to choose from, the same for all tasks with this space."""
    if table.recorded:
        return list(table.recorded)
    rng = np.random.default_rng(_SEED)
    drawn = [drawn_evenly(rng, table.space) for _ in range(_CANDIDATES)]
    return [*drawn, table.defaults]


def lowest_regrets(table: Table, candidates: Sequence[Params]) -> np.ndarray:
    """Return the regret of each candidate after a full training."""
    return np.array([table.regret(float(table.curve(params).min())) for params in candidates])


@functools.cache
def _stored() -> dict[str, dict[str, list[Params]]]:
    stored: dict[str, dict[str, list[Params]]] = json.loads(FILE.read_text(encoding="utf-8"))
    return stored


def portfolio_of(table: Table) -> list[Params]:
    """Return the configurations with which a search on a task begins; its defaults if there is no
    portfolio of its family."""
    left_out = _stored()["left out"].get(table.name)
    of_family = _stored()["family"].get(table.name.split("-")[0])
    return left_out or of_family or [table.defaults]


class Built(NamedTuple):
    """Portfolios of a family."""

    portfolios: dict[str, list[Params]]
    """Portfolio of each task, built from the other tasks, and that of all tasks, under the name of
    the family."""
    left_out: np.ndarray
    """Regret of each left-out task (rows) after each configuration (columns)."""
    defaults: np.ndarray
    """Regret of the defaults of each task."""
    random: np.ndarray
    """As `left_out`, after the defaults and random configurations: the mean."""


def build(found: Sequence[Table], size: int) -> Built:
    """Choose the portfolios of a family."""
    candidates = candidates_of(found[0])
    regrets = np.stack([lowest_regrets(table, candidates) for table in found])
    default = candidates.index(found[0].defaults)
    first = [default] if found[0].recorded else []
    data = np.array([data_of(table.name) for table in found])
    portfolios, curves = {}, []
    for row, table in enumerate(found):
        chosen = greedy(regrets[data != data[row]], size, first)
        portfolios[table.name] = [candidates[i] for i in chosen]
        own = np.minimum.accumulate(regrets[row, chosen])
        curves.append(np.pad(own, (0, size - len(own)), mode="edge"))
    family = found[0].name.split("-")[0]
    portfolios[family] = [candidates[i] for i in greedy(regrets, size, first)]
    random = np.array([_after_random(own, own[default], size) for own in regrets])
    return Built(portfolios, np.array(curves), regrets[:, default], random)


def _after_random(regrets: np.ndarray, first: float, size: int) -> np.ndarray:
    """Return the mean regret after the first configuration and random ones."""
    rng = np.random.default_rng(_SEED)
    drawn = rng.choice(regrets, (_DRAWS, size))
    drawn[:, 0] = first
    mean: np.ndarray = np.minimum.accumulate(drawn, axis=1).mean(0)
    return mean


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    families.add_sources(parser)
    parser.add_argument("--size", type=int, default=SIZE)
    parser.add_argument("--into", type=Path, default=FILE)
    options = parser.parse_args()
    sources = families.sources_of(options)
    names = tasks_of("tuning", families.names(sources), reason=None, log=Path())
    of_families: dict[str, list[Params]] = {}
    left_out: dict[str, list[Params]] = {}
    print(f"{'family':10}{'size':>4}{'median':>8}{'mean':>7}{'at most 0.05':>14}{'worst':>7}"
          f"{'defaults':>10}{'and random':>12}   (task left out)")  # fmt: skip
    for family in dict.fromkeys(name.split("-")[0] for name in names):
        own = [name for name in names if name.startswith(f"{family}-")]
        built = build([families.read(name, sources) for name in own], options.size)
        of_families[family] = built.portfolios.pop(family)
        left_out |= built.portfolios
        for size, column in enumerate(built.left_out.T, 1):
            reached = f"{np.sum(column <= 0.05)} of {len(column)}"
            print(f"{family:10}{size:4}{np.median(column):8.3f}{column.mean():7.3f}{reached:>14}"
                  f"{column.max():7.3f}{built.defaults.mean():10.3f}"
                  f"{built.random[:, size - 1].mean():12.3f}")  # fmt: skip
    text = json.dumps({"family": of_families, "left out": left_out}, indent=1)
    options.into.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
