"""Rows of Arrow tables: Parquet files, and the data of Hugging Face datasets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from supermax._util.text import in_short
from supermax.errors import UserError
from supermax.training.data.bad_rows import BadRows
from supermax.training.data.files import require_readable
from supermax.training.data.inputs.cells import cell_of, with_names
from supermax.training.data.inputs.optional import optional
from supermax.training.data.places import INDEX, Place
from supermax.training.data.rows import PARQUET, Row, Rows, check_column_names


def read_parquet(path: Path, bad: BadRows) -> Rows:
    """Read a Parquet file. Raises UserError if it is none.

    Columns that `datasets` has written as classes keep the names of their classes.
    """
    require_readable(path)
    parquet = optional("pyarrow.parquet", str(path))
    try:
        with parquet.ParquetFile(path) as file:  # read_table would add columns of folders' names
            table = file.read(use_threads=False)  # the supervisor forks later
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
        if _is_parquet(path):
            why = f"is a damaged Parquet file ({in_short(error)}). Copy or download it again"
        else:
            why = "is not a Parquet file. Name it .csv or .jsonl, if it is one of these"
        raise UserError(f"{path} {why}.") from None
    classes = class_names(_features(table.schema.metadata or {}))
    return rows_of_arrow(table, path.name, PARQUET, classes, bad)


def _features(metadata: Mapping[bytes, bytes]) -> Mapping[str, Any]:
    """Return the features that `datasets` has noted in a Parquet file; {} if there are none."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    return features if isinstance(features, Mapping) else {}


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def rows_of_arrow(
    table: Any, source: str, form: str, classes: Mapping[str, tuple[str, ...]], bad: BadRows
) -> Rows:
    """Return the rows of a table. The fields of a struct are columns: `answers.text`."""
    while any(_is_struct(field) for field in table.schema):
        table = table.flatten()
    columns = tuple(map(str, table.column_names))
    check_column_names(columns, Place(source, unit=""), bad)
    values = [
        [_named(cell_of(cell), classes.get(name)) for cell in _values(column)]
        for name, column in zip(columns, table.columns, strict=True)
    ]
    rows = tuple(
        Row(Place(source, index, INDEX), dict(zip(columns, cells, strict=True)))
        for index, cells in enumerate(zip(*values, strict=True))
    )
    known = {name: names for name, names in classes.items() if name in columns}
    return Rows(source, columns, rows, form, classes=known)


def _values(column: Any) -> list[Any]:
    """Return the values of a column. One that Python cannot represent, such as a date beyond the
    year 9999 or a string that is not UTF-8, stays as it is, which is a mistake in its row."""
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        return [_value(cell) for cell in column]


def _value(cell: Any) -> Any:
    try:
        return cell.as_py()
    except (OverflowError, ValueError):
        return cell


def _is_struct(field: Any) -> bool:
    return hasattr(field.type, "num_fields") and str(field.type).startswith("struct")


def _named(value: Any, names: tuple[str, ...] | None) -> Any:
    return value if names is None else with_names(value, names)


def class_names(features: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the names of the classes of each column that is a ClassLabel, or a list of them, in
    features of `datasets` as they are in JSON."""
    found = {}
    for column, feature in features.items():
        while isinstance(feature, Mapping) and "feature" in feature:  # of a list
            feature = feature["feature"]
        if isinstance(feature, Mapping) and feature.get("_type") == "ClassLabel":
            found[column] = tuple(map(str, feature.get("names") or ()))
    return {column: names for column, names in found.items() if names}
