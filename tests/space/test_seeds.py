"""First trials of a search: defaults, and the best of another study."""

from __future__ import annotations

from typing import Any

import pytest
from optuna.trial import TrialState

from supermax import Space, UserError
from supermax._util.attributes import ORIGIN, plain_params
from supermax.space import enqueue_defaults, open_version, warm_start
from supermax.space.feasible import draw_from_prior
from tests.space.versions import (
    BASE,
    ENCODERS,
    changed,
    filled,
    opened,
)


def test_defaults_are_enqueued_once(storage: Any) -> None:
    space = changed(
        warmup={"type": "float", "low": 0.0, "high": 0.3, "default": 0.1},
    )
    study = opened(space, storage).study
    assert enqueue_defaults(study, space)
    assert not enqueue_defaults(study, space)
    study.optimize(lambda trial: float(bool(space.sample(trial))), n_trials=1)
    assert plain_params(study.trials[0]) == space.defaults()
    assert not enqueue_defaults(study, space)
    with pytest.raises(UserError, match="no default: batch, warmup"):
        enqueue_defaults(study, Space(**BASE))


def test_a_warm_start_enqueues_the_best_of_another_study(storage: Any) -> None:
    source = opened(Space(**BASE), storage).study
    filled(source, Space(**BASE), 40)
    space = changed(warmup=None, clip={"type": "float", "low": 0.1, "high": 5.0})
    study = open_version(space, storage=storage, name="other").study
    queued, left = warm_start(study, space, source, top=5)
    assert queued == 0  # clip is not known, and has no default
    assert left["clip is new and has no default"] > 0
    space = changed(warmup=None, encoder={"choices": ENCODERS[:3]})
    study = open_version(space, storage=storage, name="third").study
    queued, left = warm_start(study, space, source, top=5)
    assert queued == 5
    study.optimize(lambda trial: float(bool(space.sample(trial))), n_trials=5)
    fitting = [
        t
        for t in sorted(source.trials, key=lambda t: (t.value is None, t.value))
        if t.state is TrialState.COMPLETE and t.params["encoder"] in ENCODERS[:3]
    ]
    for ours, theirs in zip(study.trials, fitting, strict=False):
        wanted = {k: v for k, v in plain_params(theirs).items() if k != "warmup"}
        assert plain_params(ours) == wanted
        assert ours.user_attrs[ORIGIN] == {"study": "s", "number": theirs.number}
    again = warm_start(study, space, source, top=5)  # as if the program were started again
    assert (again[0], again[1]["it is there already"]) == (0, 5)
    assert warm_start(study, space, source, top=6)[0] == 1


def test_prior_draws_are_valid() -> None:
    import numpy as np

    rng = np.random.RandomState(0)
    for _ in range(200):
        values = draw_from_prior(Space(**BASE), rng)
        assert [m for m in Space(**BASE).mistakes(values) if "breaks" not in m] == []
