"""Writes docs/reference from the code: commands, settings, the Python interface.

python scripts/reference.py [--check]
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import click
import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import supermax
from supermax.search.settings.model import Settings, keys
from supermax.search.settings.resolving import ENVIRONMENT
from supermax.space.presets import presets
from supermax.ui.cli import app

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
HEAD = "<!-- Made by scripts/reference.py (make reference): change the code, not this file. -->"


def main() -> int:
    pages = {"commands.md": commands(), "settings.md": settings(), "python.md": python()}
    stale = [n for n, text in pages.items() if not _is(FOLDER / n, text)]
    if "--check" in sys.argv:
        for name in stale:
            print(f"docs/reference/{name} is not what the code says: run make reference")
        return int(bool(stale))
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


# Commands.


_COMMANDS = """Every command has `--help`. `supermax --install-completion` teaches your shell their
names, those of studies, and what options take.

A study can be named in one way everywhere: `--study STUDY`. Where `STUDY` also stands among a
command's arguments, the name alone means the same; naming it in both ways is an error.

A storage is a file or an Optuna URL. A new file is SQLite, or an Optuna journal where it is named
`.journal` or `.log`; one that is there is known by what is in it. `journal:///PATH` is a journal
of any name."""


def commands() -> str:
    parts = [HEAD, "# Commands", _COMMANDS]
    for words, command in _walk(typer.main.get_command(app), ("supermax",)):
        parts += [f"## {' '.join(words)}", *_command(words, command)]
    return "\n\n".join(parts) + "\n"


def _walk(command: Any, words: tuple[str, ...]) -> list[tuple[tuple[str, ...], click.Command]]:
    inner = getattr(command, "commands", None)
    if not inner:
        return [(words, command)]
    return [found for name in inner for found in _walk(inner[name], (*words, name))]


def _command(words: tuple[str, ...], command: click.Command) -> list[str]:
    text = inspect.cleandoc((command.callback.__doc__ if command.callback else "") or "")
    prose, _, examples = text.partition("\b")
    lines = [line.strip() for line in examples.splitlines() if line.strip().startswith("supermax")]
    arguments = [p for p in command.params if isinstance(p, click.Argument) or _is_argument(p)]
    usage = " ".join([*words, *(_metavar(p) for p in arguments), "[OPTIONS]"])
    parts = [f"    {usage}", prose.strip()]
    if lines:
        parts.append("\n".join(f"    {line}" for line in lines))
    rows = [_row(p) for p in command.params if p.name != "help"]
    if rows:
        parts.append("| | | default |\n|---|---|---|\n" + "\n".join(rows))
    return parts


def _is_argument(parameter: Any) -> bool:
    return getattr(parameter, "param_type_name", "") == "argument"


def _metavar(parameter: Any) -> str:
    name = parameter.metavar or (parameter.name or "").upper().replace("_", "-")
    return name if parameter.required else f"[{name}]"


def _row(parameter: Any) -> str:
    if _is_argument(parameter):
        name = f"`{_metavar(parameter)}`"
    else:
        name = ", ".join(f"`{o}`" for o in [*parameter.opts, *parameter.secondary_opts])
    default = parameter.default
    shown = "" if default in (None, False, (), []) or parameter.required else f"`{default}`"
    return f"| {name} | {_cell(getattr(parameter, 'help', None) or '')} | {shown} |"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


# Settings.


_ABOUT = """Settings of a YAML file for `supermax tune` (`supermax init` writes one), of
`--set KEY=VALUE`, and of `supermax.Study.from_config`. A dot means a part:
`data.path` is `path` under `data`. Flags come before the environment, that before the file, that
before the preset."""
_UNITS = """Durations are written as `90m`, `8h`, `1h30m`, sizes as `24GiB`, `500MB`. Paths in a
file are meant from where the file is."""


def settings() -> str:
    rows = [f"| `{key}` | {_cell(about)} | {_default(key)} |" for key, about in keys().items()]
    variables = [f"| `{name}` | `{key}` |" for name, key in ENVIRONMENT.items()]
    variables += [
        f"| `N_TRIALS_{a.upper().replace('-', '_')}` | `trials` of {a} |"
        for a in supermax_agents()
    ]
    sizes = [
        f"| `{name}` | {size['epochs']} | {size['patience']} | "
        + " | ".join(str(size["trials"][agent]) for agent in supermax_agents())
        + " |"
        for name, size in presets().items()
    ]
    agents = " | ".join(supermax_agents())
    return (
        "\n\n".join(
            [
                HEAD,
                "# Settings",
                _ABOUT,
                "| key | meaning | default |\n|---|---|---|\n" + "\n".join(rows),
                _UNITS,
                "## Presets",
                f"| preset | epochs | patience | {agents} |\n"
                f"|---|---|---{'|---' * len(supermax_agents())}|\n" + "\n".join(sizes),
                "## Environment",
                "| variable | sets |\n|---|---|\n" + "\n".join(variables),
            ]
        )
        + "\n"
    )


def supermax_agents() -> tuple[str, ...]:
    return tuple(next(iter(presets().values()))["trials"])


def _default(key: str) -> str:
    kind: Any = Settings
    field: Any = None
    for part in key.split("."):
        field = kind.model_fields[part]
        inner = [field.annotation, *getattr(field.annotation, "__args__", ())]
        kind = next((k for k in inner if isinstance(k, type) and issubclass(k, BaseModel)), kind)
    if key in ("trials", "epochs", "patience"):
        return "the preset's"
    if field.default is PydanticUndefined:
        return "must be given"
    return "" if field.default in (None, [], {}) else f"`{field.default}`"


# Python.


def python() -> str:
    parts = [HEAD, "# Python", "Names that `import supermax` gives. `supermax.space` is described "
             "in [spaces](../space.md), agents in [agents and data](../agents.md)."]  # fmt: skip
    for name in sorted(supermax.__all__):
        found = getattr(supermax, name)
        if inspect.ismodule(found):
            continue
        parts.append(f"## supermax.{name}")
        parts += _described(name, found)
        if inspect.isclass(found) and name == "Study":
            parts += _members(found)
    return "\n\n".join(parts) + "\n"


def _members(found: type) -> list[str]:
    parts = []
    for name, member in vars(found).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            parts.append(f"**`.{name}`** {_cell(inspect.getdoc(member) or '')}".rstrip())
            continue
        inner = member.__func__ if isinstance(member, classmethod) else member
        signature = str(inspect.signature(inner)).replace("self, ", "").replace("(self)", "()")
        signature = signature.replace("'", "")
        doc = _cell(inspect.getdoc(inner) or "")
        parts.append(f"**`.{name}{signature.replace('cls, ', '')}`** {doc}".rstrip())
    return parts


def _described(name: str, found: Any) -> list[str]:
    parts = []
    if inspect.isfunction(found):
        parts.append(f"```python\n{name}{_signature(found)}\n```")
    text = inspect.cleandoc(found.__doc__ or "")
    listed = re.sub(r"^    (\w+): ", r"- `\1`: ", text, flags=re.MULTILINE)
    parts.append(re.sub(r"^ {8}", "  ", listed, flags=re.MULTILINE))
    return parts


def _signature(found: Any) -> str:
    text = str(inspect.signature(found))
    text = text.replace("'", "")
    return text if len(text) < 90 else re.sub(r", (?=[\w*]+(:|,))", ",\n    ", text)


if __name__ == "__main__":
    raise SystemExit(main())
