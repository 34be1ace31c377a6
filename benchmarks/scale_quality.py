"""Search quality of TPE with a window of its trials, and with suggestions computed ahead, beside
Optuna's TPE with all trials: the same seeds, functions and number of trials."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import optuna
from optuna.samplers import BaseSampler, TPESampler
from scipy import stats

from supermax.engine.sampling.bounded_sampler import BoundedSampler
from supermax.engine.sampling.trial_window import LIMIT
from supermax.engine.storage.history import TrialHistory

Objective = Callable[[optuna.Trial], float]


def _floats(trial: optuna.Trial, n: int, low: float, high: float) -> list[float]:
    return [trial.suggest_float(f"x{i}", low, high) for i in range(n)]


def branin(trial: optuna.Trial) -> float:
    x, y = trial.suggest_float("x", -5, 10), trial.suggest_float("y", 0, 15)
    inner = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
    return inner**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


def ackley(trial: optuna.Trial) -> float:
    """Ten dimensions, many local minima; the optimum is off the centre."""
    xs = [x - 3.7 for x in _floats(trial, 10, -15, 30)]
    spread = math.sqrt(sum(x * x for x in xs) / len(xs))
    waves = sum(math.cos(2 * math.pi * x) for x in xs) / len(xs)
    return -20 * math.exp(-0.2 * spread) - math.exp(waves) + 20 + math.e


def rosenbrock(trial: optuna.Trial) -> float:
    xs = _floats(trial, 6, -2, 2)
    return sum(100 * (b - a * a) ** 2 + (1 - a) ** 2 for a, b in itertools.pairwise(xs))


def levy(trial: optuna.Trial) -> float:
    ws = [1 + (x - 1) / 4 for x in _floats(trial, 8, -10, 10)]
    middle = sum((w - 1) ** 2 * (1 + 10 * math.sin(math.pi * w + 1) ** 2) for w in ws[:-1])
    end = (ws[-1] - 1) ** 2 * (1 + math.sin(2 * math.pi * ws[-1]) ** 2)
    return math.sin(math.pi * ws[0]) ** 2 + middle + end


def mixed(trial: optuna.Trial) -> float:
    """Categories that shift the optimum, a log scale, integers, and a parameter that most
    categories do not have."""
    kind = trial.suggest_categorical("kind", ["a", "b", "c", "d"])
    rate = math.log10(trial.suggest_float("rate", 1e-6, 1e-1, log=True))
    layers = trial.suggest_int("layers", 1, 24)
    drop = trial.suggest_float("drop", 0.0, 0.6)
    shift = {"a": 0.0, "b": 0.7, "c": -0.9, "d": 0.3}[kind]
    loss = (rate + 4 + shift) ** 2 + 0.02 * (layers - 9 - 4 * shift) ** 2 + 3 * (drop - 0.13) ** 2
    if kind == "d":
        loss += 2 * (trial.suggest_float("momentum", 0.5, 0.999) - 0.91) ** 2 - 0.05
    return loss + 0.3 * math.sin(5 * rate) ** 2


FUNCTIONS: dict[str, Objective] = {
    "Branin, 2 parameters": branin,
    "Rosenbrock, 6": rosenbrock,
    "Levy, 8": levy,
    "Ackley, 10": ackley,
    "mixed and conditional, 5": mixed,
}


@dataclass(frozen=True)
class Search:
    """One study: a function, a seed, and how the sampler is used."""

    function: str
    seed: int
    trials: int
    limit: int | None = None
    """Size of the window; None: Optuna's TPE, with all trials."""
    running: int = 1
    """Trials at a time. A suggestion that is computed ahead counts as one more."""

    def sampler(self, study: Callable[[], optuna.Study]) -> BaseSampler:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tpe = TPESampler(multivariate=True, group=self.function.startswith("mixed"),
                             seed=self.seed)  # fmt: skip
        if self.limit is None:
            return tpe
        history = TrialHistory(0)

        def read() -> TrialHistory:
            history.update(study().get_trials(deepcopy=False))
            return history

        return BoundedSampler(tpe, read, self.limit)

    def run(self) -> tuple[Search, float, float]:
        """Return the best value, and the milliseconds of the last hundred suggestions."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore")
        study = optuna.create_study()
        study.sampler = self.sampler(lambda: study)
        objective, queue, times = FUNCTIONS[self.function], [], []
        for _ in range(self.trials):
            started = time.perf_counter()
            trial = study.ask()
            value = objective(trial)  # takes no time beside the suggestions
            times.append(time.perf_counter() - started)
            queue.append((trial, value))
            if len(queue) >= self.running:  # in order, as trials of equal length end
                study.tell(*queue.pop(0))
        for pair in queue:
            study.tell(*pair)
        return self, study.best_value, 1e3 * statistics.median(times[-100:])


def run_all(searches: list[Search], processes: int) -> list[tuple[Search, float, float]]:
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=8) as pool:
        return list(pool.imap_unordered(Search.run, searches, chunksize=1))


@dataclass(frozen=True)
class Comparison:
    """Paired comparison of two arms over all functions and seeds."""

    function: str
    better: int
    worse: int
    ours: float
    theirs: float
    """Median of the best values."""

    @property
    def p_worse(self) -> float:
        """Probability of at least that many worse pairs if both arms were equal (sign test)."""
        pairs = self.better + self.worse
        if not pairs:
            return 1.0
        return float(stats.binomtest(self.worse, pairs, alternative="greater").pvalue)


def compare(
    ours: dict[tuple[str, int], float], theirs: dict[tuple[str, int], float]
) -> list[Comparison]:
    found = []
    for function in FUNCTIONS:
        pairs = [(v, theirs[key]) for key, v in ours.items() if key[0] == function]
        better, worse = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
        medians = [statistics.median(side) for side in zip(*pairs, strict=True)]
        found.append(Comparison(function, better, worse, *medians))
    return found


def total(parts: list[Comparison]) -> Comparison:
    return Comparison(
        "all", sum(p.better for p in parts), sum(p.worse for p in parts), math.nan, math.nan
    )


ARMS: dict[str, tuple[int | None, int]] = {
    "all trials": (None, 1),
    "window": (LIMIT, 1),
    "all trials, 8 at a time": (None, 8),
    "window, 8 at a time, one ahead": (LIMIT, 9),
}
PAIRS = (
    ("window", "all trials"),
    ("window, 8 at a time, one ahead", "all trials, 8 at a time"),
)
