"""Wrong use of the API: one clear message, no internal frames, nothing half-written."""

from __future__ import annotations

import functools
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import Trial, TrialState

import supermax
from supermax import EnvironmentFault, RunHalted, SupermaxError, UserError
from supermax.engine.events import Event, FaultSeen
from supermax.engine.jobs.provision import Provision
from supermax.engine.storage.run_folder import StudyFolder
from tests.conftest import eventually
from tests.few import a_few, quick_are

pytestmark = pytest.mark.usefixtures("quick")
PACKAGE = str(Path(supermax.__file__).parent)
LOCK = threading.Lock()
NUMBERS = (number for number in range(3))


def good(trial: Trial) -> float:
    return trial.suggest_float("x", 0, 1)


def refusal(kind: type[SupermaxError], *args: Any, **options: Any) -> str:
    """Call, and check what all errors share: a message without internals. Return it."""
    options.setdefault("progress", False)
    with pytest.raises(kind) as caught:
        supermax.optimize(*args, **options)
    error = caught.value
    assert error.__cause__ is None
    assert error.__suppress_context__
    inside = [entry for entry in caught.traceback if str(entry.path).startswith(PACKAGE)]
    assert len(inside) <= 1
    text = str(error)
    sentence = text.partition("\n")[0]
    assert sentence.endswith(".") or "\n" in text
    return text


def untouched(study: optuna.Study, tmp_path: Path) -> bool:
    return not study.trials and {path.name for path in tmp_path.iterdir()} == {"study.db"}


class Plans:
    """Planner that returns the given values, or raises them."""

    def __init__(self, provides: Any = None, room: Any = None) -> None:
        self.provides, self.has = provides, room

    def provide(self, trial: Any, failed: Any) -> Any:
        return self.said(self.provides[min(len(failed), len(self.provides) - 1)])

    def room(self, occupied: Any) -> Any:
        return self.said(self.has)

    @staticmethod
    def said(answer: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer


# The call.

CALLS: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "objective None": (None, {}, ["objective must be a function", "None"]),
    "objective a number": (5, {}, ["objective must be a function", "5"]),
    "objective a result": (1.5, {}, ["objective must be a function", "1.5"]),
    "n_trials negative": (good, {"n_trials": -1}, ["n_trials must", "-1"]),
    "workers 0": (good, {"workers": 0}, ["workers must", "0"]),
    "retries negative": (good, {"retries": -2}, ["retries must", "-2"]),
    "timeout 0": (good, {"timeout": 0}, ["timeout must", "seconds", "0"]),
    "timeout negative": (good, {"timeout": -1.5}, ["timeout must", "-1.5"]),
    "timeout NaN": (good, {"timeout": float("nan")}, ["timeout must", "nan"]),
    "trial_timeout 0": (good, {"trial_timeout": 0}, ["trial_timeout must", "seconds"]),
    "stall_timeout 0": (good, {"stall_timeout": 0}, ["stall_timeout must", "seconds"]),
    "callback a number": (
        good,
        {"callbacks": [5]},
        ["callbacks must be a list of functions", "5"],
    ),
    "two things": (None, {"workers": 0}, ["objective must be", "; ", "workers must"]),
    # Of the wrong kind altogether: named too, not a TypeError from somewhere within.
    "n_trials text": (good, {"n_trials": "5"}, ["n_trials must", "'5'"]),
    "n_trials broken": (good, {"n_trials": 2.5}, ["n_trials must", "2.5"]),
    "workers text": (good, {"workers": "2"}, ["workers must", "'2'"]),
    "workers None": (good, {"workers": None}, ["workers must", "None"]),
    "workers broken": (good, {"workers": 1.5}, ["workers must", "1.5"]),
    "retries None": (good, {"retries": None}, ["retries must", "None"]),
    "timeout text": (good, {"timeout": "60"}, ["timeout must", "'60'"]),
    "deadline text": (good, {"deadline": "8:00"}, ["deadline must", "'8:00'"]),
    "deadline NaN": (good, {"deadline": float("nan")}, ["deadline must", "nan"]),
    "callback without a list": (good, {"callbacks": print}, ["callbacks"]),
    "devices a number": (good, {"devices": 3}, ["devices"]),
    "run_dir a number": (good, {"run_dir": 5}, ["run_dir"]),
    "run_dir empty": (good, {"run_dir": ""}, ["run_dir"]),
    "devices a text": (good, {"devices": "cuda"}, ["devices", "'cuda'"]),
    "devices None inside": (good, {"devices": [None]}, ["devices"]),
    "timeout True": (good, {"timeout": True}, ["timeout", "True"]),
    "planner a number": (good, {"planner": 5}, ["planner must", "provide and room", "5"]),
    "planner a class": (good, {"planner": Plans}, ["planner must", "class"]),
    "planner half": (good, {"planner": types.SimpleNamespace(room=print)}, ["planner must"]),
    "pruner a text": (good, {"pruner": "promotion"}, ["pruner must be a pruner", "'promotion'"]),
    "pruner a class": (good, {"pruner": supermax.Promotion}, ["pruner must", "Promotion()"]),
    "progress a number": (good, {"progress": 5}, ["progress", "5"]),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_wrong_argument_is_named_before_anything_happens(
    study: optuna.Study, tmp_path: Path, case: str
) -> None:
    objective, options, words = CALLS[case]
    text = refusal(UserError, study, objective, **{"n_trials": 2, **options})
    assert [word for word in words if word not in text] == []
    assert "\n" not in text
    assert untouched(study, tmp_path)


@pytest.mark.parametrize(
    "wrong", [None, "sqlite:///study.db", optuna.create_study], ids=["None", "a URL", "a function"]
)
def test_argument_that_is_not_a_study_is_named(wrong: Any) -> None:
    text = refusal(UserError, wrong, good, 1)
    assert "study must be an optuna.Study" in text


def test_a_call_without_an_objective_is_pythons_own_error(study: optuna.Study) -> None:
    with pytest.raises(TypeError, match="objective"):
        supermax.optimize(study)  # type: ignore[call-arg]
    assert not study.trials


@pytest.mark.parametrize("seconds", [float("inf"), 1e12])
def test_infinite_limits_are_valid(study: optuna.Study, seconds: float) -> None:
    limits = {"timeout": seconds, "trial_timeout": seconds, "stall_timeout": seconds}
    assert supermax.optimize(study, good, 1, progress=False, **limits).finished == 1


# Objectives that cannot travel.


class Holder:
    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __call__(self, trial: Trial) -> float:
        return 1.0

    def method(self, trial: Trial) -> float:
        return 1.0


def holding(thing: Any) -> Callable[[Trial], float]:
    def objective(trial: Trial) -> float:
        return float(thing is None)

    return objective


def with_global(name: str) -> Callable[[Trial], float]:
    def uses_lock(trial: Trial) -> float:
        return float(LOCK is None)

    def uses_numbers(trial: Trial) -> float:
        return float(NUMBERS is None)

    def uses_lock_further_in(trial: Trial) -> float:
        return sum(float(LOCK is None) for _ in range(3))

    return {"LOCK": uses_lock, "NUMBERS": uses_numbers, "inner": uses_lock_further_in}[name]


def keyword_only(trial: Trial, *, thing: Any) -> float:
    return 1.0


def keyword_default() -> Callable[[Trial], float]:
    def objective(trial: Trial, *, guard: Any = LOCK) -> float:
        return 1.0

    return objective


def class_attribute() -> Callable[[Trial], float]:
    class Guarded:
        guard = LOCK

        def __call__(self, trial: Trial) -> float:
            return 1.0

    return Guarded()


TRAVELLERS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "global lock": (lambda: with_global("LOCK"), ["the global 'LOCK' is a lock"]),
    "global generator": (lambda: with_global("NUMBERS"), ["the global 'NUMBERS' is a generator"]),
    "closure": (lambda: holding(LOCK), ["the variable 'thing' is a lock"]),
    "instance": (lambda: Holder(LOCK), ["attribute 'thing'", "is a lock"]),
    "deep in an instance": (
        lambda: Holder({"a": [1, LOCK]}),
        ["attribute 'thing'", "item 'a'", "item 1", "is a lock"],
    ),
    "bound method": (lambda: Holder(LOCK).method, ["Holder", "attribute 'thing'", "is a lock"]),
    "partial": (
        lambda: functools.partial(keyword_only, thing=LOCK),
        ["argument 'thing'", "is a lock"],
    ),
    "another objective": (lambda: holding(holding(LOCK)), ["'thing'", "is a lock"]),
    "global, from an inner function": (lambda: with_global("inner"), ["'LOCK'", "is a lock"]),
    "keyword default": (keyword_default, ["'guard'", "is a lock"]),
    "class attribute": (class_attribute, ["'guard'", "is a lock"]),
}


@pytest.mark.parametrize("case", TRAVELLERS)
def test_unpicklable_part_is_named(study: optuna.Study, tmp_path: Path, case: str) -> None:
    make, words = TRAVELLERS[case]
    text = refusal(UserError, study, make(), 1)
    assert text.startswith("The objective cannot be sent to another process: ")
    assert [word for word in words if word not in text] == []
    assert "cannot pickle" in text
    assert untouched(study, tmp_path)


@pytest.mark.parametrize("mode", ["w", "rb"])
def test_an_open_file_is_named(study: optuna.Study, tmp_path: Path, mode: str) -> None:
    with Path(tmp_path.parent / "open").open("w") as made, Path(made.name).open(mode) as file:
        for objective, words in ((holding(file), "'thing'"), (Holder(file), "attribute 'thing'")):
            text = refusal(UserError, study, objective, 1)
            assert words in text
            assert "TextIOWrapper" in text or "BufferedReader" in text
    assert untouched(study, tmp_path)


def test_a_module_that_a_cell_cannot_import_is_named(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    ghost = types.ModuleType("ghost_of_a_module")
    exec("def objective(trial): return 1.0", vars(ghost))
    monkeypatch.setitem(sys.modules, ghost.__name__, ghost)
    text = refusal(UserError, study, ghost.objective, 2)
    assert "cannot be loaded in another process" in text
    assert "No module named 'ghost_of_a_module'" in text
    assert not study.trials


# Results that do not fit.


@pytest.mark.parametrize(
    ("directions", "returned"),
    quick_are([(1, (1.0, 2.0)), (2, 1.0)], [(1, (1.0, 2.0)), (2, 1.0), (2, (1, 2, 3))]),
)
def test_values_that_do_not_match_the_directions_halt_the_run(
    url: str, directions: int, returned: Any
) -> None:
    study = optuna.create_study(storage=url, directions=["minimize"] * directions)
    text = refusal(RunHalted, study, lambda _: returned, 5)
    count = len(returned) if isinstance(returned, tuple) else 1
    assert f"returned {count} value" in text
    assert f"{directions} direction" in text
    assert [trial.state for trial in study.trials] == [TrialState.FAIL] * 3


def two_values_once(trial: Trial) -> Any:
    return (1.0, 2.0) if trial.number == 1 else 1.0


def test_wrong_number_of_values_fails_that_trial_alone(study: optuna.Study) -> None:
    summary = supermax.optimize(study, two_values_once, 4, progress=False)
    states = [trial.state.name for trial in study.trials]
    assert states == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    (fault,) = study.trials[1].user_attrs["supermax"]["faults"]
    assert "returned 2 values" in fault["message"]
    (line,) = [r for r in StudyFolder(summary.run_dir).trial(1).records() if "fault" in r]
    assert "returned 2 values" in line["fault"]["message"]
    assert line["decision"] == "failed"


def test_study_with_a_success_survives_wrong_numbers_of_values(
    study: optuna.Study,
) -> None:
    supermax.optimize(study, good, 1, progress=False)
    summary = supermax.optimize(study, lambda _: (1.0, 2.0), 6, progress=False)
    assert summary.trials["FAIL"] == 5


def test_a_missing_return_halts_the_run_too(study: optuna.Study) -> None:
    """It fails every trial in the same way, like an exception from one line."""
    text = refusal(RunHalted, study, lambda trial: None, 8)
    assert "None" in text
    assert len(study.trials) == 3


@pytest.mark.parametrize("kind", quick_are(["arity"], ["arity", "exception"]))
def test_after_a_halt_the_fixed_objective_runs_at_the_first_call(
    study: optuna.Study, tmp_path: Path, kind: str
) -> None:
    """Outcomes of the broken objective that were on disk already do not halt the next run."""
    run_dir, workers = tmp_path / "run", 6

    def broken(trial: Trial) -> Any:
        (tmp_path / f"started-{trial.number}").touch()
        assert eventually(lambda: len(list(tmp_path.glob("started-*"))) == workers)
        if kind == "arity":
            return 1.0, 2.0
        raise ValueError("always the same")

    def hold_on(event: Event) -> None:
        if isinstance(event, FaultSeen):
            eventually(lambda: len(list(run_dir.glob("trials/*/outcome.json"))) >= workers)

    refusal(RunHalted, study, broken, 20, workers=workers, run_dir=run_dir, progress=hold_on)
    summary = supermax.optimize(study, good, workers + 4, run_dir=run_dir, progress=False)
    assert summary.finished == workers + 4
    assert summary.trials["RUNNING"] == 0


def test_objective_without_a_parameter_is_named_by_its_own_line(
    study: optuna.Study,
) -> None:
    text = refusal(RunHalted, study, lambda: 1.0, 5)
    assert "takes 0 positional arguments" in text
    assert PACKAGE not in text.partition("\n")[0]


# Folders.


@pytest.mark.parametrize("place", ["below a file", "/proc/1/supermax", "/dev/null/x"])
def test_a_run_dir_that_cannot_be_written_is_named(
    study: optuna.Study, tmp_path: Path, place: str
) -> None:
    wanted = tmp_path / "study.db" / "x" if place == "below a file" else Path(place)
    text = refusal(EnvironmentFault, study, good, 1, run_dir=wanted)
    assert f"run folder {wanted} cannot be written" in text
    assert "run_dir" in text
    assert not study.trials
    assert supermax.optimize(study, good, 1, progress=False).finished == 1  # and nothing is stuck


# The planner.

NAN = float("nan")
ODD: dict[str, Any] = {"itself": None}
ODD["itself"] = ODD
ANSWERS: dict[str, tuple[Plans, list[str]]] = {
    "provide raises": (Plans([KeyError("lr")]), ["raised KeyError: 'lr'", "test_wrong_use.py:"]),
    "a number": (Plans([5]), ["returned 5", "neither a Provision nor a Refusal"]),
    "a tuple": (Plans([(5, {})]), ["returned (5, {})"]),
    "nothing": (Plans([None]), ["returned None"]),
    "reserve text": (Plans([Provision("5")]), ["returned reserve='5'"]),  # type: ignore[arg-type]
    "reserve None": (Plans([Provision(None)]), ["returned reserve=None"]),  # type: ignore[arg-type]
    "reserve NaN": (Plans([Provision(NAN)]), ["returned reserve=nan"]),  # type: ignore[arg-type]
    "reserve broken": (Plans([Provision(1.5)]), ["returned reserve=1.5"]),  # type: ignore[arg-type]
    "reserve True": (Plans([Provision(True)]), ["returned reserve=True"]),
    "reserve negative": (Plans([Provision(-1)]), ["returned reserve=-1", ">= 0"]),
    "plan a list": (Plans([Provision(1, [1])]), ["plan=[1]"]),  # type: ignore[arg-type]
    "plan no JSON": (Plans([Provision(1, {"a": LOCK})]), ["plan that is not JSON"]),
    "plan NaN": (Plans([Provision(1, {"a": NAN})]), ["plan that is not JSON"]),
    "plan endless": (Plans([Provision(1, ODD)]), ["plan that is not JSON"]),
    "why a number": (Plans([Provision(1, {}, why=5)]), ["why=5"]),  # type: ignore[arg-type]
    "where a number": (Plans([Provision(1, {}, 5)]), ["where=5"]),  # type: ignore[arg-type]
    "room raises": (Plans([Provision(1)], OSError("no driver")), ["what room", "no driver"]),
    "room text": (Plans([Provision(1)], "5"), ["what room", "returned '5'"]),
    "room NaN": (Plans([Provision(1)], NAN), ["returned nan", "nor None"]),
    "room broken": (Plans([Provision(1)], 2.5), ["returned 2.5"]),
    "after a shortage": (Plans([Provision(1, {"a": 1}), 5]), ["returned 5"]),
}


def starving(trial: Trial) -> float:
    trial.suggest_float("x", 0, 1)
    raise MemoryError


@pytest.mark.parametrize("case", a_few([*ANSWERS], 5))
def test_invalid_result_of_a_planner_is_named_and_the_next_run_works(
    study: optuna.Study, case: str
) -> None:
    planner, words = ANSWERS[case]
    objective = starving if case == "after a shortage" else good
    text = refusal(UserError, study, objective, 1, planner=planner)
    assert text.startswith("The planner Plans, asked what ")
    assert "trial 0" in text
    assert [word for word in words if word not in text] == []
    assert "\n" not in text
    assert supermax.optimize(study, good, 1, progress=False).finished == 1
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE]


@pytest.mark.parametrize("place", ["provide", "room"])
def test_environment_fault_of_a_planner_is_raised_unchanged(
    study: optuna.Study, place: str
) -> None:
    broken = EnvironmentFault("The driver is gone.")
    planner = Plans([broken]) if place == "provide" else Plans([Provision(1)], broken)
    assert refusal(EnvironmentFault, study, good, 1, planner=planner) == "The driver is gone."


def test_planner_may_return_numpy_integers(study: optuna.Study) -> None:
    planner = Plans([Provision(np.int64(5), {"sizes": (1, 2)})], np.uint64(1 << 40))  # type: ignore[arg-type]
    supermax.optimize(study, planned, 1, planner=planner, progress=False)
    assert study.trials[0].user_attrs["supermax"]["reserved"] == {"device": 5}


def planned(trial: Any) -> float:
    assert trial.plan == {"sizes": [1, 2]}
    return 1.0
