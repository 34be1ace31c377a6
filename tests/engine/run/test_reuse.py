"""Results of completed trials for later ones with the same configuration, which do not run."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

import supermax
from supermax._util.attributes import RECORD
from supermax.engine import events
from supermax.engine.ranking import copied_from, ranked
from supermax.engine.run.reuse import CompletedTrials, configuration_key
from supermax.engine.summary import Summary
from supermax.errors import UserError
from supermax.space import Space
from tests import ROOT

DISTRIBUTIONS = {"c": CategoricalDistribution(["a", "b", None]), "x": FloatDistribution(0, 1)}
SPACE = Space(
    name="small",
    parameters={
        "kind": {"choices": ["plain", "deep"]},
        "depth": {"when": "kind == 'deep'", "choices": [1, 2, 3]},
    },
)
"""Four configurations."""


# The decision.


def trial(
    number: int, params: dict[str, Any], state: str = "COMPLETE", **attrs: Any
) -> FrozenTrial:
    made = create_trial(
        state=TrialState[state],
        value=1.0 if state == "COMPLETE" else None,
        params=params,
        distributions={name: DISTRIBUTIONS[name] for name in params},
        **attrs,
    )
    made.number = number
    return made


def found_among(finished: list[FrozenTrial], new: FrozenTrial) -> int | None:
    completed = CompletedTrials()
    for end in range(len(finished) + 1):  # finished ones come one by one
        completed.add(finished[:end])
    original = completed.original_of(new)
    return None if original is None else original.number


def test_the_first_completed_trial_of_the_configuration_is_the_original() -> None:
    same = {"c": "a", "x": 0.25}
    copy = trial(1, same, user_attrs={RECORD: {"result_of": 0}})
    finished = [trial(4, same), copy, trial(2, same), trial(3, {"c": "a", "x": 0.5})]
    assert found_among(finished, trial(9, same, "RUNNING")) == 2
    assert found_among([copy], trial(9, same, "RUNNING")) is None


@pytest.mark.parametrize("state", ["FAIL", "PRUNED"])
def test_what_did_not_complete_is_no_original(state: str) -> None:
    same = {"c": "a", "x": 0.25}
    assert found_among([trial(0, same, state)], trial(1, same, "RUNNING")) is None


@pytest.mark.parametrize(
    ("params", "attrs"),
    [
        ({"c": None, "x": 0.25}, {}),
        ({"c": "a", "x": 0.25000001}, {}),
        ({"c": "a"}, {}),  # a parameter of another branch is missing
        ({}, {}),
        ({"c": "a", "x": 0.25}, {"system_attrs": {"fixed_params": {"c": "a"}}}),  # enqueued
    ],
)
def test_other_and_enqueued_configurations_run(
    params: dict[str, Any], attrs: dict[str, Any]
) -> None:
    finished = [trial(0, {"c": "a", "x": 0.25}), trial(1, {})]
    assert found_among(finished, trial(2, params, "RUNNING", **attrs)) is None


some = st.fixed_dictionaries(
    {}, optional={"c": st.sampled_from(["a", "b", None]), "x": st.sampled_from([0.0, 0.5, 1.0])}
)


@given(st.lists(some, max_size=8), some)
def test_the_index_finds_what_a_comparison_of_all_finds(
    others: list[dict[str, Any]], own: dict[str, Any]
) -> None:
    finished = [trial(number, params) for number, params in enumerate(others)]
    equal = [number for number, params in enumerate(others) if own and params == own]
    assert found_among(finished, trial(99, own, "RUNNING")) == (equal[0] if equal else None)


# Runs.

runs = pytest.mark.usefixtures("quick", "engine_preloaded")


def objective(trial: Any) -> float:
    """Count the trainings of each configuration: a result is not the same twice."""
    config = SPACE.sample(trial)
    folder = Path(trial.study.user_attrs["folder"])
    name = f"{config['kind']}-{config.get('depth')}"
    times = len(list(folder.glob(f"{name}.*")))
    (folder / f"{name}.{trial.number}").touch()
    trial.report(float(times), 1)
    trial.report(times + 0.5, 2)
    trial.set_user_attr("name", name)
    if name in trial.study.user_attrs.get("fails", ()):
        raise optuna.TrialPruned if times % 2 else ValueError(name)
    return times + 1.0


def opened(folder: Path, **attrs: Any) -> optuna.Study:
    study = supermax.open_study(
        SPACE, storage=str(folder / "s.db"), sampler="random", seed=1, quiet=True
    )
    for key, value in {"folder": str(folder / "ran"), **attrs}.items():
        study.set_user_attr(key, value)
    (folder / "ran").mkdir(exist_ok=True)
    return study


def run(study: optuna.Study, n_trials: int, **options: Any) -> Summary:
    options = {"reuse_results": True, "progress": False, **options}
    return supermax.optimize(study, objective, n_trials=n_trials, **options)


def check_copies(study: optuna.Study, folder: Path) -> list[int]:
    """Check that each configuration ran once, and that the others are copies. Return these."""
    ran = sorted(int(path.suffix[1:]) for path in (folder / "ran").iterdir())
    copies = [t for t in study.trials if t.number not in ran]
    for each in copies:
        original = study.trials[copied_from(each) or 0]
        assert original.number in ran
        assert each.state is TrialState.COMPLETE
        assert (each.params, each.values) == (original.params, original.values)
        assert each.intermediate_values == original.intermediate_values
        own = {k: v for k, v in each.user_attrs.items() if k != RECORD}
        assert own == {k: v for k, v in original.user_attrs.items() if k != RECORD}
        assert (each.user_attrs[RECORD]["attempts"], each.user_attrs[RECORD]["seconds"]) == (0, 0)
    assert len({configuration_key(study.trials[number]) for number in ran}) == len(ran)
    return [each.number for each in copies]


@runs
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_no_configuration_runs_twice(tmp_path: Path, workers: int) -> None:
    study = opened(tmp_path)
    seen: list[events.Event] = []
    summary = run(study, 9, workers=workers, progress=seen.append)
    assert (summary.trials["COMPLETE"], summary.told, summary.faults) == (9, 9, {})
    copies = [t.number for t in study.trials if copied_from(t) is not None]
    ended = [event for event in seen if isinstance(event, events.TrialFinished)]
    assert sorted(event.number for event in ended if event.copied) == copies
    if workers == 1:  # else two may run at the same time
        assert check_copies(study, tmp_path) == copies
        assert len(copies) >= 5
    assert not {t.number for t in ranked(study.trials, study.directions)} & set(copies)
    study.enqueue_trial({"kind": "plain"})
    run(study, 10)
    assert (tmp_path / "ran" / "plain-None.9").exists()  # it was asked for


@runs
def test_failed_and_pruned_configurations_run_again(tmp_path: Path) -> None:
    every = ["plain-None", *(f"deep-{depth}" for depth in (1, 2, 3))]
    study = opened(tmp_path, fails=every)
    run(study, 7, retries=0)
    assert {t.state for t in study.trials} == {TrialState.FAIL, TrialState.PRUNED}
    assert len(list((tmp_path / "ran").iterdir())) == 7


@runs
def test_every_trial_runs_by_default(tmp_path: Path) -> None:
    study = opened(tmp_path)
    run(study, 6, reuse_results=False)
    assert len(list((tmp_path / "ran").iterdir())) == 6


def test_a_later_call_without_it_draws_as_usual(tmp_path: Path) -> None:
    study = opened(tmp_path)
    run(study, 1)
    assert study.sampler.redraws == 10
    run(study, 2, reuse_results=False)
    assert study.sampler.redraws == 0


def test_a_study_without_a_space_is_refused(url: str) -> None:
    study = optuna.create_study(storage=url)
    with pytest.raises(UserError, match=r"Open it with supermax\.open_study"):
        run(study, 2)


KILLED = """
import os, signal, sys
from pathlib import Path
from supermax.engine.run.coordinator import Coordinator
from supermax.engine.run.reuse import ResultReuse
from supermax.engine.storage.patient import PatientStorage
from tests.engine.run.test_reuse import opened, run

owner, name, after = {owner}, "{name}", {after}
real, calls = getattr(owner, name), []

def killed(*args, **more):
    calls.append(name)
    if len(calls) == after:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **more)

def begun(self, job, original):
    setattr(owner, name, killed)
    return copy(self, job, original)

copy, ResultReuse.copy_result = ResultReuse.copy_result, begun
run(opened(Path(sys.argv[1])), 9)
"""


@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [
        ("PatientStorage", "set_trial_intermediate_value", 2),
        pytest.param("Coordinator", "conclude", 1, marks=pytest.mark.slow),
        pytest.param("PatientStorage", "set_trial_state_values", 1, marks=pytest.mark.slow),
    ],
)
@runs
def test_a_copy_that_was_killed_is_finished_by_the_next_run(
    tmp_path: Path, owner: str, name: str, after: int
) -> None:
    text = KILLED.format(owner=owner, name=name, after=after)
    killed = subprocess.run([sys.executable, "-c", text, str(tmp_path)], cwd=ROOT, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    study = opened(tmp_path)
    (left,) = [t for t in study.trials if t.state is TrialState.RUNNING]
    assert run(study, 9).trials["COMPLETE"] == 9
    assert left.number in check_copies(study, tmp_path)
    assert study.trials[left.number].params == left.params
