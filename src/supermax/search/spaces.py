"""Search space of given settings. Needs no torch, so that mistakes are reported early."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from supermax.agents import agent_of
from supermax.errors import UserError
from supermax.search.settings import Settings
from supermax.space import Space, load, narrowed, with_lora
from supermax.space.adapters import NAME as ADAPTER
from supermax.space.adapters import lora_parameters
from supermax.space.presets import LENGTH, preset, unsearched

SEED = "train.seed"
"""Random seed of a training. The spaces of the package do not search it: the best of several seeds
is no better configuration."""
_POOLING = "head.pooling"
_POLICY = "no_answer.policy"
_LONG_TEXTS, _WINDOW_POOLING = "text.long_texts", "text.window_pooling"
_OF_WINDOWS = {_WINDOW_POOLING, "text.doc_stride"}
"""Parameters that have no effect without windows."""
_OF_POLICIES = {"no_answer.threshold": "threshold", "no_answer.ratio": "ratio"}
"""Policies that parameters belong to."""


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
    space = _with_last_token(with_parameters(space, _wanted(settings)), settings.narrow)
    narrow = dict(settings.narrow)
    if any(name in lora_parameters() for name in narrow) and ADAPTER not in space.parameters:
        space = with_lora(space)
        narrow.setdefault(ADAPTER, "lora")  # a rank, say, needs the adapter
    return narrowed(space, narrow) if narrow else space


def _with_last_token(space: Space, narrow: Mapping[str, Any]) -> Space:
    """Return the space that pools by the last token, where settings ask for it: no space of the
    package searches it, since encoders need it less than decoders."""
    if _POOLING not in space.parameters or narrow.get(_POOLING) not in ("last", ["last"]):
        return space
    data = space.data()
    return Space(
        **{
            **data,
            "parameters": {
                **data["parameters"],
                _POOLING: {"choices": ["last"], "default": "last"},
            },
        }
    )


def _wanted(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return the parameters that settings narrow although no space of the package has them.

    A threshold, or a ratio, also needs its no-answer policy, and settings of windows need windows.
    """
    known, narrow = unsearched(settings.agent), settings.narrow
    refused = [name for name in (_LONG_TEXTS, _WINDOW_POOLING) if name in narrow]
    if refused and not agent_of(settings.agent).text_level:
        raise UserError(
            f"The agent '{settings.agent}' has no {' and no '.join(refused)}: spans and entities "
            f"of long texts are always found in windows, and only agents with one encoder and "
            f"outputs for the whole text can pool those of windows. Leave it out."
        )
    wanted = {name: known[name] for name in narrow if name in known}
    policies = [_OF_POLICIES[name] for name in wanted if name in _OF_POLICIES]
    if policies and _POLICY not in wanted:
        wanted[_POLICY] = {"choices": policies, "default": policies[0]}
    if wanted.keys() & _OF_WINDOWS and _LONG_TEXTS not in wanted:
        wanted[_LONG_TEXTS] = {"choices": ["windows"], "default": "windows"}
    return wanted


def with_parameters(space: Space, parameters: Mapping[str, Any]) -> Space:
    """Return the space with those of the parameters that it does not have."""
    added = {name: p for name, p in parameters.items() if name not in space.parameters}
    data = space.data()
    return Space(**{**data, "parameters": {**data["parameters"], **added}}) if added else space


def with_former(space: Space, stored: Space, agent: str) -> Space:
    """Return the space with the parameters that only the stored one of a study searches, because
    no space of the package searches them any more, and with the constraints on them.

    Without them it would be another version, in which trials that are running start anew.
    """
    known, data = unsearched(agent), stored.data()
    former = {name: p for name, p in data["parameters"].items() if name in known}
    added = set(former) - set(space.parameters)
    if not added:
        return space
    whole = with_parameters(space, former)
    own = {constraint.name for constraint in space.constraints}
    constraints = [
        each.data()
        for each in stored.constraints
        if each.name not in own
        and (names := each.expression.names if each.expression is not None else set()) & added
        and names <= set(whole.parameters)
    ]
    data = whole.data()
    return Space(**{**data, "constraints": [*data.get("constraints", ()), *constraints]})


def fits_length(settings: Settings) -> bool:
    """Return True if text.max_length is set from the lengths of the data."""
    if settings.space is not None or LENGTH in settings.narrow:
        return False
    return preset(settings.agent, settings.preset).fit_length
