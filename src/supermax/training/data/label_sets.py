"""Sets of labels: how the cells of a row name them, and their form in training.

["joy", "fear"], "joy;fear", or columns of 0 and 1 ──LabelReader──▶ names ──indicators()──▶ 0, 1
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from supermax._util.text import counted
from supermax.errors import UserError
from supermax.training.data.columns import Columns
from supermax.training.data.encodings import NOT_UTF8, is_encodable
from supermax.training.data.examples import Example
from supermax.training.data.rows import Row, plain, why_not_plain

SEPARATORS = ("|", ";", ",")
"""Characters between labels that are detected."""
MOST_LABELS = 20
"""Labels up to which their number is not compared with that of the rows."""
_BITS = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}


@dataclass(frozen=True)
class LabelReader:
    """Reader of the labels of a row, from one column or from columns of 0 and 1."""

    column: str | None
    columns: tuple[str, ...] = ()
    separator: str = ""
    """Text between the labels of a cell; empty: a cell of text is one label."""
    known: tuple[str, ...] = ()
    """All labels; empty: any."""

    @property
    def where(self) -> str:
        """Noun of the columns in a message."""
        if self.columns:
            return f"{counted(len(self.columns), 'column')} of labels"
        return f"the column {self.column!r}"

    def read(self, values: Mapping[str, Any]) -> tuple[tuple[str, ...] | None, list[str]]:
        """Return the labels of a row, and the mistakes in them. None: the row has no label, and is
        to be predicted; (): it is known to have none of them."""
        return self._of_columns(values) if self.columns else self._of_cell(values)

    def _of_columns(self, values: Mapping[str, Any]) -> tuple[tuple[str, ...] | None, list[str]]:
        cells = {name: (plain(values.get(name)) or "").strip().lower() for name in self.columns}
        if not any(cells.values()) and all(values.get(name) in (None, "") for name in cells):
            return None, []
        wrong = [f"the column {name!r} holds neither 0 nor 1" for name in cells
                 if cells[name] not in _BITS]  # fmt: skip
        return tuple(name for name in cells if _BITS.get(cells[name])), wrong

    def _of_cell(self, values: Mapping[str, Any]) -> tuple[tuple[str, ...] | None, list[str]]:
        cell = values.get(self.column or "")
        if cell is None:
            return None, []
        parts = parts_of(cell, self.separator)
        if parts is None:
            return (), [f"the column {self.column!r} holds {why_not_plain(cell)}, not labels"]
        return tuple(dict.fromkeys(parts)), list(self._mistakes(parts))

    def _mistakes(self, parts: Sequence[str]) -> Iterable[str]:
        where = f"in the column {self.column!r}"
        if "" in parts:
            yield f"a label {where} is empty"
        if len(set(parts)) < len(parts):
            yield (
                f"a label occurs twice {where} (if it lists 0 and 1 for each label, write a "
                f"column for each: data.columns.labels)"
            )
        if not all(map(is_encodable, parts)):
            yield f"{NOT_UTF8}: a label {where} holds half a character"
        if self.known and not set(parts) <= set(self.known):
            yield f"a label {where} is none of the {len(self.known)} that are known"


def reader_of(
    rows: Iterable[Row], columns: Columns, names: tuple[str, ...], *, others: bool = False
) -> LabelReader | None:
    """Return the reader of the sets of labels of these rows; None if none are mapped.

    With `names`, other labels are mistakes, unless `others` are allowed.
    """
    if not columns.several or not columns.labelled:
        return None
    separator = columns.label_separator
    if separator is None:
        separator = detect_separator((row.values.get(columns.label or "") for row in rows), names)
    known = () if others else names
    return LabelReader(columns.label, columns.labels or (), separator, known)


def parts_of(cell: object, separator: str) -> list[str] | None:
    """Return the labels of a cell: of a list, of a list that is written as text, or of text with a
    separator. None for another value, also within a list."""
    if isinstance(cell, str) and (listed := _written_list(cell)) is not None:
        cell = listed
    if isinstance(cell, list):
        parts = [plain(part) for part in cell]
        return None if None in parts else [(part or "").strip() for part in parts]
    text = plain(cell)
    if text is None:
        return None
    if not text.strip():
        return []
    return [part.strip() for part in text.split(separator)] if separator else [text.strip()]


def _written_list(text: str) -> list[Any] | None:
    """Return the list that a text shows, as JSON or as Python writes it; None: it shows none."""
    text = text.strip()
    if not (text.startswith("[") and text.endswith("]")):
        return None
    for read in (json.loads, ast.literal_eval):
        try:
            found = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return found if isinstance(found, list) else None
    return None


def detect_separator(cells: Iterable[object], known: Sequence[str] = ()) -> str:
    """Return the character between the labels of these cells; "" if each is one label or a list.

    With known labels, the separator is that which divides most cells into them; otherwise that of
    most cells.
    """
    texts = Counter(
        cell.strip() for cell in cells if isinstance(cell, str) and _written_list(cell) is None
    )
    counts: dict[str, int] = {}
    for mark in SEPARATORS:
        divided = [text for text in texts if mark in text and text not in known]
        if known:
            divided = [text for text in divided if set(parts_of(text, mark) or ()) <= set(known)]
        counts[mark] = sum(texts[text] for text in divided)
    best = max(SEPARATORS, key=counts.__getitem__)
    return best if counts[best] else ""


def check_label_sets(
    sets: Sequence[Sequence[str]], names: Sequence[str], where: str, *, listed: bool
) -> None:
    """Raise UserError if there is nothing to learn from the labels of all rows. `listed`: the user
    has listed all labels."""
    found = len({name for each in sets for name in each})
    if found == 0:
        raise UserError(
            f"{where} holds no label in any row, so there is nothing to learn from. Fill it in, "
            f"or map another column."
        )
    if len(names) < 2:
        raise UserError(
            f"{where} holds only the label {names[0]!r:.40}; sets of labels need at least two. "
            f"For one label, write yes or no in each row and search the agent criteria."
        )
    if not listed and len(names) > max(MOST_LABELS, len(sets) // 2):
        raise UserError(
            f"{where} holds {len(names):,} different labels in {len(sets):,} rows, too many to "
            f"learn. Name the text between two labels of a cell (data.columns.label_separator), "
            f"or list the labels in data.labels if each of these is one."
        )


def indicators(examples: Sequence[Example], count: int) -> NDArray[np.float32]:
    """Return 1 for each label of an example and 0 for its others [N, labels]; NaN for an example
    whose labels are not known."""
    matrix = np.zeros((len(examples), count), dtype=np.float32)
    for row, example in enumerate(examples):
        if example.labels is None:
            matrix[row] = np.nan
        else:
            matrix[row, list(example.labels)] = 1
    return matrix
