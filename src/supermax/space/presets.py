"""Presets: an agent's space with numbers of trials and epochs.

agent, preset, environment, flags ──▶ Preset(space, trials, epochs, patience)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

import yaml

from supermax._util.text import ended, nearest
from supermax.agents import AGENTS, agent_of
from supermax.errors import UserError
from supermax.space.model import Space, choices
from supermax.space.narrowing import narrowed
from supermax.space.reading import CATALOG, load

LENGTH = "text.max_length"
MODEL_CHOICES = "HPO_MODEL_CHOICES"
ENCODERS = ("encoder.name", "evidence_encoder.name")


def unsearched(agent: str) -> dict[str, dict[str, Any]]:
    """Return the parameters of an agent that no space of the package searches, with all of their
    values."""
    data = yaml.safe_load((CATALOG / "_unsearched.yaml").read_text(encoding="utf-8"))
    its = agent_of(agent)
    prefixes = {
        "no_answer.": its.spans,
        "decode.": its.spans,
        "labels.": its.label_sets,
        "text.": its.text_level,
    }
    others = tuple(prefix for prefix, has in prefixes.items() if not has)
    return {
        name: parameter
        for name, parameter in data["parameters"].items()
        if not name.startswith(others)
    }


@dataclass(frozen=True)
class Preset:
    """Space with the length of its search."""

    name: str
    space: Space
    trials: int
    epochs: int
    patience: int
    fit_length: bool = False
    """Set text.max_length from the lengths of the data."""


def encoders_in(space: Space) -> list[str]:
    """Return the encoders of a space, each once."""
    keys = [key for key in ENCODERS if key in space.parameters]
    return list(dict.fromkeys(str(name) for key in keys for name in choices(space, key)))


class PresetSize(TypedDict):
    """Length of a preset, and the folder of its spaces in the catalog."""

    trials: dict[str, int]
    epochs: int
    patience: int
    folder: NotRequired[str]
    fit_length: NotRequired[bool]


def presets() -> dict[str, PresetSize]:
    """Return trials, epochs and patience of each preset, by its name."""
    read = yaml.safe_load((CATALOG / "_presets.yaml").read_text(encoding="utf-8"))
    for size in read.values():
        given = size["trials"]
        size["trials"] = {agent: given.get(agent, given["default"]) for agent in AGENTS}
    return dict(read)


def preset(
    agent: str,
    name: str = "supermax",
    *,
    models: str | None = None,
    narrow: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    classic: bool = False,
) -> Preset:
    """Return a preset of an agent. Raises UserError.

    Args:
        agent: Agent to search.
        name: Name of the preset.
        models: Encoders to search, joined by commas, of the space or any others. Default:
            HPO_MODEL_CHOICES of `environment`, else the preset's.
        narrow: Values to keep, by parameter.
        environment: Environment variables.
        classic: Use the agent's classic space.
    """
    agent = agent_of(agent).name
    known = presets()
    if name not in known:
        raise UserError(ended(f"There is no preset {name!r}{nearest(name, known)}"))
    size = known[name]
    folder = "classic/" if classic else f"{size['folder']}/" if "folder" in size else ""
    space = load(f"{folder}{agent}")
    chosen = models or (environment or {}).get(MODEL_CHOICES) or ""
    if names := [model.strip() for model in chosen.split(",") if model.strip()]:
        space = _with_encoders(space, list(dict.fromkeys(names)))
    space = narrowed(space, narrow or {})
    return Preset(
        name,
        space,
        size["trials"][agent],
        size["epochs"],
        size["patience"],
        bool(size.get("fit_length")),
    )


def _with_encoders(space: Space, names: list[str]) -> Space:
    data = space.data()
    for encoder in ENCODERS:
        if encoder in space.parameters:
            current = space.parameters[encoder].branches[0].default
            default = current if current in names else names[0]
            data["parameters"][encoder] = {"choices": names, "default": default}
    return Space(**data)
