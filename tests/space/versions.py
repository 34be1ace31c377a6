"""Study of a space with real trials, for tests of versions."""

from __future__ import annotations

from typing import Any

import optuna
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

import supermax
from supermax import Space
from supermax._util.attributes import ORIGIN, plain_params
from supermax.space import Opened, open_version

ENCODERS = ["bert", "bert-large", "roberta", "deberta", "xlmr", "electra", "electra-large"]
BASE: dict[str, Any] = {
    "name": "s",
    "parameters": {
        "encoder": {"choices": ENCODERS, "default": "bert"},
        "lr": {"type": "float", "low": 1e-5, "high": 1e-3, "log": True, "default": 1e-4},
        "batch": [
            {"when": "encoder in ['bert-large', 'electra-large']", "choices": [8, 16]},
            {"choices": [8, 16, 32, 64], "default": 16},
        ],
        "warmup": {"type": "float", "low": 0.0, "high": 0.3},
    },
    "constraints": [{"name": "small", "require": "batch <= 32 or lr < 5e-4", "reason": "noise"}],
}


def changed(**parameters: Any) -> Space:
    """Return BASE with some parameters replaced; None removes one."""
    merged = {**BASE["parameters"], **{k.replace("__", "."): v for k, v in parameters.items()}}
    return Space(**{**BASE, "parameters": {k: v for k, v in merged.items() if v is not None}})


def filled(study: Study, space: Space, n: int, seed: int = 0) -> None:
    """Add trials in all finished states, with curves, attributes and dates."""
    import numpy as np

    rng = np.random.RandomState(seed)
    study.sampler = supermax.space.sampler_for(space, "random", seed=seed)
    quick = optuna.create_study(directions=study.directions, sampler=study.sampler)
    for number in range(n):
        trial = quick.ask()
        space.sample(trial)
        trial.set_user_attr("note", {"n": number, "list": [1, 2]})
        for step in range(3):
            trial.report(float(rng.rand()) if step else float("nan"), step)
        if number % 7 == 3:
            quick.tell(trial, state=TrialState.PRUNED)
        elif number % 7 == 5:
            quick.tell(trial, state=TrialState.FAIL)
        else:
            quick.tell(trial, float(rng.rand()) if number % 11 else float("inf"))
    study.add_trials(quick.get_trials(deepcopy=False))


def essence(trial: FrozenTrial) -> dict[str, Any]:
    """Return everything of a trial that carrying it over must keep."""
    origin = trial.system_attrs.get(ORIGIN, {})
    return {
        "params": plain_params(trial),
        "state": trial.state,
        "values": trial.values,
        "steps": {step: repr(value) for step, value in trial.intermediate_values.items()},
        "attributes": trial.user_attrs,
        "start": trial.datetime_start,
        "end": trial.datetime_complete,
        "root": (origin.get("study"), origin.get("number")),
    }


def by_root(study: Study) -> dict[Any, dict[str, Any]]:
    essences = [essence(trial) for trial in study.get_trials()]
    assert len({e["root"] for e in essences}) == len(essences)
    return {e["root"]: e for e in essences}


def opened(space: Space, storage: Any, **options: Any) -> Opened:
    return open_version(space, storage=storage, name="s", **options)


def by_root_of(study: Study) -> dict[Any, dict[str, Any]]:
    return {
        (study.study_name, t.number): {**essence(t), "root": (study.study_name, t.number)}
        for t in study.trials
    }
