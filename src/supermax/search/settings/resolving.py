"""Merge of the layers of settings, with the source of every value. Pure.

defaults ◀ preset ◀ file ◀ environment ◀ flags
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from supermax._util.attributes import is_untrained
from supermax._util.text import ended, is_url, listed, mistakes, nearest
from supermax._util.yaml_lines import read_text, tree
from supermax.agents import AGENT_NAMES, AGENTS, stored_name
from supermax.errors import UserError
from supermax.search.settings.model import Settings, is_name_of_data, keys
from supermax.search.settings.places import next_to

if TYPE_CHECKING:
    from supermax.space.presets import PresetSize

ENVIRONMENT = {
    "HPO_EPOCHS": "epochs",
    "HPO_PATIENCE": "patience",
    "HPO_MIN_DELTA": "min_delta",
    "HPO_MODEL_CHOICES": "models",
    "HPO_OUTDIR": "outdir",
    "PAR": "workers",
    "SUPERMAX_STORAGE": "storage",
    "SUPERMAX_DATA": "data.path",
}
_TRIALS = {agent: f"N_TRIALS_{agent.upper().replace('-', '_')}" for agent in AGENTS}
THE_COMMAND = "the command"
"""Layer of the agent that is named on the command line."""
GUESSES = "guessed columns"
"""Layer of columns that were guessed from the data."""
_WHERE_LISTED = (
    ". `supermax init` writes a file with all settings; the parameters of a space are in its "
    "file, and `supermax study show STUDY` lists those of a study"
)
_MAPPINGS = ("narrow", "space")
"""Keys whose value is a mapping that is not flattened."""


@dataclass(frozen=True)
class Value:
    value: object
    source: str
    """Origin of the value, for messages: notes.yaml, line 3."""
    layer: str = "flags"
    """Layer of the value, for a summary: notes.yaml."""


@dataclass(frozen=True)
class Resolved:
    settings: Settings
    sources: dict[str, str]
    """Origin of each value that is not a default, by key."""
    layers: dict[str, str]
    """Layer of each value that is not a default, by key."""

    def origins(self) -> list[tuple[str, object, str]]:
        """Return key, value and source of all that is not a default, in the settings' order."""
        return [
            (key, _at(self.settings, key), self.sources[key])
            for key in (*keys(), *(k for k in self.sources if k not in keys()))
            if key in self.sources
        ]


def resolve(
    agent: str | None,
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Value] | None = None,
    presets: Mapping[str, PresetSize],
    parameters: Mapping[str, object] | None = None,
) -> Resolved:
    """Merge the layers into the settings of one agent. Raises one UserError with all mistakes.

    Args:
        agent: Agent that the command names; None: the file's.
        file: Settings in YAML.
        environment: Environment variables.
        flags: Values by key, or by the name of a parameter to narrow.
        presets: Trials, epochs and patience of each preset, by its name.
        parameters: Parameters of the space that a flag may narrow, by name.
    """
    layers: dict[str, Value] = {}
    problems: list[str] = []
    if file is not None:
        layers |= _from_file(file, problems)
    if (named := layers.get("agent")) is not None and isinstance(named.value, str):
        layers["agent"] = replace(named, value=stored_name(named.value))
    agent = agent and stored_name(agent)
    chosen = agent or _text(layers.get("agent"))
    layers |= _from_environment(environment or {}, chosen)
    layers |= _flags(flags or {}, parameters or {}, layers, problems)
    if agent is not None:
        if "agent" in layers and layers["agent"].value != agent:
            other = layers["agent"]
            problems.append(
                f"{other.source}: agent is {other.value!r:.60}, but the command names '{agent}'."
            )
        layers["agent"] = Value(agent, "the command", THE_COMMAND)
    layers = _from_preset(layers, chosen, presets, problems) | layers
    settings = _validated(layers, problems)
    if problems or settings is None:
        head = f"The search cannot start: {mistakes(len(problems))}."
        raise UserError(problems[0] if len(problems) == 1 else listed(head, problems))
    return Resolved(
        settings,
        {key: value.source for key, value in layers.items()},
        {key: value.layer for key, value in layers.items()},
    )


def _from_file(path: Path, problems: list[str]) -> dict[str, Value]:
    found = tree(read_text(path), path)
    problems += [f"{file.name}, line {line}: {text}." for file, line, text in found.problems]
    if not isinstance(found.data, dict):
        raise UserError(
            f"{path} holds no settings: it needs lines such as 'agent: criteria'. "
            f"`supermax init` writes a file to start from."
        )
    if isinstance(found.data.get("data"), str):
        found.data["data"] = {"path": found.data["data"]}
    layers: dict[str, Value] = {}
    for key, value, at in flattened(found.data):
        line = found.place(at)[1]
        layers[key] = Value(value, f"{path.name}, line {line}", path.name)
    _resolve_paths(layers, path)
    problems += _unknown(layers)
    return {key: value for key, value in layers.items() if key in keys()}


def _resolve_paths(layers: dict[str, Value], path: Path) -> None:
    """Make relative paths of a settings file relative to the folder of the file."""
    for key in ("data.path", "space", "outdir", "storage", "cache"):
        value = layers.get(key)
        if value is None or not isinstance(value.value, str) or not _is_path(key, value.value):
            continue
        place = path.parent / Path(value.value).expanduser()
        if key != "space" or place.exists():
            layers[key] = replace(value, value=str(place))
    if (value := layers.get("warm_start")) is not None:
        named = value.value if isinstance(value.value, list) else [value.value]
        names = [next_to(text, path.parent) if isinstance(text, str) else text for text in named]
        layers["warm_start"] = replace(value, value=names)


def _is_path(key: str, text: str) -> bool:
    return not is_url(text) and not (key == "data.path" and is_name_of_data(text))


def _unknown(layers: Mapping[str, Value]) -> list[str]:
    wrong = []
    for key, value in layers.items():
        if key not in keys():
            whole = [known for known in keys() if known.startswith(f"{key}.")]
            why = (
                f"{key} holds keys of its own, such as {whole[0]}"
                if whole
                else f"{key}: there is no such key{nearest(key, keys())}"
            )
            wrong.append(ended(f"{value.source}: {why}"))
    return wrong


def flattened(
    data: Mapping[str, object], before: str = "", at: tuple[str | int, ...] = ()
) -> list[tuple[str, object, tuple[str | int, ...]]]:
    """Return dotted key, value and path of each value in nested settings; None is left out."""
    found = []
    for key, value in data.items():
        name, place = f"{before}{key}", (*at, key)
        if isinstance(value, dict) and name not in _MAPPINGS:
            found += flattened(value, f"{name}.", place)
        elif value is not None:
            found.append((name, value, place))
    return found


def _from_environment(environment: Mapping[str, str], agent: str | None) -> dict[str, Value]:
    wanted = dict(ENVIRONMENT)
    if agent in _TRIALS:
        wanted[_TRIALS[agent]] = "trials"
    return {
        key: Value(environment[name], f"{name} of the environment", "the environment")
        for name, key in wanted.items()
        if environment.get(name, "").strip()
    }


def _flags(
    flags: Mapping[str, Value],
    parameters: Mapping[str, object],
    below: Mapping[str, Value],
    problems: list[str],
) -> dict[str, Value]:
    """Return the layer of the flags. A flag sets a key, or narrows a parameter of the space."""
    found: dict[str, Value] = {}
    narrow: dict[str, object] = {}
    source = ""
    for key, value in flags.items():
        bare = key.removeprefix("narrow.")
        if key == "data":
            found["data.path"] = value
        elif key == "narrow" and isinstance(value.value, dict):
            narrow, source = {**narrow, **value.value}, value.source
        elif key in keys():
            found[key] = value
        elif bare in parameters:
            narrow[bare], source = value.value, value.source
        else:
            near = nearest(key, [*keys(), *parameters]) or _WHERE_LISTED
            problems.append(ended(f"{value.source}: there is no such key{near}"))
    if narrow:
        under = below["narrow"].value if "narrow" in below else None
        found["narrow"] = Value({**(under if isinstance(under, dict) else {}), **narrow}, source)
    return found


def _from_preset(
    layers: Mapping[str, Value],
    agent: str | None,
    presets: Mapping[str, PresetSize],
    problems: list[str],
) -> dict[str, Value]:
    chosen = layers.get("preset") or _preset_for(layers)
    name = str(chosen.value)
    if name not in presets:
        near = nearest(name, presets)
        problems.append(ended(f"{chosen.source}: there is no preset {chosen.value!r}{near}"))
        return {}
    size, source = presets[name], f"preset {name}"
    layer = f"the {source}"
    found = {
        "epochs": Value(size["epochs"], source, layer),
        "patience": Value(size["patience"], source, layer),
    }
    if chosen.source != "default":
        found["preset"] = chosen if "preset" in layers else replace(chosen, layer=layer)
    if agent in size["trials"]:
        found["trials"] = Value(size["trials"][agent], source, layer)
    return found


def _preset_for(layers: Mapping[str, Value]) -> Value:
    models = layers["models"].value if "models" in layers else []
    names = models.split(",") if isinstance(models, str) else models
    return Value(*fitting_preset(names if isinstance(names, list) else []))


def fitting_preset(models: Sequence[object]) -> tuple[str, str]:
    """Return the preset to use where none is named, and the reason: `standard` for pretrained
    encoders."""
    for name in (str(model).strip() for model in models):
        if name and not is_untrained(name):
            return "standard", f"since {name} is pretrained"
    return "demo", "default"


def _validated(layers: Mapping[str, Value], problems: list[str]) -> Settings | None:
    try:
        return Settings.model_validate(_nested(layers))
    except ValidationError as error:
        for detail in error.errors():
            where = [str(part) for part in detail["loc"]]
            if detail["type"] == "missing" and where[0] in ("trials", "epochs") and problems:
                continue  # follows from an unknown agent or preset
            problems.append(_message(where, detail, layers))
        return None


def _message(where: list[str], detail: ErrorDetails, layers: Mapping[str, Value]) -> str:
    key = ".".join(where)
    while key not in layers and "." in key:
        key = key.rsplit(".", 1)[0]
    source = f"{layers[key].source}: " if key in layers else ""
    if detail["type"] == "missing":
        if where == ["agent"]:
            return f"No agent is named (key agent). There are {', '.join(AGENT_NAMES)}."
        return f"{'.'.join(where)}: it is missing."
    if detail["type"] == "literal_error":
        known = re.findall("'([^']*)'", detail["ctx"]["expected"])
        near = nearest(str(detail["input"]), known)
        return ended(f"{source}there is no {key} {detail['input']!r:.60}{near}")
    text = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else detail["msg"]
    text = _MESSAGES.get(detail["type"], text)
    if detail["type"] in ("greater_than_equal", "less_than_equal"):
        least = detail["type"] == "greater_than_equal"
        limit = detail["ctx"]["ge" if least else "le"]
        text = f"it must be at {'least' if least else 'most'} {limit}"
    given = layers[key].value if key in layers else detail["input"]
    hidden = detail["type"] == "value_error" or key in _SECRET
    shown = "" if hidden else f" ({given!r:.60})"
    named = "" if source.startswith(("--", f"{key} of ")) else f"{key}: "
    return f"{source}{named}{text[:1].lower()}{text[1:]}{shown}."


_SECRET = ("notify", "track")
"""Settings whose values may contain secrets."""
_MESSAGES = {
    "bool_parsing": "it must be true or false",
    "bool_type": "it must be true or false",
    "int_parsing": "it must be a whole number",
    "int_type": "it must be a whole number",
    "int_from_float": "it must be a whole number",
    "float_parsing": "it must be a number",
    "float_type": "it must be a number",
    "string_type": "it must be a word",
    "list_type": "it must be a list",
    "dict_type": "it must hold keys of its own",
}


def _nested(layers: Mapping[str, Value]) -> dict[str, object]:
    """Return the values by key, those of dotted keys in a mapping of their own."""
    result: dict[str, object] = {}
    parts: dict[str, dict[str, Value]] = {}
    for key, value in layers.items():
        first, dot, rest = key.partition(".")
        if dot:
            parts.setdefault(first, {})[rest] = value
        else:
            result[key] = value.value
    return result | {key: _nested(part) for key, part in parts.items()}


def _at(settings: object, key: str) -> object:
    for part in key.split("."):
        settings = getattr(settings, part, None)
    return settings


def _text(value: Value | None) -> str | None:
    return value.value if value is not None and isinstance(value.value, str) else None
