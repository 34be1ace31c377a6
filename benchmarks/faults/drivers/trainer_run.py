"""`Trainer.hyperparameter_search` of transformers with Optuna and a storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import torch
from optuna.trial import Trial, TrialState
from stored import Stored, drive
from transformers import Trainer, TrainerCallback, TrainingArguments
from work import read_plan, run_trial


class Tiny(torch.nn.Module):
    """Model with one weight: what matters is what happens around it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, Any]:
        return {"loss": (self.weight * x).mean(), "logits": x}


class Work(TrainerCallback):
    """Runs the trial in the only training step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trial: Trial | None = None
        self.value = float("nan")

    def on_step_end(self, *_: object, **__: object) -> None:
        assert self.trial is not None
        self.value = run_trial(self.folder, str(self.trial.number), self.trial.report)


def run(folder: Path, workers: int) -> None:
    """Run the trials one after another, since its search has no other way on one machine."""
    work = Work(folder)

    def space(trial: Trial) -> dict[str, float]:
        work.trial = trial
        return {"learning_rate": trial.suggest_float("learning_rate", 0, 1)}

    rows = [{"x": torch.ones(1), "labels": torch.zeros(1)}]
    arguments = TrainingArguments(
        output_dir=str(read_plan(folder).home / "trainer"), max_steps=1, report_to=[],
        save_strategy="no", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    trainer = Trainer(
        model_init=Tiny, args=arguments, train_dataset=rows, eval_dataset=rows, callbacks=[work]
    )
    done = len(_study(folder).get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))
    trainer.hyperparameter_search(
        space, lambda _: work.value, n_trials=read_plan(folder).trials - done, backend="optuna",
        storage=_storage(folder), study_name="faults", load_if_exists=True, catch=(Exception,),
    )  # fmt: skip


def report(folder: Path) -> Stored:
    trials = _study(folder).get_trials(deepcopy=False)
    values = {str(t.number): t.value for t in trials if t.state == TrialState.COMPLETE}
    running = sum(t.state == TrialState.RUNNING for t in trials)
    return Stored({k: v for k, v in values.items() if v is not None}, running)


def _storage(folder: Path) -> str:
    return read_plan(folder).url


def _study(folder: Path) -> optuna.Study:
    return optuna.create_study(storage=_storage(folder), study_name="faults", load_if_exists=True)


if __name__ == "__main__":
    drive(run, report)
