"""Reader of CSV with any common separator.

Bytes that are not UTF-8 become lone surrogates, so that a bad line costs one row and not the file.
"""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterator

from supermax.training.data.bad_rows import BadRows
from supermax.training.data.encodings import NAME_IT, NOT_UTF8, first_wrong_byte
from supermax.training.data.places import Place
from supermax.training.data.rows import Row, Rows, check_column_names

SEPARATORS = ",;\t|"
_LARGEST_FIELD = 2**31 - 1
_SNIFFED, _RECORDS = 100_000, 20  # characters and records that decide the separator


def read_csv(file: str, data: bytes, bad: BadRows) -> Rows:
    text = data.decode("utf-8", errors="surrogateescape")
    separator = separator_of(text)
    wrong = {
        number: byte
        for number, line in enumerate(data.splitlines(), 1)
        if (byte := first_wrong_byte(line)) is not None
    }
    records = _records(file, text, separator, bad)
    first, last, header = next(records, (1, 1, []))
    if any(line in wrong for line in range(first, last + 1)):
        bad.add(Place(file, first), NOT_UTF8, skippable=False, advice=NAME_IT)
    columns = tuple(name.strip() for name in header)
    check_column_names(columns, Place(file, first), bad)
    rows = []
    for start, end, record in records:
        if lines := [line for line in range(start, end + 1) if line in wrong]:
            bad.add(Place(file, lines[0]), NOT_UTF8, wrong[lines[0]], advice=NAME_IT)
        elif len(record) != len(columns):
            counts = f" ({len(record)}, not {len(columns)})"
            what = "the row and the header have different numbers of fields"
            bad.add(Place(file, start), what, counts)
        else:
            rows.append(Row(Place(file, start), dict(zip(columns, record, strict=True))))
    return Rows(file, columns, tuple(rows), separator=separator)


def _records(
    file: str, text: str, separator: str, bad: BadRows
) -> Iterator[tuple[int, int, list[str]]]:
    """Yield first line, last line and fields of each record, without blank lines."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    limit = csv.field_size_limit(_LARGEST_FIELD)  # posts may be longer than csv expects
    try:
        while True:
            start = reader.line_num + 1
            try:
                record = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                _report_quote(Place(file, start), error, bad)
                continue
            if record:
                yield start, reader.line_num, record
    finally:
        csv.field_size_limit(limit)


def _report_quote(place: Place, error: csv.Error, bad: BadRows) -> None:
    # csv has one error class: only its message tells an unclosed quote, which swallows all rows
    # that follow.
    if "end of data" in str(error):
        bad.add(place, "a quote that opens here is never closed", skippable=False)
    else:
        bad.add(place, "a quote is out of place in the row that begins here")


def separator_of(text: str) -> str:
    """Return the separator that splits the first records most evenly, then into most fields."""
    fields = {}
    for mark in SEPARATORS:
        first = io.StringIO(text.lstrip()[:_SNIFFED], newline="")
        with contextlib.suppress(csv.Error):
            records = [r for r in csv.reader(first, delimiter=mark) if r][:_RECORDS]
            if counts := [len(record) for record in records]:
                fields[mark] = (counts.count(counts[0]) / len(counts), counts[0])
    several = {mark: (share, count) for mark, (share, count) in fields.items() if count > 1}
    return max(several, key=lambda mark: several[mark], default=",")
