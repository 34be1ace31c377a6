"""Measure what constraints in the space save and cost, against Optuna in the same run.

    make bench                                  with the engine's benchmark
    python benchmarks/space.py --only wasted,draw,carry --scale 0.2

wasted  trials spent on infeasible points, and the best value found, where 20 % and 80 % of the
        space are infeasible: against pruning at run time, and against Optuna's set_constraint
draw    the time of one draw of a 30-parameter conditional space at 1,000 trials, per sampler
carry   the copy of 5,000 trials into the next version of a study on SQLite, against add_trial
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optuna
from common import Line, at_most, main
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from supermax._util.attributes import ORIGIN
from supermax.space import Space, load, open_version, sampler_for
from supermax.space.feasible import draw_from_prior as prior_draw
from supermax.space.migration.bulk_write import add_trials

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.simplefilter("ignore")

# Infeasible beyond a wall at which the optimum lies; the wall depends on two of five dimensions.
WALLS = {"20 %": 2 - 0.4**0.5, "80 %": 0.4**0.5}
TRIALS, SEEDS = 200, 30


def value(config: Mapping[str, Any]) -> float:
    distance = (config["x"] - 0.9) ** 2 + (config["y"] - 0.9) ** 2
    return float(
        distance
        + 0.3 * (config["u"] - 0.3) ** 2
        + 0.3 * (np.log10(config["lr"]) + 4) ** 2
        + {"a": 0.2, "b": 0.0, "c": 0.1}[config["kind"]]
    )


def walled(limit: float) -> Space:
    unit = {"type": "float", "low": 0, "high": 1}
    return Space(
        parameters={
            "x": unit,
            "y": unit,
            "u": unit,
            "lr": {"type": "float", "low": 1e-6, "high": 1e-2, "log": True},
            "kind": {"choices": ["a", "b", "c"]},
        },
        constraints=[{"name": "wall", "require": f"x + y <= {limit}", "reason": "no room"}],
    )


def search(limit: float, how: str, n: int, seed: int) -> tuple[float, float]:
    """Return the share of infeasible trials and the best value of the feasible ones."""
    space = walled(limit)
    open_space = Space(**{**space.data(), "constraints": []})
    inner = TPESampler(multivariate=True, seed=seed)
    sampler: BaseSampler = sampler_for(space, inner, seed=seed) if how == "space" else inner
    study = optuna.create_study(sampler=sampler)

    def objective(trial: optuna.Trial) -> float:
        config = (space if how == "space" else open_space).sample(trial)
        violation = config["x"] + config["y"] - limit
        if how == "set_constraint":  # as Optuna documents it: the objective is evaluated anyway
            trial.set_constraint("wall", violation)
        elif violation > 0:
            raise optuna.TrialPruned
        trial.set_user_attr("feasible", violation <= 0)
        return value(config)

    study.optimize(objective, n_trials=n)
    feasible = [t for t in study.trials if t.user_attrs.get("feasible")]
    good = [t.value for t in feasible if t.value is not None]
    return 1 - len(good) / n, min(good, default=float("inf"))


def bench_wasted(folder: str, scale: float) -> list[Line]:
    lines = []
    seeds = range(max(2, int(SEEDS * scale)))
    for share, limit in WALLS.items():
        found = {
            how: [search(limit, how, TRIALS, seed) for seed in seeds]
            for how in ("space", "prune", "set_constraint")
        }
        wasted = {how: statistics.mean(w for w, _ in some) for how, some in found.items()}
        best = {how: statistics.median(b for _, b in some) for how, some in found.items()}
        peers = (
            f"{wasted['prune']:.0%} pruning, {wasted['set_constraint']:.0%} with set_constraint"
        )
        name = f"{share} infeasible: trials wasted of {TRIALS}"
        share_wasted = wasted["space"]
        lines.append(Line(name, f"{share_wasted:.0%}", peers, share_wasted, "0", not share_wasted))
        best_peer = min(best["prune"], best["set_constraint"])
        lines.append(
            Line(
                f"    best value, median of {len(seeds)} seeds (lower is better)",
                f"{best['space']:.4f}",
                f"{best['prune']:.4f} pruning, {best['set_constraint']:.4f} with set_constraint",
                best["space"] / best_peer,
                "no worse",
                best["space"] <= best_peer,
            )
        )
    return lines


def filled(space: Space, n: int) -> list[FrozenTrial]:
    rng = np.random.RandomState(0)
    trials: list[FrozenTrial] = []
    while len(trials) < n:
        values = prior_draw(space, rng)
        if space.broken(values):
            continue
        stored = space.stored(values)
        trials.append(
            create_trial(
                state=TrialState.COMPLETE,
                value=float(rng.rand()),
                params=stored,
                distributions={name: space.distributions[name] for name in stored},
                intermediate_values={step: float(rng.rand()) for step in range(20)},
            )
        )
    return trials


def seconds_a_draw(space: Space, sampler: BaseSampler, trials: list[FrozenTrial], n: int) -> float:
    study = optuna.create_study(sampler=sampler)
    study.add_trials(trials)
    space.sample(study.ask())  # warm up caches
    times = []
    for _ in range(n):
        started = time.perf_counter()
        space.sample(study.ask())
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def bench_draw(folder: str, scale: float) -> list[Line]:
    """Measure one draw from a space with conditions and no constraints: one draw per trial."""
    n = max(5, int(30 * scale))
    space = Space(**{**load("criteria").data(), "constraints": []})
    trials = filled(space, 1000)
    makers: dict[str, Callable[[], BaseSampler]] = {
        "TPE, conditional parameters jointly": lambda: TPESampler(
            multivariate=True, group=True, seed=0
        ),
        "TPE with defaults": lambda: TPESampler(seed=0),
        "random": lambda: RandomSampler(seed=0),
    }
    lines = []
    for name, make in makers.items():
        theirs = seconds_a_draw(space, make(), trials, n)
        ours = seconds_a_draw(space, sampler_for(space, make(), seed=0), trials, n)
        title = f"a draw of {len(space.parameters)} parameters at 1,000 trials: {name}"
        times = f"{ours * 1e3:.1f} ms", f"{theirs * 1e3:.1f} ms"
        lines.append(at_most(title, *times, ours / theirs, 1.2))
    return lines


def bench_carry(folder: str, scale: float) -> list[Line]:
    """Measure the migration of a study with many trials to a changed space."""
    n = int(5000 * scale)
    space = load("criteria")
    storage = f"sqlite:///{folder}/study.db"
    opened = open_version(space, storage=storage)
    trials = filled(space, n)
    few = trials[:50]
    started = time.perf_counter()
    for trial in few:
        opened.study.add_trial(trial)
    theirs = (time.perf_counter() - started) / len(few)
    for number, trial in enumerate(trials[50:], 50):
        trial.system_attrs = {ORIGIN: {"study": "elsewhere", "number": number}}
    add_trials(opened.study, trials[50:])
    data = space.data()
    data["parameters"]["optim.lr"][1]["high"] = 1e-3
    started = time.perf_counter()
    again = open_version(Space(**data), storage=storage)
    ours = time.perf_counter() - started
    assert again.carried == n, again.left
    return [
        Line(
            f"{n} trials copied ({len(space.parameters)} parameters, 20 steps, SQLite)",
            f"{ours:.1f} s ({ours / n * 1e3:.2f} ms a trial)",
            f"{theirs * n:.0f} s by add_trial ({theirs * 1e3:.1f} ms a trial)",
            ours / n / theirs,
            "under a minute",
            ours < 60,
        )
    ]


BENCHES = {"wasted": bench_wasted, "draw": bench_draw, "carry": bench_carry}

if __name__ == "__main__":
    sys.exit(main("space", "The space compared with Optuna alone, same run", BENCHES, __doc__))
