"""A space fitted to this machine, before the first trial: encoders that can be had, optimizers
that can run. What goes is said."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from supermax.agents.shapes import why_unusable
from supermax.agents.text_length import with_length
from supermax.errors import UserError
from supermax.space import Space, choices, narrowed
from supermax.space.presets import ENCODERS, encoders_in
from supermax.training.data.splits import Splits
from supermax.training.optimizers import unavailable
from supermax.training.sources import Source, find_all, installed
from supermax.words import listed


@dataclass(frozen=True)
class Fitted:
    space: Space
    sources: dict[str, Source]
    notices: list[str] = field(default_factory=list)

    def with_length(self, splits: Splits, cache: Path) -> Fitted:
        """Return the same with the one text.max_length that the data needs."""
        space, notice = with_length(self.space, splits, self.sources.values(), cache)
        return replace(self, space=space, notices=[*self.notices, notice])


def encoder_names(space: Space) -> list[str]:
    """All that a space has as a trial's encoder. Raises UserError when it has none."""
    first = ENCODERS[0]
    names = choices(space, first) if first in space.parameters else []
    if not names:
        raise UserError(
            f"The space '{space.name}' has no encoder to train. Give it some, for example "
            f"{first}: {{choices: [bert-base-uncased]}}."
        )
    return [str(name) for name in names]


def usable(names: list[str]) -> tuple[dict[str, Source], dict[str, str]]:
    """Encoders that a trial can be made of; for the others the reason why not."""
    found, missing = find_all(names)
    reasons = {name: why_unusable(source) for name, source in found.items()}
    missing |= {name: reason for name, reason in reasons.items() if reason is not None}
    return {name: source for name, source in found.items() if name not in missing}, missing


def installed_encoders() -> list[str]:
    """Return the pretrained encoders on this machine that a trial can be made of."""
    return list(usable(installed())[0])


def fitted(space: Space, device_type: str) -> Fitted:
    """The space with what is possible here. Raises UserError when no encoder is left."""
    encoder_names(space)
    found, missing = usable(encoders_in(space))
    if not found:
        raise UserError(listed("None of the encoders can be used:", missing.values()))
    notices = list(missing.values())
    wanted: dict[str, list[object]] = {}
    for key in ENCODERS:
        if key in space.parameters and missing:
            wanted[key] = [name for name in choices(space, key) if name in found]
    if "optim.name" in space.parameters:
        reasons = unavailable(device_type)
        gone = [name for name in choices(space, "optim.name") if name in reasons]
        if gone:
            notices += [reasons[str(name)] for name in gone]
            wanted["optim.name"] = [n for n in choices(space, "optim.name") if n not in reasons]
    untrained = [name for name, source in found.items() if not source.trained]
    if untrained:
        notices.append(
            f"Made from their configuration alone, and not pretrained: {', '.join(untrained)}."
        )
    return Fitted(narrowed(space, wanted) if wanted else space, found, notices)
