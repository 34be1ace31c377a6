"""Rows written to one file and read back unchanged, for data that is in memory.

The file is gzip of JSON lines: the facts of the table, then one line for each row.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supermax._util.files import make_private, write_whole
from supermax.errors import UserError
from supermax.training.data.files import require_readable
from supermax.training.data.places import Place
from supermax.training.data.rows import OTHER_TYPE, Row, Rows, why_not_plain

SUFFIX = ".rows"
_VERSION = 1


@dataclass(frozen=True)
class StoredTable:
    """Rows in the form of their file."""

    name: str
    """Name of the file, with a digest of its content."""
    data: bytes

    def write(self, folder: Path) -> Path:
        """Write the file, unless it is there. Only this user can read it. Return its path."""
        path = folder / self.name
        make_private(folder)  # another user's folder could hold other data under this name
        if not path.exists():
            write_whole(path, self.data)
        return path


def stored(table: Rows) -> StoredTable:
    """Return the rows in the form of a file, which is named after their content."""
    data = "".join(f"{line}\n" for line in _lines(table)).encode()
    digest = hashlib.sha256(data).hexdigest()[:12]
    name = re.sub(r"[^\w-]+", "-", table.file).strip("-")[:40] or "data"
    packed = gzip.compress(data, compresslevel=1, mtime=0)
    return StoredTable(f"{name}-{digest}{SUFFIX}", packed)


def read_stored(path: Path) -> Rows:
    """Read rows that were `stored`. Raises UserError if the file is damaged."""
    require_readable(path)
    try:
        head, *lines = gzip.decompress(path.read_bytes()).splitlines()
        facts = json.loads(head)
        rows = tuple(_row(json.loads(line), facts["columns"]) for line in lines)
        if facts["version"] != _VERSION:
            raise UserError(f"{path} was written by another version of Supermax.")
        return Rows(
            facts["file"],
            tuple(facts["columns"]),
            rows,
            form=facts["form"],
            classes={column: tuple(names) for column, names in facts["classes"].items()},
            split=facts["split"],
            remarks=tuple(facts["remarks"]),
        )
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError):
        raise UserError(
            f"{path} is damaged. Delete it, and run the program again that searches this data."
        ) from None


def _lines(table: Rows) -> Iterator[str]:
    yield json.dumps(
        {
            "version": _VERSION,
            "file": table.file,
            "columns": table.columns,
            "form": table.form,
            "classes": dict(table.classes),
            "split": table.split,
            "remarks": table.remarks,
        }
    )
    for row in table.rows:
        place = [row.place.source, row.place.number, row.place.unit, row.place.file]
        values = [row.values.get(name) for name in table.columns]
        yield json.dumps([place, *values], default=_odd)


def _odd(value: object) -> object:
    """Return what stands for a value of another type, which is a mistake in its row."""
    return {OTHER_TYPE: why_not_plain(value)}


def _row(line: list[Any], columns: list[str]) -> Row:
    place, *values = line
    source, number, unit, file = place
    return Row(Place(source, number, unit, file), dict(zip(columns, values, strict=True)))
