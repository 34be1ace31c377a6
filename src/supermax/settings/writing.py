"""A file of settings to begin with: what is set, and as comments all that could be. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticUndefined

from supermax.naming import CACHE, STORAGE
from supermax.settings.model import DataSettings, Settings, keys

Data = DataSettings.model_fields
_DATA = ("on_bad", "validation", "test", "split_seed")
_MOST_ASKED = ("epochs", "patience", "models", "workers", "timeout", "objectives", "gpu_memory")


def written(
    agent: str,
    *,
    name: str | None = None,
    preset: str = "demo",
    data: Mapping[str, Any] | None = None,
    head: str = "",
    notes: Mapping[str, str] | None = None,
    size: Mapping[str, Any] | None = None,
) -> str:
    """YAML. `data` is the part of that name; `notes` are comments to its keys; `size` is what the
    preset makes of trials, epochs and patience."""
    about = keys()
    lines = [f"# {line}" for line in head.splitlines()]
    lines += [
        *([""] if head else []),
        f"agent: {agent}  # {about['agent']}",
        f"name: {_text(name or agent)}  # of the study",
        f"preset: {preset}  # {about['preset']}",
        "",
        "data:",
        *_part(data or {"path": "synthetic"}, "  ", notes or {}, "data."),
        *(f"  # {key}: {_text(Data[key].default)}  # {about[f'data.{key}']}" for key in _DATA),
        "",
        "# All else that can be set: the value it has, or an example where it has none.",
    ]
    given = {"agent", "name", "preset", "data", "narrow"}
    rest = dict.fromkeys(("trials", *_MOST_ASKED, *Settings.model_fields))
    for key in rest:
        if key in given:
            continue
        default = Settings.model_fields[key].default
        known = (size or {}).get(key, default)
        none = known in (None, [], {}, PydanticUndefined)
        text = _EXAMPLES[key] if none else _text(known)
        lines.append(f"# {key}: {text}  # {'an example; ' if none else ''}{about[key]}")
    lines += [
        f"# narrow:  # {about['narrow']}",
        "#   encoder.name: [bert-base-uncased, roberta-base]",
        "#   optim.lr: {low: 1e-5, high: 1e-4}",
    ]
    return "\n".join(lines) + "\n"


def _part(
    data: Mapping[str, Any], indent: str, notes: Mapping[str, str], before: str
) -> list[str]:
    lines = []
    for key, value in data.items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{key}:", *_part(value, indent + "  ", notes, f"{before}{key}.")]
        else:
            note = notes.get(f"{before}{key}")
            lines.append(f"{indent}{key}: {_text(value)}" + (f"  # {note}" if note else ""))
    return lines


def _text(value: Any) -> str:
    """As YAML has it; JSON's strings are YAML's."""
    if isinstance(value, str) and value and value.replace("-", "").replace("_", "").isalpha():
        reserved = ("true", "false", "null", "yes", "no", "on", "off")
        return json.dumps(value) if value.lower() in reserved else value
    shown = json.dumps(value, ensure_ascii=False)
    return shown if shown.isprintable() else json.dumps(value)


_EXAMPLES = {
    "trials": "40",
    "models": "[bert-base-uncased, roberta-base]",
    "workers": "2",
    "timeout": "8h",
    "objectives": "[macro_f1]",
    "gpu_memory": "24GiB",
    "epochs": "6",
    "patience": "3",
    "space": "space.yaml",
    "seed": "1",
    "gpus": "[0, 1]",
    "trial_timeout": "1h",
    "stall_timeout": "10m",
    "storage": STORAGE,
    "cache": CACHE,
    "keep": "20GiB",
    "track": "mlflow",
}
