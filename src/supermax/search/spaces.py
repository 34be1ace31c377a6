"""Search space of given settings. Needs no torch, so that mistakes are reported early."""

from __future__ import annotations

from collections.abc import Mapping

from supermax.search.settings import Settings
from supermax.space import Space, load, narrowed
from supermax.space.presets import LENGTH, preset

SEED = "train.seed"
"""Random seed of a training. The spaces of the package do not search it: the best of several seeds
is no better configuration. Studies of earlier versions did."""
_ANY_SEED = {"type": "int", "low": 0, "high": (1 << 31) - 1, "default": 1}


def space_for(settings: Settings) -> Space:
    """Return the search space, before it is fitted to the encoders and optimizers of the
    machine."""
    models = ",".join(settings.models) if settings.models else None
    if settings.space is None:
        space = preset(settings.agent, settings.preset, models=models).space
    elif isinstance(settings.space, str):
        space = load(settings.space)
    else:
        space = Space(**{"name": settings.study, **settings.space})
    if settings.space is not None and models:
        space = narrowed(space, {"encoder.name": settings.models})
    if SEED in settings.narrow:
        space = with_seed(space, _ANY_SEED)
    return narrowed(space, settings.narrow) if settings.narrow else space


def with_seed(space: Space, parameter: Mapping[str, object]) -> Space:
    """Return the space with the parameter of the seed, unless it has one."""
    if SEED in space.parameters:
        return space
    data = space.data()
    return Space(**{**data, "parameters": {**data["parameters"], SEED: parameter}})


def fits_length(settings: Settings) -> bool:
    """Return True if text.max_length is set from the lengths of the data."""
    if settings.space is not None or LENGTH in settings.narrow:
        return False
    return preset(settings.agent, settings.preset).fit_length
