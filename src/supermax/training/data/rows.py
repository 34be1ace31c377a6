"""Reader of CSV and JSONL files as rows with line numbers; bad rows are reported.

Bytes that are not UTF-8 become lone surrogates, so that a bad line costs one row and not the file.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from supermax.errors import UserError
from supermax.training.data.bad_rows import BadRows
from supermax.training.data.files import UTF8, is_utf8, read_contents, suffix_of
from supermax.training.data.names import nearest_column

NOT_UTF8 = "this is not UTF-8 text"
_LARGEST_FIELD = 2**31 - 1
_SNIFFED, _RECORDS = 100_000, 20  # characters and records that decide the delimiter
_WORDS_OF_A_TEXT = 8  # from which a value is a text and not a name


@dataclass(frozen=True)
class Row:
    line: int
    """First line of the row in the file, from 1."""
    values: Mapping[str, object]

    def cell(self, column: str) -> str:
        """Return a value as text; empty if it is missing, a list or an object."""
        return plain(self.values.get(column)) or ""


@dataclass(frozen=True)
class Rows:
    """Good rows of a file."""

    file: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    encoding: str = UTF8


def read_rows(path: Path, bad: BadRows, encoding: str | None = None) -> Rows:
    """Read a CSV (.csv, .tsv, .txt) or JSONL (.jsonl, .ndjson) file, also with gzip (.csv.gz).

    Bad rows are added to `bad`. `encoding` is that of the file; None detects it.
    """
    reader = _READERS.get(suffix_of(path))
    if reader is None:
        raise UserError(
            f"{path} is neither CSV nor JSONL by its name; name it .csv or .jsonl (.csv.gz and "
            f".jsonl.gz, if it is compressed)."
        )
    contents = read_contents(path, encoding)
    if not contents.data.strip():
        raise UserError(f"{path} is empty.")
    return replace(reader(path.name, contents.data, bad), encoding=contents.encoding)


def is_table(path: Path) -> bool:
    """Return True for the name of a CSV or JSONL file."""
    return suffix_of(path) in _READERS


def require(table: Rows, columns: Iterable[str], bad: BadRows) -> bool:
    """Return True if the table has all columns; missing ones are added to `bad`."""
    missing = [name for name in dict.fromkeys(columns) if name not in table.columns]
    if missing:
        check_header(table)
    for name in missing:
        near = nearest_column(name, table.columns)
        bad.add(table.file, 1, f"there is no column {name!r}{near}", skippable=False)
    return not missing


def check_header(table: Rows) -> None:
    """Raise UserError if the first line of a CSV file is a row and not the columns' names."""
    is_csv = _READERS.get(suffix_of(Path(table.file))) is _read_csv
    if not is_csv or not any(_is_cell(name, table) for name in table.columns):
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
    """Return a cell as text, with 2.0 as "2"; None for a list or an object."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value) if isinstance(value, str | int | float) else None


def _read_csv(file: str, data: bytes, bad: BadRows) -> Rows:
    text = data.decode("utf-8", errors="surrogateescape")
    wrong = {n for n, line in enumerate(data.splitlines(), 1) if not is_utf8(line)}
    records = _records(file, text, bad)
    first, last, header = next(records, (1, 1, []))
    if any(line in wrong for line in range(first, last + 1)):
        bad.add(file, first, NOT_UTF8, skippable=False)
    columns = tuple(name.strip() for name in header)
    for name in {name for name in columns if columns.count(name) > 1 and name}:
        bad.add(file, first, f"the column {name!r} occurs twice", skippable=False)
    rows = []
    for start, end, record in records:
        if lines := [line for line in range(start, end + 1) if line in wrong]:
            bad.add(file, lines[0], NOT_UTF8)
        elif len(record) != len(columns):
            counts = f" ({len(record)}, not {len(columns)})"
            bad.add(file, start, "the row and the header have different numbers of fields", counts)
        else:
            rows.append(Row(start, dict(zip(columns, record, strict=True))))
    return Rows(file, columns, tuple(rows))


def _records(file: str, text: str, bad: BadRows) -> Iterator[tuple[int, int, list[str]]]:
    """Yield first line, last line and fields of each record, without blank lines."""
    delimiter = _delimiter(text)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    limit = csv.field_size_limit(_LARGEST_FIELD)  # posts may be longer than csv expects
    try:
        while True:
            start = reader.line_num + 1
            try:
                record = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                _report_quote(file, start, error, bad)
                continue
            if record:
                yield start, reader.line_num, record
    finally:
        csv.field_size_limit(limit)


def _report_quote(file: str, line: int, error: csv.Error, bad: BadRows) -> None:
    # csv has one error class: only its message tells an unclosed quote, which swallows all rows
    # that follow.
    if "end of data" in str(error):
        bad.add(file, line, "a quote that opens here is never closed", skippable=False)
    else:
        bad.add(file, line, "a quote is out of place in the row that begins here")


def _delimiter(text: str) -> str:
    """Return the delimiter that splits the first records most evenly, then into most fields."""
    fields = {}
    for mark in ",;\t":
        first = io.StringIO(text.lstrip()[:_SNIFFED], newline="")
        with contextlib.suppress(csv.Error):
            records = [r for r in csv.reader(first, delimiter=mark) if r][:_RECORDS]
            if counts := [len(record) for record in records]:
                fields[mark] = (counts.count(counts[0]) / len(counts), counts[0])
    several = {mark: (share, count) for mark, (share, count) in fields.items() if count > 1}
    return max(several, key=lambda mark: several[mark], default=",")


def _read_jsonl(file: str, data: bytes, bad: BadRows) -> Rows:
    columns: dict[str, None] = {}
    rows = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        values = _object(file, number, line, bad)
        if values is not None:
            columns.update(dict.fromkeys(values))
            rows.append(Row(number, values))
    return Rows(file, tuple(columns), tuple(rows))


def _object(file: str, number: int, line: bytes, bad: BadRows) -> dict[str, object] | None:
    if not is_utf8(line):
        bad.add(file, number, NOT_UTF8)
        return None
    try:
        value = json.loads(line, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        bad.add(file, number, "this is not JSON", f" (column {error.colno})")
    except (ValueError, RecursionError):
        bad.add(file, number, "this is not JSON")
    else:
        if isinstance(value, dict):
            return value
        bad.add(file, number, "this is not a JSON object; each line holds one row")
    return None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


_READERS: dict[str, Callable[[str, bytes, BadRows], Rows]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".txt": _read_csv,
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
}
