"""What a shell offers at a press of Tab: studies by name, targets of a search, values of options.

A shell waits for it and shows whatever it prints, so it is quick, silent, and makes no file: a
file of studies is read past Optuna, and a server is not asked at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from supermax.engine import journal
from supermax.naming import AGENTS, STORAGE
from supermax.space.presets import presets
from supermax.study import file_of
from supermax.training.data.rows import is_table

_PATIENCE = 0.2  # seconds for a database that somebody writes to
_MOST = 16 << 20  # bytes of a journal that are read
_MADE, _DELETED = 0, 1  # what a journal's lines are about


def among(values: Iterable[str]) -> Callable[[str], list[str]]:
    """For an option that takes one of a few words."""

    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return complete


def preset_names(incomplete: str) -> list[str]:
    return [name for name in presets() if name.startswith(incomplete)]


def targets(incomplete: str) -> list[str]:
    """Agents, all of them, and files of settings or rows below the folder that is being typed."""
    words = [word for word in (*AGENTS, "all") if word.startswith(incomplete)]
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        typed, _, start = incomplete.rpartition("/")
        folder = Path(f"{typed}/" if "/" in incomplete else ".").expanduser()
        for path in sorted(folder.iterdir()):
            named = f"{typed}/{path.name}" if "/" in incomplete else path.name
            if path.name.startswith(start) and not path.name.startswith("."):
                if path.suffix in (".yaml", ".yml") or is_table(path):
                    words.append(named)
                elif path.is_dir() and "/" in incomplete:
                    words.append(f"{named}/")
    return words


def studies(ctx: Any, incomplete: str) -> list[str]:
    """Names of the studies in the storage that the line so far means."""
    with contextlib.suppress(Exception):  # whatever it is, a Tab is no place to say it
        where = ctx.params.get("storage") or os.environ.get("SUPERMAX_STORAGE") or STORAGE
        names = [name for name in _names(str(where)) if name.isprintable()]
        return sorted({name for name in names if name.startswith(incomplete)})
    return []


def _names(where: str) -> Iterable[str]:
    path = file_of(where)
    if path is None or not path.is_file():
        return []
    return _in_journal(path) if journal.is_meant(path) else _in_database(path)


def _in_database(path: Path) -> list[str]:
    """A reader makes the files of a write-ahead log anew where they are not, so without them the
    database is taken for one that nobody writes to."""
    beside = [path.with_name(f"{path.name}{end}") for end in ("-wal", "-shm")]
    how = "mode=ro" if all(file.exists() for file in beside) else "immutable=1"
    with contextlib.closing(
        sqlite3.connect(f"{path.as_uri()}?{how}", uri=True, timeout=_PATIENCE)
    ) as database:
        return [name for (name,) in database.execute("SELECT study_name FROM studies")]


def _in_journal(path: Path) -> list[str]:
    """Studies are numbered as they are made."""
    made: dict[int, str] = {}
    with path.open("rb") as file:
        lines = file.read(_MOST).splitlines()
    for line in lines:
        if not line.startswith((b'{"op_code":0,', b'{"op_code":1,')):
            continue
        with contextlib.suppress(ValueError, KeyError):
            entry = json.loads(line)
            if entry["op_code"] == _MADE and entry["study_name"] not in made.values():
                made[len(made)] = entry["study_name"]
            elif entry["op_code"] == _DELETED:
                made[int(entry["study_id"])] = ""
    return [name for name in made.values() if name]
