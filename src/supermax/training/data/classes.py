"""Check that the values of a column can be classes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from supermax.training.data.answers import is_whole
from supermax.training.data.label_sets import SEPARATORS

MOST_NUMBERS = 20
"""Distinct numbers above which a column holds measurements and not classes.

Whole numbers that each occur often are an exception: ratings and codes."""
_OFTEN = 10  # mean rows for each distinct number
_MOSTLY = 0.95  # share of numbers in a column of numbers


def why_no_classes(cells: Iterable[str]) -> str:
    """Return why these cells cannot be classes, and what to do; "" if they can."""
    filled = [cell.strip() for cell in cells if cell.strip()]
    kinds = set(filled)
    numbers = all(is_numeric_label(kind.replace(",", ".")) for kind in kinds)
    codes = all(map(is_whole, kinds)) and len(filled) >= _OFTEN * len(kinds)
    if numbers and len(kinds) > MOST_NUMBERS and not codes:
        return (
            f"holds {len(kinds):,} different numbers, which are no classes. The agent regression "
            f"learns numbers{_point(kinds)}. Otherwise turn them into classes (such as low, "
            f"middle, high), map another column as label, or list the classes in data.labels"
        )
    for mark in () if numbers else SEPARATORS:
        if several := _several(filled, kinds, mark):
            return (
                f"holds several labels (with {mark!r} between them) in {several:,} rows. The "
                f"agent multilabel learns several labels of a row. Otherwise write a row for each "
                f"text and label, with the label in a column that is mapped as question and yes "
                f"or no as label; or list the classes in data.labels if each of these is one"
            )
    if len(kinds) > max(MOST_NUMBERS, len(filled) // 2):
        return (
            f"holds {len(kinds):,} different values in {len(filled):,} rows, which are no "
            f"classes. Map another column as label, or list the classes in data.labels"
        )
    return ""


def separator_of(cells: Iterable[str]) -> str:
    """Return the character between the labels of these cells; "" if they are single labels."""
    filled = [cell.strip() for cell in cells if cell.strip()]
    kinds = set(filled)
    found = {mark: _several(filled, kinds, mark) for mark in SEPARATORS}
    best = max(SEPARATORS, key=found.__getitem__)
    return best if found[best] else ""


def _point(kinds: set[str]) -> str:
    """Return what to change for numbers with a decimal comma."""
    commas = any("," in kind for kind in kinds)
    return ", written with a decimal point (3.5 instead of 3,5)" if commas else ""


def are_numbers(cells: Iterable[str]) -> bool:
    """Return True for numbers that are no classes. A few other cells are taken for mistakes."""
    filled = [cell.strip() for cell in cells if cell.strip()]
    numbers = [cell for cell in filled if is_number_text(cell)]
    most = len(numbers) >= _MOSTLY * len(filled) and len(set(numbers)) > MOST_NUMBERS
    return most and bool(why_no_classes(numbers))


def _several(filled: list[str], kinds: set[str], mark: str) -> int:
    """Count the cells that hold several labels.

    Their parts must also occur in other cells, and at least one of them as a whole cell.
    """
    split = {kind: [part.strip() for part in kind.split(mark)] for kind in kinds if mark in kind}
    if not split or any("" in parts for parts in split.values()):
        return 0
    seen = Counter(part for parts in split.values() for part in parts)
    shared = all(part in kinds or count > 1 for part, count in seen.items())
    alone = any(part in kinds for part in seen)
    return sum(cell in split for cell in filled) if shared and alone else 0


def is_number_text(label: str) -> bool:
    """Return True for a finite number, as Python writes it."""
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False


def is_numeric_label(label: str) -> bool:
    try:
        return not math.isnan(float(label))
    except ValueError:
        return False
