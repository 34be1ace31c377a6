"""Columns of a file to predict: those given, those of the search, or a guess."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from supermax._util.text import ended, nearest, one_line
from supermax.errors import UserError
from supermax.training.data.bad_rows import BadRows
from supermax.training.data.columns import Columns
from supermax.training.data.guessing import guess_file
from supermax.training.data.inputs.reading import read_rows
from supermax.training.data.rows import NoTexts

_TO_PREDICT = ("question", "text", "id", "label", "answer", "answer_start", "split")


def chosen_columns(
    path: str | Path,
    encoding: str | None,
    given: Mapping[str, str | None],
    known: Mapping[str, Any],
    *,
    asks: bool,
) -> Columns:
    """Return the columns of a file to predict.

    Each role takes the given column, else that of the search if the file has it, else a guess. No
    column has two roles. `asks`: the model takes questions.
    """
    chosen: dict[str, Any] = {role: own for role, own in given.items() if own is not None}
    try:
        guessed = guess_file(path, encoding)
    except UserError as error:
        try:
            in_file = set(read_rows(path, BadRows(), encoding).columns)
        except UserError:
            if "text" in chosen:
                return Columns(**chosen)  # mistakes in the file are reported when it is read
            raise
        _check_given(str(path), given, in_file)
        if "text" in chosen:
            return Columns(**chosen)
        # Short texts are not recognised: use the search's columns.
        wanted = _TO_PREDICT if asks else _TO_PREDICT[1:]
        same = {role: known[role] for role in wanted if known.get(role) in in_file}
        if "text" not in same:
            if not isinstance(error, NoTexts):  # such as no rows: to name a column is no help
                raise
            raise UserError(
                f"{path} has no column that holds texts, as far as can be guessed. Name it with "
                f"--text; there are {', '.join(map(one_line, sorted(in_file)))}."
            ) from None
        return _with_sets(same | chosen, known, in_file, given.get("label"))
    in_file = {guess.column for guess in guessed.columns} | {*guessed.unused, *guessed.binary}
    if not in_file.issuperset(own for own in given.values() if own is not None):
        _check_given(str(path), given, read_rows(path, BadRows(), encoding).columns)
    for column_of in (known.get, guessed.role):
        for role in _TO_PREDICT if asks else _TO_PREDICT[1:]:
            column = column_of(role)
            if role not in chosen and column in in_file - set(chosen.values()):
                chosen[role] = column
    if "answer" not in chosen:
        chosen.pop("answer_start", None)
    return _with_sets({"text": "text", **chosen}, known, in_file, given.get("label"))


def _check_given(path: str, given: Mapping[str, str | None], in_file: Collection[str]) -> None:
    """Raise UserError if the file lacks a column that is given for a role."""
    for role, column in given.items():
        if column is not None and column not in in_file:
            flag = f"--{role.replace('_', '-')}"
            raise UserError(
                ended(f"{path} has no column {column!r} ({flag}){nearest(column, in_file)}")
            )


def _with_sets(
    chosen: dict[str, Any],
    known: Mapping[str, Any],
    in_file: Collection[str],
    label: str | None = None,
) -> Columns:
    """Return the columns with those of 0 and 1 that the search read labels from, if the file has
    them all and no column is given as `label`; with the same label, with its separator."""
    labels = tuple(known.get("labels") or ())
    if labels and label is None and set(in_file).issuperset(labels):
        chosen = {role: own for role, own in chosen.items() if role != "label"}
        return Columns(**chosen, labels=labels)
    same = chosen.get("label") == known.get("label")
    return Columns(**chosen, label_separator=known.get("label_separator") if same else None)
