"""Tests of the cells of a column: do they hold words, questions, classes, names of groups?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from supermax.training.data.classes import why_no_classes
from supermax.training.data.columns import PART_NAMES

MOST_LABELS = 20
"""Classes, or labels of sets, above which a column is not taken for one of labels."""


def has_words(own: Sequence[str]) -> bool:
    filled = [cell for cell in own if cell.strip()]
    return bool(filled) and fmean(cell.count(" ") for cell in filled) >= 1


def are_parts(own: Sequence[str], texts: Sequence[str]) -> bool:
    """Return True if nearly all values are pieces of their texts, and not the whole texts."""
    pairs = [(part, text) for part, text in zip(own, texts, strict=True) if part.strip()]
    inside = sum(part.strip() in text and len(part) < len(text) for part, text in pairs)
    return bool(pairs) and inside >= 0.9 * len(pairs) and fmean(len(p) for p, _ in pairs) > 3


def asks(own: Sequence[str]) -> bool:
    filled = [cell for cell in own if cell.strip()]
    return bool(filled) and sum(cell.rstrip().endswith("?") for cell in filled) > len(filled) / 2


def kinds(own: Sequence[str]) -> set[str]:
    return {cell.strip() for cell in own if cell.strip()}


def are_classes(own: Sequence[str]) -> bool:
    filled = sum(bool(cell.strip()) for cell in own)
    return 2 <= len(kinds(own)) <= min(MOST_LABELS, filled // 2) and not why_no_classes(own)


def are_groups(own: Sequence[str]) -> bool:
    """Return True for names that several rows share, too many to be classes."""
    kinds = set(own)
    names = all(cell.strip() and " " not in cell.strip() for cell in own)
    return names and len(kinds) > MOST_LABELS and len(kinds) < 0.9 * len(own)


def are_titles(own: Sequence[str], texts: Sequence[str]) -> bool:
    """Return True for names that texts share, if each text is in several rows with one name.

    A class would differ between the questions on a text.
    """
    title_of = dict(zip(texts, own, strict=True))
    same = all(title_of[text] == cell for text, cell in zip(texts, own, strict=True))
    return same and all(map(str.strip, own)) and len(set(own)) < len(title_of) < 0.9 * len(own)


def are_in_one_split(own: Sequence[str], splits: Sequence[str]) -> bool:
    """Return True if no value is in two of the splits, if there are any."""
    parts = [PART_NAMES[cell.strip().lower()] for cell in splits]
    split_of = dict(zip(own, parts, strict=False))
    return all(split_of[cell] == part for cell, part in zip(own, parts, strict=False))


def are_splits(own: Sequence[str]) -> bool:
    return all(cell.strip().lower() in PART_NAMES for cell in own)


def are_ids(own: Sequence[str]) -> bool:
    filled = [cell for cell in own if cell.strip()]
    return len(filled) == len(own) == len(set(own))
