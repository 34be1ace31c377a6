"""CSV and JSONL files as rows that know their line; what cannot be a row is reported.

Bytes that are not UTF-8 become lone surrogates, so that one bad line costs one row and not the
file.
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
from supermax.training.words import nearest

NOT_UTF8 = "this is not UTF-8 text"
_LARGEST_FIELD = 2**31 - 1
_SNIFFED, _RECORDS = 100_000, 20
_WORDS_OF_A_TEXT = 8


@dataclass(frozen=True)
class Row:
    line: int
    """Where the row begins in the file, as an editor counts."""
    values: Mapping[str, object]


@dataclass(frozen=True)
class Rows:
    """What a file holds, less the rows that were reported."""

    file: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    encoding: str = UTF8


def read_rows(path: Path, bad: BadRows, encoding: str | None = None) -> Rows:
    """Read the rows of a CSV (.csv, .tsv, .txt) or JSONL (.jsonl, .ndjson) file, which may be
    compressed (.csv.gz). `encoding`: None detects it."""
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
    """Return whether the name is that of a CSV or JSONL file."""
    return suffix_of(path) in _READERS


def require(table: Rows, columns: Iterable[str], bad: BadRows) -> bool:
    """Whether the columns are there; each one that is not is reported."""
    missing = [name for name in dict.fromkeys(columns) if name not in table.columns]
    if missing:
        check_header(table)
    for name in missing:
        near = nearest(name, table.columns)
        bad.add(table.file, 1, f"there is no column {name!r}{near}", skippable=False)
    return not missing


def check_header(table: Rows) -> None:
    """Raise UserError where the first line of a CSV file is a row and not the columns' names."""
    is_csv = _READERS.get(suffix_of(Path(table.file))) is _read_csv
    if not is_csv or not any(_is_cell(name, table) for name in table.columns):
        return
    many = len(table.columns)
    names = ["text", "label", *(f"column{i}" for i in range(3, many + 1))]
    raise UserError(
        f"{table.file} has no header: its first line looks like a row. Put a line with the "
        f"columns' names before it, such as {','.join(names[:many])} (if it holds the names, "
        f"shorten them)."
    )


def _is_cell(name: str, table: Rows) -> bool:
    """A name of many words above texts of as many, or one that stands in its own column among few
    values."""
    if not name:
        return False
    cells = [plain(row.values.get(name)) or "" for row in table.rows]
    if len(name.split()) >= _WORDS_OF_A_TEXT:
        words = sorted(len(cell.split()) for cell in cells) or [_WORDS_OF_A_TEXT]
        return words[len(words) // 2] >= _WORDS_OF_A_TEXT
    values = set(cells)
    return name in values and len(values) <= max(2, len(cells) // 5)


def plain(value: object) -> str | None:
    """A cell as text, numbers as people write them; None where it is a list or an object."""
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
        bad.add(file, first, f"the column {name!r} stands twice", skippable=False)
    rows = []
    for start, end, record in records:
        if lines := [line for line in range(start, end + 1) if line in wrong]:
            bad.add(file, lines[0], NOT_UTF8)
        elif len(record) != len(columns):
            counts = f" ({len(record)}, not {len(columns)})"
            bad.add(file, start, "the row has not as many fields as the header", counts)
        else:
            rows.append(Row(start, dict(zip(columns, record, strict=True))))
    return Rows(file, columns, tuple(rows))


def _records(file: str, text: str, bad: BadRows) -> Iterator[tuple[int, int, list[str]]]:
    """First line, last line and fields of each record; blank lines are no records."""
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
                _misquoted(file, start, error, bad)
                continue
            if record:
                yield start, reader.line_num, record
    finally:
        csv.field_size_limit(limit)


def _misquoted(file: str, line: int, error: csv.Error, bad: BadRows) -> None:
    if "end of data" in str(error):  # all that follows was swallowed; nobody can count it
        bad.add(file, line, "a quote that opens here is never closed", skippable=False)
    else:
        bad.add(file, line, "a quote is out of place in the row that begins here")


def _delimiter(text: str) -> str:
    """The mark that cuts the first lines into the same number of fields, the more the better."""
    fields = {}
    for mark in ",;\t":
        first = io.StringIO(text.lstrip()[:_SNIFFED], newline="")
        with contextlib.suppress(csv.Error):
            records = [r for r in csv.reader(first, delimiter=mark) if r][:_RECORDS]
            if counts := [len(record) for record in records]:
                fields[mark] = (counts.count(counts[0]) / len(counts), counts[0])
    split = {mark: (share, many) for mark, (share, many) in fields.items() if many > 1}
    return max(split, key=lambda mark: split[mark], default=",")


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
