"""Dropouts that a space searches although some of its encoders do not have them.

Space, sources ──without_absent_dropouts()──▶ a space that samples them only where they have effect
"""

from __future__ import annotations

from collections.abc import Mapping

from supermax.space import Space, choices
from supermax.space.domains import Branch
from supermax.space.presets import ENCODERS
from supermax.training.models.encoders import dropout_keys
from supermax.training.models.sources import Source

_KINDS = {"dropout": "of hidden states", "attention_dropout": "of attention weights"}


def without_absent_dropouts(
    space: Space, sources: Mapping[str, Source]
) -> tuple[Space, list[str]]:
    """Return the space with a condition on each dropout that some encoders lack, and a notice for
    each. A dropout that is 0 in the whole space stays as it is, since every encoder can have it.
    """
    notices = []
    for kind, words in _KINDS.items():
        name = f"encoder.{kind}"
        lacking = {n for n, source in sources.items() if not dropout_keys(source.config)[kind]}
        if not lacking or name not in space.parameters or _is_zero(space, name):
            continue
        space = _conditional(space, name, lacking)
        has = "has" if len(lacking) == 1 else "have"
        notices.append(
            f"{', '.join(sorted(lacking))} {has} no dropout {words}: {name} is not searched there."
        )
    return space, notices


def _is_zero(space: Space, name: str) -> bool:
    return all(_only_zero(branch) for branch in space.parameters[name].branches)


def _only_zero(branch: Branch) -> bool:
    data = branch.data()
    values = data.get("choices") or [data.get("low"), data.get("high")]
    return isinstance(values, list) and all(value == 0 for value in values)


def _conditional(space: Space, name: str, lacking: set[str]) -> Space:
    """Return the space in which a dropout is active only with an encoder that has it; fixed to 0
    where none has."""
    keys = [key for key in ENCODERS if key in space.parameters]
    having = {key: [n for n in choices(space, key) if n not in lacking] for key in keys}
    data = space.data()
    conditions = [f"{key} in {names!r}" for key, names in having.items() if names]
    if not conditions:  # not removed: constraints may name it
        data["parameters"][name] = {"choices": [0.0], "default": 0.0}
        return Space(**data)
    condition = " or ".join(conditions)
    branches = [
        {
            **branch.data(),
            "when": f"({branch.when}) and ({condition})" if branch.when else condition,
        }
        for branch in space.parameters[name].branches
    ]
    parameter = space.parameters[name]
    was = {"was": list(parameter.was)} if parameter.was else {}
    data["parameters"][name] = {"branches": branches, **was}
    return Space(**data)
