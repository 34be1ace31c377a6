"""Failures of a training: exceptions, crashes, kills, out of memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

import supermax
from supermax.engine.storage.run_folder import StudyFolder
from tests.conftest import eventually
from tests.trainer import tiny
from tests.trainer.test_search import search

pytestmark = pytest.mark.usefixtures("quick", "preloaded")
NAME = "hyperparameter_search"


def trials_in(folder: Path) -> list[FrozenTrial]:
    return optuna.load_study(study_name=NAME, storage=f"sqlite:///{folder}/study.db").trials


def faults_in(folder: Path, number: int = 0) -> list[str]:
    """Return the faults of a trial's attempts."""
    records = StudyFolder(folder / "study.db.supermax" / NAME).trial(number).records()
    return [record["fault"]["kind"] for record in records if "fault" in record]


def undisturbed(folder: Path, **parts: Any) -> float:
    """Return the value of a trial without faults."""
    arguments = parts.pop("arguments", {})
    trainer = tiny.trainer(folder, arguments={"num_train_epochs": 4, **arguments}, **parts)
    return float(search(trainer, hp_space=fixed, n_trials=1).objective)


def fixed(trial: Any) -> dict[str, Any]:
    return {"learning_rate": trial.suggest_categorical("learning_rate", [1e-2])}


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class CountingFails(tiny.Fails):
    """Fail once, and note each epoch that begins."""

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        with (self.file.parent / "marks").open("a") as file:
            file.write(f"{round(state.epoch or 0)}\n")
        super().on_epoch_begin(args, state, control, **rest)


def raise_error() -> None:
    raise ValueError("wrong data")


def of_the_second(folder: Path, action: Any) -> Any:
    """Return a callback that fails in the second trial."""

    class Second(tiny.Fails):
        def on_epoch_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if args.output_dir.endswith("00001/checkpoint"):
                super().on_epoch_begin(args, state, control, **rest)

    return Second(folder, action, always=True)


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        (raise_error, "exception"),
        pytest.param(crash, "signal", marks=pytest.mark.slow),
    ],
)
def test_a_failing_trial_leaves_the_others_alone(action: Any, kind: str, tmp_path: Path) -> None:
    callback = of_the_second(tmp_path, action)
    best = search(
        tiny.trainer(tmp_path, callbacks=[callback]), hp_space=fixed, n_trials=3, run_dir=tmp_path
    )
    states = [trial.state for trial in trials_in(tmp_path)]
    assert states == [TrialState.COMPLETE, TrialState.FAIL, TrialState.COMPLETE]
    assert set(faults_in(tmp_path, 1)) == {kind}
    assert best.run_id == "0"


@pytest.mark.slow
def test_a_crash_in_the_third_epoch_repeats_no_epoch(tmp_path: Path) -> None:
    """A real SIGSEGV; the value is that of a trial without it."""
    marks = tmp_path / "marks"
    callbacks = [tiny.Marks(marks), tiny.Fails(tmp_path, crash, epoch=2)]
    trainer = tiny.trainer(tmp_path, callbacks=callbacks, arguments=FOUR)
    best = search(trainer, hp_space=fixed, n_trials=1, run_dir=tmp_path)
    assert marks.read_text().split() == ["0", "1", "2", "2", "3"]
    assert faults_in(tmp_path) == ["signal"]
    assert best.objective == undisturbed(tmp_path / "plain")
    assert list(trials_in(tmp_path)[0].intermediate_values) == [4, 8, 12, 16]


FOUR = {"num_train_epochs": 4, "save_strategy": "epoch"}


def test_kill_9_of_a_cell_repeats_no_epoch(tmp_path: Path) -> None:
    """The process is killed from outside while it waits in the third epoch."""
    from tests.trainer.programs import Waits

    def kill() -> None:
        assert eventually((tmp_path / "pid").exists, 60)
        (tmp_path / "go").touch()
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    trainer = tiny.trainer(tmp_path, callbacks=[Waits(tmp_path / "marks")], arguments=FOUR)
    best = search(trainer, hp_space=fixed, n_trials=1, run_dir=tmp_path)
    killer.join()
    assert (tmp_path / "marks").read_text().split() == ["0", "1", "2", "2", "3"]
    assert faults_in(tmp_path) == ["killed from outside"]
    assert best.objective == undisturbed(tmp_path / "plain")


@pytest.mark.slow
def test_kill_9_of_the_program_repeats_no_epoch(tmp_path: Path) -> None:
    """The same command goes on with the trial, under its number."""
    command = [sys.executable, "-m", "tests.trainer.programs", str(tmp_path)]
    with subprocess.Popen(command, start_new_session=True) as program:
        assert eventually((tmp_path / "pid").exists, 120)
        cell = int((tmp_path / "pid").read_text())
        program.kill()
    assert eventually(lambda: not Path(f"/proc/{cell}").exists())
    (tmp_path / "go").touch()
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("0 ")
    epochs = (tmp_path / "marks").read_text().split()
    assert epochs[:3] == ["0", "1", "2"]
    assert epochs[3:] in (["2", "3"], ["1", "2", "3"])  # with the last checkpoint that was due
    assert [trial.state for trial in trials_in(tmp_path / "run")] == [TrialState.COMPLETE]


# Out of memory.


@pytest.mark.parametrize(
    ("make", "of", "memory"),
    [
        (tiny.classifier, tiny.Trainer, 3),
        pytest.param(tiny.classifier, tiny.Weighted, 2, marks=pytest.mark.slow),
    ],
    ids=["loss of the model", "loss of the user"],
)
def test_out_of_memory_leads_to_smaller_micro_batches(
    make: Any, of: Any, memory: int, tmp_path: Path
) -> None:
    """Eight examples, then four, then two: the same training, without dropout bit for bit in the
    order of the sums."""
    small = tiny.Small(memory, make=without_dropout)
    trainer = tiny.trainer(tmp_path, of=of, model_init=small, arguments=FOUR)
    best = search(trainer, hp_space=fixed, n_trials=1, run_dir=tmp_path)
    assert faults_in(tmp_path) == ["device out of memory"] * 2
    assert trials_in(tmp_path)[0].state is TrialState.COMPLETE
    plain = undisturbed(tmp_path / "plain", of=of, model_init=without_dropout)
    assert best.objective == pytest.approx(plain, rel=1e-5)
    assert list(trials_in(tmp_path)[0].intermediate_values) == [4, 8, 12, 16]


def without_dropout() -> Any:
    fields = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return tiny.BertForSequenceClassification(tiny.config(num_labels=2, **fields))


@pytest.mark.slow
def test_out_of_memory_in_an_evaluation_leaves_the_training_alone(tmp_path: Path) -> None:
    small = tiny.Small(8, evaluated=4)
    trainer = tiny.trainer(tmp_path, model_init=small)
    best = search(trainer, hp_space=fixed, n_trials=1, run_dir=tmp_path)
    assert faults_in(tmp_path) == ["device out of memory"]
    plain = tiny.trainer(tmp_path / "plain")
    assert best.objective == pytest.approx(search(plain, hp_space=fixed, n_trials=1).objective)


@pytest.mark.parametrize(
    ("model_init", "reason"),
    [
        (tiny.Small(0), "A single example does not fit in memory."),
        (tiny.Small(2, make=tiny.contrastive), "the loss of a batch is not the mean"),
    ],
    ids=["one example", "contrastive loss"],
)
def test_what_cannot_be_split_is_pruned_with_a_constraint(
    model_init: Any, reason: str, tmp_path: Path
) -> None:
    trainer = tiny.trainer(tmp_path, model_init=model_init)
    with pytest.raises(supermax.RunHalted, match="No trial has succeeded") as halted:
        search(trainer, hp_space=fixed, n_trials=1, run_dir=tmp_path)
    assert reason in str(halted.value).partition("Trial 0: ")[2], halted.value
    trial = trials_in(tmp_path)[0]
    assert trial.state is TrialState.PRUNED
    assert trial.constraints
    assert reason in str(trial.user_attrs)
