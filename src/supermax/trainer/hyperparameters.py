"""Hyperparameters of a trial: the functions that describe them, and the arguments they name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import optuna

from supermax._util.text import listed, nearest
from supermax.errors import UserError
from supermax.space import Space, flatten

NO_EVAL_DATASET = (
    "The Trainer has no eval_dataset, so no trial would have a value. Pass "
    "Trainer(eval_dataset=…)."
)
NO_MODEL_INIT = (
    "hyperparameter_search needs a new model for every trial, but the Trainer has no model_init. "
    "Pass Trainer(model_init=…), a function that returns the model, instead of model=…."
)


@dataclass(frozen=True)
class SpaceArguments:
    """hp_space of a search space: its parameters are named after training arguments."""

    space: Space

    def __call__(self, trial: Any) -> dict[str, Any]:
        return flatten(self.space.sample(trial))


def checked_mapping(values: object) -> Mapping[str, Any]:
    """Return what hp_space returned. Raises UserError if it is no dict."""
    if not isinstance(values, Mapping):
        raise UserError(
            f"hp_space must return a dict of training arguments, but returned {values!r:.80}."
        )
    return values


def check_argument_names(trainer: Any, values: object) -> None:
    """Raise UserError if hp_space returned no dict, or names that no one reads."""
    names = checked_mapping(values)
    unknown = [name for name in names if not hasattr(trainer.args, str(name))]
    if not unknown or takes_trial(trainer.model_init):
        return
    known = [name for name in vars(trainer.args) if not name.startswith("_")]
    raise UserError(
        listed(
            f"hp_space names what is no field of {type(trainer.args).__name__}. Correct or remove "
            f"it. To search parameters of the model, give model_init an argument: it gets the "
            f"trial.",
            [f"{name!r}{nearest(str(name), known)}" for name in unknown],
        )
    )


def takes_trial(model_init: Callable[..., Any]) -> bool:
    """Return whether model_init gets the trial. Raise UserError if it has other arguments."""
    from transformers.trainer_utils import number_of_arguments

    if (count := number_of_arguments(model_init)) > 1:
        raise UserError(f"model_init should have 0 or 1 argument, but has {count}.")
    return bool(count == 1)


def try_space(trainer: Any, hp_space: Callable[[Any], Any]) -> None:
    """Check the names of hp_space before there is a trial to spend: call it once, with a trial of
    no study."""
    if isinstance(hp_space, SpaceArguments):
        check_argument_names(trainer, dict.fromkeys(hp_space.space.parameters))
        return
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        sampler = optuna.samplers.RandomSampler(seed=0)
        values = hp_space(optuna.create_study(sampler=sampler).ask())
    finally:
        optuna.logging.set_verbosity(verbosity)
    check_argument_names(trainer, values)
