"""Portfolios: configurations to begin a search with, chosen on recorded curves.

    python benchmarks/search/portfolio.py --taskset DIR --lcbench DIR

Writes portfolios.json beside this file: for each task of the tuning half, the portfolio chosen on
the *other* tuning tasks of its family (leave one out); for each family, the one chosen on all of
its tuning tasks, with which a task of the reporting half begins. Prints how near the portfolios
come to the best configuration of the task that was left out. The reporting half is not read.

Choice: of 1,000 configurations drawn evenly and the defaults, the one that lowers the mean
logarithm of the lowest regret the most, again and again. Regrets count between 0.01 and 1.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Sequence
from pathlib import Path

import families
import numpy as np
from measure import tasks_of
from tables import Params, Table, drawn_evenly

FILE = Path(__file__).with_name("portfolios.json")
SIZE = 8
_CANDIDATES = 1000
_SEED = 12345
_NEAREST, _FARTHEST = 0.01, 1.0  # regrets beyond these do not change the choice


def greedy(regrets: np.ndarray, size: int) -> list[int]:
    """Return the columns of a portfolio. `regrets`: one row per task, one column per candidate.
    It ends early if no candidate lowers the regret of any task further."""
    logs = np.log(np.clip(regrets, _NEAREST, _FARTHEST))
    lowest, chosen = np.full(len(logs), np.inf), []
    for _ in range(size):
        means = np.minimum(lowest[:, None], logs).mean(0)
        best = int(np.argmin(means))
        if means[best] >= lowest.mean():
            break
        chosen.append(best)
        lowest = np.minimum(lowest, logs[:, best])
    return chosen


def candidates_of(table: Table) -> list[Params]:
    """Return the configurations to choose from, the same for all tasks with this space."""
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


def build(found: Sequence[Table], size: int) -> tuple[dict[str, list[Params]], np.ndarray]:
    """Return the portfolio of each task of a family from the other tasks, with that of all tasks
    under the name of the family; and the regrets of left-out tasks after each configuration."""
    candidates = candidates_of(found[0])
    regrets = np.stack([lowest_regrets(table, candidates) for table in found])
    portfolios, curves = {}, []
    for row, table in enumerate(found):
        chosen = greedy(np.delete(regrets, row, axis=0), size)
        portfolios[table.name] = [candidates[i] for i in chosen]
        own = np.minimum.accumulate(regrets[row, chosen])
        curves.append(np.pad(own, (0, size - len(own)), mode="edge"))
    family = found[0].name.split("-")[0]
    portfolios[family] = [candidates[i] for i in greedy(regrets, size)]
    return portfolios, np.array(curves)


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
    print("family   size  median  mean   at most 0.05  worst   (task left out)")
    for family in dict.fromkeys(name.split("-")[0] for name in names):
        own = [name for name in names if name.startswith(f"{family}-")]
        found = [families.read(name, sources) for name in own]
        portfolios, curves = build(found, options.size)
        of_families[family] = portfolios.pop(family)
        left_out |= portfolios
        for size, column in enumerate(curves.T, 1):
            reached = f"{np.sum(column <= 0.05)} of {len(column)}"
            mean = f"{column.mean():.3f}"
            print(f"{family:8} {size:4} {np.median(column):7.3f} {mean:>6}  {reached:>12} "
                  f"{column.max():6.3f}")  # fmt: skip
    text = json.dumps({"family": of_families, "left out": left_out}, indent=1)
    options.into.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
