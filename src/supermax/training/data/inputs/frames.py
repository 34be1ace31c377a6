"""Rows of data frames: pandas and polars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from supermax.errors import UserError
from supermax.training.data.bad_rows import BadRows
from supermax.training.data.inputs.cells import cell_of
from supermax.training.data.places import INDEX, Place
from supermax.training.data.rows import Row, Rows, check_column_names

FRAME = "frame"
"""Name of a data frame in messages."""


def is_frame(source: object) -> bool:
    return bool(_kind(source))


def read_frame(frame: Any, bad: BadRows) -> Rows:
    """Return the rows of a frame, by position: the index of pandas is not read."""
    package, kind = _kind(frame).split(".")
    if kind == "LazyFrame":
        frame = frame.collect()
    if kind in ("Series", "Index"):
        raise UserError(f"This is a {kind} of {package}: give a DataFrame with a column of texts.")
    names = tuple(map(str, frame.columns))
    check_column_names(names, Place(FRAME, unit=""), bad)
    columns = _columns(frame, package, len(names))
    rows = tuple(
        Row(Place(FRAME, index, INDEX), dict(zip(names, map(cell_of, cells), strict=True)))
        for index, cells in enumerate(zip(*columns, strict=True))
    )
    return Rows(FRAME, names, rows, form=f"{package} data frame")


def _columns(frame: Any, package: str, count: int) -> list[Sequence[Any]]:
    if package == "pandas":  # by position, since names may occur twice
        return [frame.iloc[:, position].tolist() for position in range(count)]
    return [frame.to_series(position).to_list() for position in range(count)]


def _kind(source: object) -> str:
    """Return "pandas.DataFrame" and the like, also of a subclass; "" for another object."""
    for kind in type(source).__mro__:
        package = kind.__module__.partition(".")[0]
        if package in ("pandas", "polars") and kind.__name__ in _KINDS:
            return f"{package}.{kind.__name__}"
    return ""


_KINDS = ("DataFrame", "LazyFrame", "Series", "Index")
