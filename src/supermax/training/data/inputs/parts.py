"""Splits that a source itself has, joined into one table with a column of the splits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from supermax._util.text import counted
from supermax.errors import UserError
from supermax.training.data.columns import PART_NAMES, PARTS
from supermax.training.data.rows import Row, Rows

_COLUMNS = ("split", "fold", "part", "partition", "set")
_SHARD = re.compile(r"(.+?)-\d{5}-of-\d{5}")


def part_name(name: str) -> str | None:
    """Return train, validation or test for the name of a folder, a file or a split, also of one
    shard of it (train-00000-of-00002); None for any other name."""
    shard = _SHARD.fullmatch(name)
    return PART_NAMES.get((shard.group(1) if shard else name).strip().lower())


def joined_parts(file: str, parts: Mapping[str, Rows]) -> Rows:
    """Return the rows of all splits, with the column `split`, or the first free name of a few.

    Splits other than train, validation and test are left out, with a remark. A single split is
    read without such a column, and can be split. Raises UserError if no split is known.
    """
    if len(parts) == 1:
        ((name, only),) = parts.items()
        return replace(only, file=file, remarks=(*only.remarks, *_only_split(file, name)))
    known = {name: rows for name, rows in parts.items() if part_name(name)}
    if not known:
        names = ", ".join(parts)
        raise UserError(f"{file} has the splits {names}: none of them is {', '.join(PARTS)}.")
    columns = tuple(dict.fromkeys(name for rows in known.values() for name in rows.columns))
    column = next((name for name in _COLUMNS if name not in columns), "supermax_split")
    rows = tuple(
        Row(row.place, {column: part_name(name), **row.values})
        for name, part in known.items()
        for row in part.rows
    )
    first = next(iter(known.values()))
    remarks = dict.fromkeys(line for rows in known.values() for line in rows.remarks)
    return replace(
        first,
        file=file,
        columns=(column, *columns),
        rows=rows,
        classes=_classes(known),
        split=column,
        remarks=(*remarks, *_left_out(file, parts)),
    )


def _only_split(file: str, name: str) -> Iterator[str]:
    if name and part_name(name) != "train":
        yield f"{file} has no split but {name}, whose rows are read as data without splits."


def _classes(parts: Mapping[str, Rows]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for rows in parts.values():
        for column, names in rows.classes.items():
            found[column] = tuple(dict.fromkeys((*found.get(column, ()), *names)))
    return found


def _left_out(file: str, parts: Mapping[str, Rows]) -> Iterator[str]:
    for name, rows in parts.items():
        if part_name(name) is None:
            count = counted(len(rows.rows), "row")
            yield (
                f"The split {name} of {file} ({count}) is not read: it is none of "
                f"{', '.join(PARTS)}."
            )
