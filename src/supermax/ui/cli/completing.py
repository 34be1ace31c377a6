"""Shell completion: names of studies, targets of a search, values of options.

The shell blocks while it completes and shows whatever is printed, so completion is fast, silent
and creates no file: a storage file is read directly rather than through Optuna, and a database
server is not queried at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from supermax._util.attributes import STORAGE, is_race
from supermax.agents import AGENT_NAMES
from supermax.engine.storage import journal
from supermax.space.presets import presets
from supermax.studies import file_of
from supermax.training.data.inputs.reading import is_table

_BUSY_TIMEOUT = 0.2  # seconds to wait for the lock of a database
_JOURNAL_LIMIT = 16 << 20  # bytes of a journal that are read
_CREATE_STUDY, _DELETE_STUDY = 0, 1  # `op_code` of a line in Optuna's journal


def among(values: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a completion for an option that takes one of these values."""

    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return complete


def preset_names(incomplete: str) -> list[str]:
    return [name for name in presets() if name.startswith(incomplete)]


def targets(incomplete: str) -> list[str]:
    """Return agents, `all`, and the settings files, tables and folders in the folder typed."""
    words = [word for word in (*AGENT_NAMES, "all") if word.startswith(incomplete)]
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
    """Return names of the studies in the storage that the command line names so far."""
    with contextlib.suppress(Exception):  # completion cannot report an error
        where = ctx.params.get("storage") or os.environ.get("SUPERMAX_STORAGE") or STORAGE
        names = [name for name in _names(str(where)) if name.isprintable() and not is_race(name)]
        return sorted({name for name in names if name.startswith(incomplete)})
    return []


def _names(where: str) -> Iterable[str]:
    path = file_of(where)
    if path is None or not path.is_file():
        return []
    return _names_in_journal(path) if journal.is_journal(path) else _names_in_sqlite(path)


def _names_in_sqlite(path: Path) -> list[str]:
    """Return the names in an SQLite file without creating any file.

    A read-only connection creates the -wal and -shm files where they are missing. Without them
    there is no writer either, so the database is opened as immutable instead.
    """
    wal_files = [path.with_name(f"{path.name}{end}") for end in ("-wal", "-shm")]
    mode = "mode=ro" if all(file.exists() for file in wal_files) else "immutable=1"
    with contextlib.closing(
        sqlite3.connect(f"{path.as_uri()}?{mode}", uri=True, timeout=_BUSY_TIMEOUT)
    ) as database:
        return [name for (name,) in database.execute("SELECT study_name FROM studies")]


def _names_in_journal(path: Path) -> list[str]:
    """Return the names in a journal. Optuna numbers studies in the order of their creation."""
    names: dict[int, str] = {}
    with path.open("rb") as file:
        lines = file.read(_JOURNAL_LIMIT).splitlines()
    for line in lines:
        if not line.startswith((b'{"op_code":0,', b'{"op_code":1,')):
            continue
        with contextlib.suppress(ValueError, KeyError):
            entry = json.loads(line)
            if entry["op_code"] == _CREATE_STUDY and entry["study_name"] not in names.values():
                names[len(names)] = entry["study_name"]
            elif entry["op_code"] == _DELETE_STUDY:
                names[int(entry["study_id"])] = ""
    return [name for name in names.values() if name]
