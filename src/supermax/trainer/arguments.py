"""Checks of the arguments of hyperparameter_search, before anything is created."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from supermax._util.text import listed, nearest
from supermax.errors import UserError
from supermax.trainer.hyperparameters import NO_EVAL_DATASET, NO_MODEL_INIT, takes_trial
from supermax.trainer.options import NAMES


def check_backend(backend: object) -> None:
    """Raise UserError unless a backend is Optuna."""
    name = getattr(backend, "value", backend)
    if name in (None, "optuna"):
        return
    if name in ("ray", "wandb"):
        raise UserError(
            f"backend is {name!r}, but Supermax draws hyperparameters with Optuna alone. Leave "
            f"backend out. supermax.optimize with executor='ray' runs trials on a Ray cluster."
        )
    raise UserError(f"There is no backend {name!r:.80}. Leave it out, or pass 'optuna'.")


def check_search_options(options: Mapping[str, object]) -> None:
    """Raise UserError that lists options that do not exist."""
    if unknown := [name for name in options if name not in NAMES]:
        raise UserError(
            listed(
                "hyperparameter_search has no such arguments:",
                [f"{name}{_hint(name)}" for name in unknown],
            )
        )
    if "n_jobs" in options and "workers" in options:
        raise UserError("n_jobs and workers are two names of one argument. Pass workers alone.")


def _hint(name: str) -> str:
    if name == "resources_per_trial":
        return ": it belongs to Ray; pass workers and devices"
    if name == "planner":
        return ": a search with a Trainer splits batches by itself"
    return nearest(name, NAMES)


def workers_of(options: Mapping[str, Any]) -> int:
    """Return the number of trials that run at the same time."""
    if (jobs := options.get("n_jobs")) is None:
        jobs = options.get("workers", 1)
    elif jobs == -1:
        jobs = os.cpu_count() or 1
    if isinstance(jobs, int):
        return jobs  # its range is checked with the other arguments
    raise UserError(f"workers (n_jobs) must be an integer, but is {jobs!r:.80}.")


def is_trainer(trainer: object) -> bool:
    """Return whether this is a Trainer; False: it is a function, which makes one. Raise UserError
    for anything else."""
    from transformers import Trainer

    if isinstance(trainer, Trainer):
        return True
    if hasattr(trainer, "train"):
        raise UserError(
            f"{type(trainer).__name__} is no Trainer of transformers or SetFit, so its training "
            f"cannot be resumed or split. Call it in an objective of your own for "
            f"supermax.optimize (docs/howto/own-objective.md)."
        )
    if callable(trainer):
        return False
    raise UserError(
        f"trainer must be a transformers.Trainer, or a function that returns one, but is "
        f"{trainer!r:.80}."
    )


def check_trainer(trainer: Any) -> None:
    """Raise UserError for a Trainer whose trials cannot run in processes of their own."""
    if getattr(trainer, "model_init", None) is None:
        raise UserError(NO_MODEL_INIT)
    takes_trial(trainer.model_init)
    args = trainer.args
    if getattr(args, "deepspeed", None) or getattr(args, "fsdp", None):
        raise UserError(
            "The Trainer uses DeepSpeed or FSDP, which train one model with several processes. A "
            "trial of Supermax has one. Leave them out: trials on several GPUs run beside each "
            "other with devices=[0, 1, …]."
        )
    if args.world_size > 1:
        raise UserError(
            f"This program was started as {args.world_size} processes (torchrun, accelerate "
            f"launch). Start it once, with python: trials on several GPUs run beside each other "
            f"with devices=[0, 1, …]."
        )
    if _evaluates_nothing(trainer):
        raise UserError(NO_EVAL_DATASET)


def _evaluates_nothing(trainer: Any) -> bool:
    """Return whether an evaluation must fail: there are no data, and no method that brings its
    own."""
    from transformers import Trainer

    own = ("evaluate", "get_eval_dataloader")
    overridden = any(getattr(type(trainer), name) is not getattr(Trainer, name) for name in own)
    return trainer.eval_dataset is None and not overridden
