"""Reader of JSONL: one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from typing import NoReturn

from supermax.training.data.bad_rows import BadRows
from supermax.training.data.encodings import NAME_IT, NOT_UTF8, first_wrong_byte
from supermax.training.data.places import Place
from supermax.training.data.rows import JSONL, Row, Rows


def read_jsonl(file: str, data: bytes, bad: BadRows) -> Rows:
    """Return the rows. Where all cells of a column are objects, their fields are columns, as in
    Parquet: `answers.text`."""
    rows = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        place = Place(file, number)
        values = _object(place, line, bad)
        if values is not None:
            rows.append(Row(place, values))
    while objects := _columns_of_objects(rows):
        rows = [Row(row.place, _flat(row.values, objects)) for row in rows]
    columns = dict.fromkeys(name for row in rows for name in row.values)
    return Rows(file, tuple(columns), tuple(rows), form=JSONL)


def _columns_of_objects(rows: Sequence[Row]) -> set[str]:
    """Return the columns whose cells are all objects with fields, or null."""
    cells = [(name, cell) for row in rows for name, cell in row.values.items() if cell is not None]
    others = {name for name, cell in cells if not isinstance(cell, dict) or not cell}
    return {name for name, _ in cells} - others


def _flat(row: Mapping[str, object], objects: Container[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, cell in row.items():
        if name not in objects:
            found[name] = cell
        elif isinstance(cell, dict):
            found |= {f"{name}.{inner}": value for inner, value in cell.items()}
    return found


def _object(place: Place, line: bytes, bad: BadRows) -> dict[str, object] | None:
    if (byte := first_wrong_byte(line)) is not None:
        bad.add(place, NOT_UTF8, byte, advice=NAME_IT)
        return None
    try:
        value = json.loads(line, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        bad.add(place, "this is not JSON", f" (column {error.colno})")
    except _Constant as error:
        bad.add(place, f"{error} is not JSON; a missing value is null")
    except (ValueError, RecursionError):
        bad.add(place, "this is not JSON")
    else:
        if isinstance(value, dict):
            return value
        bad.add(place, "this is not a JSON object; each line holds one row")
    return None


def _refuse(constant: str) -> NoReturn:
    raise _Constant(constant)


class _Constant(ValueError):
    """NaN or Infinity, which Python's json writes."""
