"""Trials after which searches on recorded curves end by themselves, and what they lose by it.

    python benchmarks/search/stopping.py --taskset DIR --lcbench DIR --trials 150 --seeds 2

TPE searches each task of the tuning half, and the value of a trial is its best epoch. The rule of
`stop: when_no_gain` (supermax/engine/gain.py) is then applied to the values. Lost: the best value
of the whole search less that at the end; too early: searches that lost more than the noise. DIR:
files of taskset.py and lcbench.py; --lcbench needs onnxruntime.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median

import families
import optuna
from measure import tasks_of
from tables import Table

from supermax.engine import gain
from supermax.engine.gain import Tried, expected_gain

NOISES = (0.02, 0.01, 0.005, None)
"""Errors of a value; None: unknown."""


def values_of(table: Table, trials: int, seed: int) -> list[float]:
    """Return the values of a search, higher is better."""
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))

    def objective(trial: optuna.Trial) -> float:
        params = {name: trial._suggest(name, domain) for name, domain in table.space.items()}
        return float(table.curve(params).min())

    study.optimize(objective, trials)
    return [-trial.value for trial in study.trials if trial.value is not None]


def end_of(values: Sequence[float], noise: float | None) -> int:
    """Return the number of trials after which a search ends; all of them if it does not."""
    tried = [Tried(float(i), value) for i, value in enumerate(values)]
    for count in range(gain.FEWEST, len(values)):
        found = expected_gain(tried[:count], noise)
        if found is not None and found.over:
            return count
    return len(values)


def lines(searches: dict[str, list[list[float]]]) -> Iterator[str]:
    """Yield a line for each family of tasks and noise."""
    yield f"{'tasks':<10}{'noise':>8}{'searches':>10}{'median end':>12}{'not ended':>11}" + (
        f"{'lost, mean':>12}{'largest':>10}{'too early':>11}"
    )
    for family, found in searches.items():
        for noise in NOISES:
            ends = [end_of(values, noise) for values in found]
            lost = [max(v) - max(v[:end]) for v, end in zip(found, ends, strict=True)]
            left = sum(end == len(v) for v, end in zip(found, ends, strict=True))
            early = "" if noise is None else str(sum(each > noise for each in lost))
            yield (
                f"{family:<10}{noise or 'unknown':>8}{len(found):>10}{median(ends):>12.0f}"
                f"{left:>11}{fmean(lost):>12.4f}{max(lost):>10.4f}{early:>11}"
            )


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    families.add_sources(parser)
    parser.add_argument("--trials", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--fewest", type=int, default=gain.FEWEST, help="least trials of a search")
    options = parser.parse_args(arguments)
    gain.FEWEST = options.fewest
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sources = families.sources_of(options)
    names = families.names(sources)
    searches: dict[str, list[list[float]]] = {}
    for name in tasks_of("tuning", names, reason=None, log=Path()):
        table = families.read(name, sources)
        family = searches.setdefault(name.split("-", 1)[0], [])
        family += [values_of(table, options.trials, seed) for seed in range(options.seeds)]
    print("\n".join(lines(searches)))


if __name__ == "__main__":
    main(sys.argv[1:])
