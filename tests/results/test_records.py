"""Records of a study and its run folder."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import optuna
import pytest

import supermax
from supermax._util.attributes import RESULT
from supermax.engine.storage.run_folder import StudyFolder
from supermax.errors import UserError
from supermax.results.records import TrialRecord, finished, read_record


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
    if trial.number == 4 and trial.attempt == 1:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: tried to allocate 3 KiB.")
    return x


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> optuna.Study:
    storage = f"sqlite:///{tmp_path_factory.mktemp('records')}/study.db"
    study = optuna.create_study(storage=storage, study_name="looked at", direction="maximize")
    supermax.optimize(study, objective, n_trials=6, progress=False)
    return study


def test_a_retried_trial_has_both_attempts(study: optuna.Study) -> None:
    trial = read_record(study).trial(1)
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


def test_faults_name_their_culprit(study: optuna.Study) -> None:
    record = read_record(study)
    assert {(f.trial, f.kind) for f in record.faults()} == {
        (1, "signal SIGSEGV"),
        (2, "exception"),
        (3, "infeasible"),
        (4, "host out of memory"),
    }
    assert "never works" in (record.trial(2).faults[0].traceback or "")
    assert list(record.trial(3).broken.values()) == [0.5]
    assert [t.number for t in record.of("FAIL")] == [2]
    assert finished(record.trials) == 6


def test_a_fault_keeps_the_memory_of_its_attempt(study: optuna.Study) -> None:
    """The next attempt replaces the outcome, which has it too."""
    short, complete = read_record(study).trial(4).attempts
    assert short.fault is not None
    assert short.fault.memory is not None
    assert short.fault.memory.requested == 3 << 10
    assert (complete.how, complete.fault) == ("COMPLETE", None)
    assert read_record(study).trial(1).faults[0].memory is None


def test_ranking_is_best_first_without_trials_that_violate_a_constraint(
    study: optuna.Study,
) -> None:
    record = read_record(study)
    ranked = record.ranking()
    values = [trial.values[0] for trial in ranked if trial.values]
    assert values == sorted(values, reverse=True)
    assert {trial.number for trial in ranked} == {0, 1, 4, 5}
    assert record.front() == ranked[:1]


def test_faults_are_in_the_study_without_its_run_folder(
    study: optuna.Study, tmp_path: Path
) -> None:
    record = read_record(study, tmp_path / "nowhere")
    assert {fault.kind for fault in record.faults()} == {
        "signal SIGSEGV",
        "exception",
        "infeasible",
        "host out of memory",
    }
    assert record.trial(0).attempts == []
    assert record.trial(0).log == ""


def test_a_truncated_ledger_and_unknown_lines_are_ignored(
    study: optuna.Study, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(read_record(study).run_dir, copy)
    ledger = copy / "trials" / "00001" / "ledger.jsonl"
    with ledger.open("a") as file:
        file.write('{"fault": {"kind": "from the future"}, "attempt": 2, "at": 1}\n{"lau')
    assert [a.how for a in read_record(study, copy).trial(1).attempts] == ["fault", "COMPLETE"]


def test_paused_attempts_are_told_from_stopped_ones(study: optuna.Study, tmp_path: Path) -> None:
    """A paused trial that is not continued is PRUNED in the end: its attempt was not."""
    copy = tmp_path / "run"
    shutil.copytree(read_record(study).run_dir, copy)
    ledger = copy / "trials" / "00001" / "ledger.jsonl"
    written = ledger.read_text()
    for line, how in (('{"stopped": 2, "at": 9}', "stopped"),
                      ('{"stopped": 2, "paused": true, "at": 9}', "paused")):  # fmt: skip
        ledger.write_text(f"{written}{line}\n")
        assert [a.how for a in read_record(study, copy).trial(1).attempts] == ["fault", how]


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("", "RUNNING"),
        ('{"stopped": 1, "at": 9}', "PAUSED"),
        ('{"stopped": 1, "paused": true, "at": 9}', "PAUSED"),
    ],
)
def test_a_trial_that_waits_is_shown_as_paused(tmp_path: Path, line: str, state: str) -> None:
    folder = StudyFolder(tmp_path).trial(0)
    folder.path.mkdir(parents=True)
    folder.ledger.write_text(f'{{"launch": 1, "cell": 1, "at": 5}}\n{line}\n')
    running = optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING)
    assert TrialRecord(running, folder).shown_state == state


def test_an_unknown_trial_is_a_user_error(study: optuna.Study) -> None:
    with pytest.raises(UserError, match="no trial 99; the last is 5"):
        read_record(study).trial(99)


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ("recorded", "CUDA graphs"),
        ("recorded, not compiled: no gcc", "CUDA graphs, not compiled: no gcc"),
        ("compiled and recorded", "compiled, CUDA graphs"),
        ("one by one: it runs on a CPU", "eager: it runs on a CPU"),
        ("recorded; updates by torch alone: why", "CUDA graphs; no fused AdamW kernel: why"),
        ("eager: runs on a CPU", "eager: runs on a CPU"),
        ("compiled, CUDA graphs", "compiled, CUDA graphs"),
    ],
)
def test_steps_of_earlier_versions_are_shown_in_current_terms(stored: str, shown: str) -> None:
    study = optuna.create_study()
    study.add_trial(optuna.trial.create_trial(value=0.0, user_attrs={RESULT: {"steps": stored}}))
    assert read_record(study).trial(0).result["steps"] == shown
