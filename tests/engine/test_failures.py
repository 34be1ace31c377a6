"""Failures × moments: the classified fault or the written outcome, and no process left."""

from __future__ import annotations

from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

import supermax
from supermax.engine.trial.faults import Kind
from supermax.testing import FAILURES, MOMENTS, failing_objective
from tests.few import quick_are

pytestmark = pytest.mark.usefixtures("quick")
BEFORE, BETWEEN, RETURNING, AFTER, CHILD = MOMENTS
STANDS = "the outcome counts"

# Fault, state and attempts for each failure while the objective runs. A signal or an exit that
# repeats on a fresh cell is due to configuration or code; kills from outside are retried up to
# twenty attempts.
IN_THE_OBJECTIVE = {
    "SIGSEGV": ("signal SIGSEGV", TrialState.FAIL, 2),
    "SIGKILL": (Kind.KILLED, TrialState.FAIL, 20),
    "SIGABRT": ("signal SIGABRT", TrialState.FAIL, 2),
    "hang, deaf to SIGTERM": (Kind.TIMEOUT, TrialState.PRUNED, 1),
    "os._exit(0)": (Kind.EXIT, TrialState.FAIL, 2),
    "os._exit(3)": (Kind.EXIT, TrialState.FAIL, 2),
    "sys.exit": (Kind.EXIT, TrialState.FAIL, 1),
    "memory exhausted": (Kind.HOST_OOM, TrialState.PRUNED, 3),
    "endless loop that holds the GIL": (Kind.TIMEOUT, TrialState.PRUNED, 1),
    "100 MB of output": (STANDS, TrialState.COMPLETE, 1),
    "grandchild left behind": (STANDS, TrialState.COMPLETE, 1),
    "deep recursion": (Kind.EXCEPTION, TrialState.FAIL, 1),
    "stack overflow": ("signal SIGSEGV", TrialState.FAIL, 2),
    "thread that never ends": (STANDS, TrialState.COMPLETE, 1),
    "hang": (Kind.TIMEOUT, TrialState.PRUNED, 1),
    "all files closed, then a hang": (Kind.EXIT, TrialState.FAIL, 2),
}
RESULTS = {
    "unpicklable result": (Kind.UNSENDABLE, TrialState.FAIL, 1),
    "NaN": (Kind.DIVERGED, TrialState.PRUNED, 1),
}


def expected(failure: str, moment: str) -> tuple[object, TrialState, int]:
    if failure in RESULTS:
        return RESULTS[failure]
    if moment in (AFTER, CHILD):
        return (STANDS, TrialState.COMPLETE, 1)
    return IN_THE_OBJECTIVE[failure]


CASES = [
    (failure, moment)
    for failure in FAILURES
    for moment in MOMENTS
    if moment == RETURNING or failure not in RESULTS
]


# Each failure at one of the moments at which it is a fault, and two whose outcome stands.
QUICK = [
    *(
        (failure, MOMENTS[place % 3])
        for place, failure in enumerate(IN_THE_OBJECTIVE)
        if failure != "endless loop that holds the GIL"  # for seconds; "hang" is much the same
    ),
    *((failure, RETURNING) for failure in RESULTS),
    *(("SIGSEGV", AFTER), ("SIGKILL", CHILD)),
]


@pytest.mark.parametrize(("failure", "moment"), quick_are(QUICK, CASES), ids=lambda value: value)
def test_failure_is_classified_and_affects_its_trial_alone(
    study: optuna.Study, failure: str, moment: str
) -> None:
    kind, state, attempts = expected(failure, moment)
    summary = supermax.optimize(
        study, failing_objective(failure, moment), n_trials=1, trial_timeout=3.0, progress=False
    )
    (trial,) = study.trials
    record = trial.user_attrs["supermax"]
    assert trial.state is state
    assert record["attempts"] == attempts
    if kind is STANDS:
        assert summary.faults == {}
        assert trial.value == (trial.params["x"] - 2) ** 2
    else:
        assert summary.faults == {str(kind): attempts}
        assert {fault["kind"] for fault in record["faults"]} == {str(kind)}
    if state is TrialState.PRUNED:
        assert list(trial.constraints.values()) == [1.0]
    else:
        assert not trial.constraints


@pytest.mark.slow
@pytest.mark.parametrize("reuse", [False, True])
def test_other_trials_finish_beside_all_failures(study: optuna.Study, reuse: bool) -> None:
    """Every second trial fails; the others are not affected."""
    injected = [(v, BETWEEN) for v in IN_THE_OBJECTIVE if v != "SIGKILL"]
    objectives = [failing_objective(failure, moment) for failure, moment in injected]

    def objective(trial: optuna.Trial) -> float:
        if trial.number % 2:
            return objectives[trial.number // 2 % len(objectives)](trial)
        return trial.suggest_float("x", -10, 10) ** 2

    n_trials = 2 * len(injected)
    summary = supermax.optimize(
        study,
        objective,
        n_trials=n_trials,
        workers=2,
        trial_timeout=3.0,
        reuse_cells=reuse,
        progress=False,
    )
    assert summary.finished == n_trials
    assert summary.trials["RUNNING"] == 0
    for trial in study.trials[::2]:
        assert trial.state is TrialState.COMPLETE
        assert trial.value == trial.params["x"] ** 2
        assert trial.user_attrs["supermax"]["attempts"] == 1


def test_output_is_bounded_and_both_ends_are_kept(study: optuna.Study) -> None:
    def objective(trial: optuna.Trial) -> float:
        print("the beginning", flush=True)
        FAILURES["100 MB of output"]()
        print("the end", flush=True)
        return 0.0

    summary = supermax.optimize(study, objective, n_trials=1, progress=False)
    (log,) = summary.run_dir.glob("trials/*/log.txt")
    text = log.read_text()
    assert text.startswith("the beginning\n")
    assert text.endswith("the end\n")
    assert "bytes left out" in text
    assert log.stat().st_size < 1_200_000
    assert [path.name for path in log.parent.iterdir() if "tail" in path.name] == []


def test_a_crash_and_a_hang_leave_their_stack_in_the_ledger(study: optuna.Study) -> None:
    def deep_inside() -> None:
        FAILURES["SIGSEGV"]()

    def stuck_here() -> None:
        FAILURES["endless loop that holds the GIL"]()

    def objective(trial: optuna.Trial) -> float:
        deep_inside() if trial.number == 0 else stuck_here()
        return 0.0

    summary = supermax.optimize(study, objective, n_trials=2, trial_timeout=1.0, progress=False)
    ledgers = sorted(summary.run_dir.glob("trials/*/ledger.jsonl"))
    assert "deep_inside" in ledgers[0].read_text()
    assert "stuck_here" in ledgers[1].read_text()


def test_infeasible_configuration_is_pruned_with_its_violation(
    study: optuna.Study,
) -> None:
    def objective(trial: optuna.Trial) -> float:
        size = trial.suggest_int("size", 1, 10)
        if trial.number < len(by):
            raise supermax.Infeasible("too large", by=by[trial.number])
        if trial.number == len(by):
            raise Own
        return size

    class Own(supermax.Infeasible):
        def __init__(self) -> None:
            pass

    by: list[Any] = [0.25, float("nan"), -1, None, 10**400, np.float32(0.5)]
    n = len(by) + 2
    summary = supermax.optimize(study, objective, n_trials=n, reuse_cells=True, progress=False)
    assert summary.cells == 1  # the cell is reused
    states = [trial.state.name for trial in study.trials]
    assert states == ["PRUNED"] * (len(by) + 1) + ["COMPLETE"]
    violations = [t.system_attrs.get("constraints:supermax:infeasible") for t in study.trials]
    assert violations == [0.25, 1.0, 1.0, 1.0, 1.0, 0.5, 1.0, None]
    (fault,) = study.trials[0].user_attrs["supermax"]["faults"]
    assert (fault["kind"], fault["message"]) == ("infeasible", "too large")
