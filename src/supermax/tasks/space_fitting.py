"""Fitting of a space to this machine: it keeps encoders and optimizers that are available.

A notice names each choice that is removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from supermax._util.text import listed
from supermax.agents import agent_of
from supermax.errors import UserError
from supermax.space import Space, choices, narrowed
from supermax.space.adapters import TARGETS, may_adapt
from supermax.space.presets import ENCODERS, encoders_in
from supermax.tasks.absent_dropouts import without_absent_dropouts
from supermax.tasks.length_limits import within_limits
from supermax.tasks.shapes import adapted_layers, why_unusable
from supermax.tasks.text_length import with_length
from supermax.training.data.splits import Splits
from supermax.training.models.adapters import check_installed
from supermax.training.models.sources import Source, find_all, installed_models
from supermax.training.optim.optimizers import unavailable

_POOLING = "head.pooling"


@dataclass(frozen=True)
class Fitted:
    """Space that can be searched on this machine."""

    space: Space
    sources: dict[str, Source]
    notices: list[str] = field(default_factory=list)
    untrained_notice: str | None = None
    """One of `notices`: encoders without pretrained weights; None: all have them."""

    def with_length(self, splits: Splits, cache: Path) -> Fitted:
        """Return a copy whose text.max_length is what the data needs."""
        space, notice = with_length(self.space, splits, self.sources.values(), cache)
        return replace(self, space=space, notices=[*self.notices, notice])

    def within_limits(self) -> Fitted:
        """Return a copy that searches no length above the limit of its encoder."""
        space, notices = within_limits(self.space, self.sources)
        return replace(self, space=space, notices=[*self.notices, *notices])


def encoder_names(space: Space) -> list[str]:
    """Return the encoders of a space. Raises UserError if it has none."""
    first = ENCODERS[0]
    names = choices(space, first) if first in space.parameters else []
    if not names:
        raise UserError(
            f"The space '{space.name}' has no encoder to train. Give it some, for example "
            f"{first}: {{choices: [bert-base-uncased]}}."
        )
    return [str(name) for name in names]


def usable(names: list[str], last_token: bool = False) -> tuple[dict[str, Source], dict[str, str]]:
    """Return the encoders that agents can use, and the reasons why they cannot use the others.

    With `last_token` only the state of the last token is read, which suits decoders too.
    """
    found, missing = find_all(names)
    reasons = {name: why_unusable(source, last_token) for name, source in found.items()}
    missing |= {name: reason for name, reason in reasons.items() if reason is not None}
    return {name: source for name, source in found.items() if name not in missing}, missing


def _pools_last_token(space: Space, agent: str | None) -> bool:
    if agent is None or not agent_of(agent).text_level or _POOLING not in space.parameters:
        return False
    return set(choices(space, _POOLING)) == {"last"}


def installed_encoders() -> list[str]:
    """Return the pretrained encoders on this machine that agents can use."""
    return list(usable(installed_models())[0])


def _check_adapters(space: Space, sources: Mapping[str, Source]) -> None:
    """Raise UserError if trials may have an adapter, and it cannot be made for an encoder."""
    if not may_adapt(space):
        return
    check_installed()
    kinds = choices(space, TARGETS) if TARGETS in space.parameters else ["all-linear"]
    for source in sources.values():
        for kind in kinds:
            adapted_layers(source, str(kind))


def fitted(space: Space, device_type: str, agent: str | None = None) -> Fitted:
    """Return the space with the choices that this machine has.

    Decoders remain if the agent has outputs for whole texts only and all of the space is for
    pooling by the last token.

    Raises UserError if no encoder is left.
    """
    encoder_names(space)
    found, missing = usable(encoders_in(space), _pools_last_token(space, agent))
    if not found:
        raise UserError(listed("None of the encoders can be used:", missing.values()))
    _check_adapters(space, found)
    notices = list(missing.values())
    remaining: dict[str, list[object]] = {}
    for key in ENCODERS:
        if key in space.parameters and missing:
            remaining[key] = [name for name in choices(space, key) if name in found]
    if "optim.name" in space.parameters:
        reasons = unavailable(device_type)
        removed = [name for name in choices(space, "optim.name") if name in reasons]
        if removed:
            notices += [reasons[str(name)] for name in removed]
            remaining["optim.name"] = [n for n in choices(space, "optim.name") if n not in reasons]
    untrained = [name for name, source in found.items() if not source.trained]
    untrained_notice = None
    if untrained:
        untrained_notice = f"Random weights, not pretrained: {', '.join(untrained)}."
        notices.append(untrained_notice)
    narrowed_space = narrowed(space, remaining) if remaining else space
    narrowed_space, absent = without_absent_dropouts(narrowed_space, found)
    notices += absent
    return Fitted(narrowed_space, found, notices, untrained_notice)
