"""A study and its run folder, looked at."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import optuna
import pytest

import supermax
from supermax.errors import UserError
from supermax.records import finished, read


def objective(trial: Any) -> float:
    x: float = trial.suggest_float("x", 0, 1)
    for step in range(3):
        trial.report(x + step, step)
    if trial.number == 1 and trial.attempt == 1:
        print("the last words")
        os.kill(os.getpid(), signal.SIGSEGV)
    if trial.number == 2:
        raise ValueError("never works")
    if trial.number == 3:
        raise supermax.Infeasible("too large", by=0.5)
    return x


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> optuna.Study:
    storage = f"sqlite:///{tmp_path_factory.mktemp('records')}/study.db"
    study = optuna.create_study(storage=storage, study_name="looked at", direction="maximize")
    supermax.optimize(study, objective, n_trials=6, progress=False)
    return study


def test_a_retried_trial_tells_of_both_attempts(study: optuna.Study) -> None:
    trial = read(study).trial(1)
    first, second = trial.attempts
    assert (first.how, second.how) == ("fault", "COMPLETE")
    assert first.started <= (first.ended or 0) <= second.started <= (second.ended or 0)
    assert first.fault is not None
    assert first.fault.kind == "signal SIGSEGV"
    assert first.fault.culprit == "machine"
    assert first.fault.decision.startswith("retry")
    assert "the last words" in trial.log
    assert trial.curve == {
        0: trial.params["x"],
        1: trial.params["x"] + 1,
        2: trial.params["x"] + 2,
    }
    assert trial.seconds is not None


def test_faults_say_whose_they_are(study: optuna.Study) -> None:
    record = read(study)
    assert {(f.trial, f.kind) for f in record.faults()} == {
        (1, "signal SIGSEGV"),
        (2, "exception"),
        (3, "infeasible"),
    }
    assert "never works" in (record.trial(2).faults[0].traceback or "")
    assert list(record.trial(3).broken.values()) == [0.5]
    assert [t.number for t in record.of("FAIL")] == [2]
    assert finished(record.trials) == 6


def test_the_best_come_first_and_what_breaks_a_constraint_is_no_candidate(
    study: optuna.Study,
) -> None:
    record = read(study)
    ranked = record.ranking()
    values = [trial.values[0] for trial in ranked if trial.values]
    assert values == sorted(values, reverse=True)
    assert {trial.number for trial in ranked} == {0, 1, 4, 5}
    assert record.front() == ranked[:1]


def test_without_its_run_folder_a_study_still_knows_its_faults(
    study: optuna.Study, tmp_path: Path
) -> None:
    record = read(study, tmp_path / "nowhere")
    assert {fault.kind for fault in record.faults()} == {
        "signal SIGSEGV",
        "exception",
        "infeasible",
    }
    assert record.trial(0).attempts == []
    assert record.trial(0).log == ""


def test_a_torn_ledger_and_lines_of_another_version_are_passed_over(
    study: optuna.Study, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(read(study).run_dir, copy)
    ledger = copy / "trials" / "00001" / "ledger.jsonl"
    with ledger.open("a") as file:
        file.write('{"fault": {"kind": "from the future"}, "attempt": 2, "at": 1}\n{"lau')
    assert [a.how for a in read(study, copy).trial(1).attempts] == ["fault", "COMPLETE"]


def test_an_unknown_trial_is_a_sentence(study: optuna.Study) -> None:
    with pytest.raises(UserError, match="no trial 99; the last is 5"):
        read(study).trial(99)
