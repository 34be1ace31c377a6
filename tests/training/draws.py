"""Configurations sampled from the agents' own spaces, made small."""

from __future__ import annotations

import optuna

from supermax.space import sampler_for
from supermax.space.presets import preset
from supermax.tasks.objective import configured
from supermax.training.config import Config
from supermax.training.models.architectures import TINY
from supermax.training.steps.capturable_step import CAPTURABLE_OPTIMIZERS

ENCODERS = sorted(set(TINY) - {"tiny"})


def drawn(agent: str, seed: int) -> Config:
    """Return a configuration without dropout, so that results repeat, and with learning rates that
    change the metrics within two epochs."""
    narrow = {"optim.name": list(CAPTURABLE_OPTIMIZERS)}
    space = preset(agent, models=",".join(ENCODERS), narrow=narrow).space
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    found = space.sample(
        optuna.create_study(sampler=sampler_for(space, "random", seed=seed)).ask()
    )
    frozen = found["encoder"]["frozen_layers"] % 2
    found["encoder"] |= {"dropout": 0.0, "attention_dropout": 0.0, "frozen_layers": frozen}
    found["head"]["dropout"] = 0.0
    found["optim"]["lr"] *= 20
    found["text"] |= {"max_length": 32, "doc_stride": 8}
    found["train"]["effective_batch"] = (4, 8, 12)[seed % 3]
    return configured(agent, found, {"epochs": 2, "patience": None})
