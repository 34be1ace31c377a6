"""Rows of a table, each with its place: the one form in which all data is read.

Readers of each format are in `inputs`; later code sees no difference between formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supermax.errors import UserError
from supermax.training.data.bad_rows import BadRows
from supermax.training.data.encodings import UTF8
from supermax.training.data.files import stem_of
from supermax.training.data.names import nearest_column
from supermax.training.data.places import LINE, Place

CSV, JSONL, PARQUET, CONLL = "CSV", "JSONL", "Parquet", "CoNLL"
OTHER_TYPE = ""
"""Key of a mapping that stands for a value of another type in a stored table, with its kind."""
_FILES = (CSV, JSONL, PARQUET, CONLL)
_WORDS_OF_A_TEXT = 8  # from which a value is a text and not a name


@dataclass(frozen=True, slots=True)
class Row:
    place: Place
    values: Mapping[str, Any]
    """Text, numbers, booleans, None for a missing value, lists and mappings of these, by column.
    A value of any other type is a mistake in the row, if its column is mapped."""

    def cell(self, column: str) -> str:
        """Return a value as text; empty if it is missing, a list or an object."""
        return plain(self.values.get(column)) or ""


@dataclass(frozen=True)
class Rows:
    """Good rows of a file, a folder, a data frame or a dataset."""

    file: str
    """Name of the source in messages, such as that of the file."""
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    form: str = CSV
    """Format, as it is shown to the user."""
    encoding: str = UTF8
    separator: str = ","
    """Character between the fields of CSV."""
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the classes in their order, by column, for columns that are typed as classes."""
    split: str | None = None
    """Column of the splits that the source itself has, such as the folders train and test."""
    remarks: tuple[str, ...] = ()
    """Sentences about parts of the source that are not read."""

    @property
    def name(self) -> str:
        """Name without the extension of a file."""
        return stem_of(Path(self.file)) if self.form in _FILES else self.file

    @property
    def header(self) -> Place:
        """Place of mistakes in the columns."""
        return Place(self.file, 1, LINE if self.form in (CSV, JSONL, CONLL) else "")


def require(table: Rows, columns: Iterable[str], bad: BadRows) -> bool:
    """Return True if the table has all columns; missing ones are added to `bad`."""
    missing = [name for name in dict.fromkeys(columns) if name not in table.columns]
    if missing:
        check_header(table)
    for name in missing:
        near = nearest_column(name, table.columns)
        bad.add(table.header, f"there is no column {name!r}{near}", skippable=False)
    return not missing


class NoTexts(UserError):
    """Error: no column of a table is recognised as one that holds texts."""


def check_header(table: Rows) -> None:
    """Raise UserError if the first line of a CSV file is a row and not the columns' names."""
    if table.form != CSV or not any(_is_cell(name, table) for name in table.columns):
        return
    count = len(table.columns)
    names = ["text", "label", *(f"column{i}" for i in range(3, count + 1))]
    raise UserError(
        f"{table.file} has no header: its first line looks like a row. Put a line with the "
        f"columns' names before it, such as {','.join(names[:count])} (if the first line holds "
        f"the names, shorten them)."
    )


def _is_cell(name: str, table: Rows) -> bool:
    """Return True if a column's name looks like a value of the column.

    It is as long as the texts below it, or one of few distinct values.
    """
    if not name:
        return False
    cells = [row.cell(name) for row in table.rows]
    if len(name.split()) >= _WORDS_OF_A_TEXT:
        words = sorted(len(cell.split()) for cell in cells) or [_WORDS_OF_A_TEXT]
        return words[len(words) // 2] >= _WORDS_OF_A_TEXT
    values = set(cells)
    return name in values and len(values) <= max(2, len(cells) // 5)


def plain(value: object) -> str | None:
    """Return a cell as text, with 2.0 as "2"; None for a list, an object or another type."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value) if isinstance(value, str | int | float) else None


def why_not_plain(value: object) -> str:
    """Return the kind of a value that `plain` cannot turn into text."""
    if isinstance(value, dict) and list(value) == [OTHER_TYPE]:
        return str(value[OTHER_TYPE])
    if isinstance(value, list | dict):
        return "a list or an object"
    return f"a value of the type {type(value).__name__}"


def check_column_names(columns: tuple[str, ...], place: Place, bad: BadRows) -> None:
    """Report names that several columns have."""
    for name in dict.fromkeys(name for name in columns if columns.count(name) > 1 and name):
        bad.add(place, f"the column {name!r} occurs twice", skippable=False)
