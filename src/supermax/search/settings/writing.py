"""YAML files of settings: a template with every key as a comment, and those of a search. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from pydantic import ValidationError
from pydantic_core import PydanticUndefined

from supermax._util.attributes import CACHE, STORAGE
from supermax.agents import agent_of
from supermax.search.settings.model import (
    SYNTHETIC,
    DataSettings,
    Settings,
    is_name_of_data,
    keys,
)

Data = DataSettings.model_fields
_DATA = ("on_bad", "validation", "test", "split_seed")
_FIRST_KEYS = ("epochs", "patience", "models", "workers", "timeout", "objectives", "gpu_memory")


def written(
    agent: str,
    *,
    name: str | None = None,
    models: Sequence[str] = (),
    data: Mapping[str, object] | None = None,
    head: str = "",
    notes: Mapping[str, str] | None = None,
    size: Mapping[str, object] | None = None,
) -> str:
    """Return a settings file as YAML, with every other key as a comment.

    Args:
        agent: Agent to search.
        name: Name of the study; None: the agent's.
        models: Encoders to search; empty: the preset's.
        data: Values of the part `data`; None: synthetic data.
        head: Comment at the top of the file.
        notes: Comments on keys of `data`, by dotted key.
        size: Preset that follows from the models, with its trials, epochs and patience.
    """
    about = keys()
    examples = _EXAMPLES | {"objectives": f"[{agent_of(agent).metric}]"}
    lines = [f"# {line}" for line in head.splitlines()]
    lines += [
        *([""] if head else []),
        f"agent: {agent}  # {about['agent']}",
        f"name: {_text(name or agent)}  # name of the study",
        *([f"models: {_text(list(models))}  # {_ENCODERS}"] if models else []),
        "",
        "data:",
        *_part(data or {"path": "synthetic"}, "  ", notes or {}, "data."),
        *(f"  # {key}: {_text(Data[key].default)}  # {about[f'data.{key}']}" for key in _DATA),
        "",
        "# All other keys: the default, or an example where there is none.",
    ]
    given = {"agent", "name", "data", "narrow", *(["models"] if models else [])}
    rest = dict.fromkeys(("preset", "trials", *_FIRST_KEYS, *Settings.model_fields))
    for key in rest:
        if key in given:
            continue
        default = Settings.model_fields[key].default
        known = (size or {}).get(key, default)
        none = known in (None, [], {}, PydanticUndefined)
        text = examples[key] if none else _text(known)
        lines.append(f"# {key}: {text}  # {about[key]}{' (an example)' if none else ''}")
    pretrained = (size or {}).get("preset") in ("standard", "modern")
    lines += [
        f"# narrow:  # {about['narrow']}",
        "#   train.effective_batch: [16]",
        f"#   optim.lr: {{low: {'2e-5' if pretrained else '5e-4'}, high: "
        f"{'1e-4' if pretrained else '5e-3'}}}",
    ]
    return "\n".join(lines) + "\n"


# Paths and addresses of one machine, or of one run.
_MACHINE_KEYS = {
    "address",
    "cache",
    "checkpoints",
    "notify",
    "outdir",
    "run_dir",
    "storage",
    "track",
    "warm_start",
}
_SPACE_KEYS = {"models", "narrow", "space"}


def reproducing(stored: Mapping[str, object], name: str, space: Mapping[str, object]) -> str:
    """Return the settings of a search as YAML that runs it again; "" where they cannot be read.

    `space` is the searched space, which replaces the settings it was made from. The data's path is
    reduced to its file name, since a report may be passed on to others."""
    try:
        settings = Settings.model_validate(dict(stored))
    except ValidationError:  # written by another version
        return ""
    plain = settings.model_dump(
        mode="json", exclude_defaults=True, exclude=_MACHINE_KEYS | _SPACE_KEYS | {"agent", "name"}
    )
    data = {key: value for key, value in plain.pop("data", {}).items() if key != "path"}
    path = settings.data.path or SYNTHETIC
    if not is_name_of_data(path):
        path = re.split(r"[/\\]", path.rstrip("/\\"))[-1]
    if settings.data.columns is not None:
        data["columns"] = settings.data.columns.model_dump(exclude_none=True)
    parts = {
        "agent": settings.agent,
        "name": name,
        "data": {"path": path, **data},
        **plain,
        "space": space,
    }
    return "\n".join(_part(parts, "", {}, "")) + "\n"


def _part(
    data: Mapping[str, object], indent: str, notes: Mapping[str, str], before: str
) -> list[str]:
    lines = []
    for key, value in data.items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{key}:", *_part(value, indent + "  ", notes, f"{before}{key}.")]
        else:
            note = notes.get(f"{before}{key}")
            lines.append(f"{indent}{key}: {_text(value)}" + (f"  # {note}" if note else ""))
    return lines


def _text(value: object) -> str:
    """Return the value as YAML: words plain, all else as JSON, which YAML includes."""
    if isinstance(value, str) and value and value.replace("-", "").replace("_", "").isalpha():
        reserved = ("true", "false", "null", "yes", "no", "on", "off")
        return json.dumps(value) if value.lower() in reserved else value
    shown = json.dumps(value, ensure_ascii=False)
    return shown if shown.isprintable() else json.dumps(value)


_ENCODERS = "encoders: a folder, a name of the Hugging Face hub, minilm, or tiny (not pretrained)"
_EXAMPLES = {
    "trials": "40",
    "models": "[bert-base-uncased, roberta-base]",
    "workers": "2",
    "timeout": "8h",
    "gpu_memory": "24GiB",
    "epochs": "6",
    "patience": "3",
    "folds": "5",
    "space": "space.yaml",
    "seed": "1",
    "warm_start": "[STUDY]",
    "gpus": "[0, 1]",
    "address": "head:6379",
    "trial_timeout": "1h",
    "stall_timeout": "10m",
    "run_dir": "runs/1",
    "checkpoints": "/shared/checkpoints",
    "storage": STORAGE,
    "cache": CACHE,
    "keep": "20GiB",
    "track": "[tensorboard]",
    "notify": "[./notify.sh]",
}
