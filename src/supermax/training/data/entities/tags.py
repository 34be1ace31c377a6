"""Entities: typed spans of a text, tags of its words, and the conversion between both.

tags of words ──chunks()──▶ entities ──tags_of()──▶ classes of words: O, B-…, I-…
"""

from __future__ import annotations

import bisect
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from supermax.training.data.spans import Span

OUTSIDE = 0
"""Class of a word that is part of no entity. Class 2 t + 1 begins an entity of type t, and class
2 t + 2 continues it."""
UNTYPED = "_"
"""Type of entities whose tags name none: B and I alone."""
_TAG = re.compile(r"O|(?P<prefix>[BIESLU])(?:-(?P<type>.+))?")
_SAME = {"L": "E", "U": "S"}  # last and unit of BILOU: end and single of BIOES
_UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
"""Thai, Lao, Burmese, Khmer, and those of Chinese and Japanese."""
_WORD = re.compile(rf"[^\W{_UNSPACED}]+|\S")
_JOINERS = "\u200c\u200d"
T = TypeVar("T")


class Entity(NamedTuple):
    """Entity of a text."""

    start: int
    end: int
    """Characters [start, end)."""
    type: int
    """Type as an index of the corpus's label names."""


def tag_names(types: Sequence[str]) -> list[str]:
    """Return the names of all classes of words, in their order."""
    return ["O", *(f"{prefix}-{name}" for name in types for prefix in "BI")]


def parsed_tag(tag: str) -> tuple[str, str] | None:
    """Return prefix and type of a tag of the schemes IOB1, IOB2, BIOES and BILOU, such as B and
    PER; None for any other word."""
    match = _TAG.fullmatch(tag)
    if match is None:
        return None
    prefix = match["prefix"] or "O"
    return _SAME.get(prefix, prefix), match["type"] or UNTYPED


def parsed_class(number: int) -> tuple[str, int]:
    """Return prefix and type of a class of words."""
    return ("O" if number == OUTSIDE else "BI"[(number - 1) % 2]), (number - 1) // 2


def chunks(tags: Iterable[tuple[str, T]]) -> list[tuple[int, int, T]]:
    """Return the entities of a sequence of tags as words [first, end) with their type.

    They are those that seqeval finds in its default mode: I or E continues an entity of the same
    type before it, and begins one where there is none.
    """
    found: list[tuple[int, int, T]] = []
    before = "O"
    for i, (prefix, kind) in enumerate(tags):
        if prefix in "IE" and before in "BI" and found[-1][2] == kind:
            found[-1] = (found[-1][0], i + 1, kind)
        elif prefix != "O":
            found.append((i, i + 1, kind))
        before = prefix
    return found


def words_in(text: str) -> tuple[Span, ...]:
    """Return the words of a text: runs of letters and digits, and every other character by itself,
    as are those of scripts that are written without spaces. Marks belong to the letter before."""
    found: list[Span] = []
    in_run = False
    for match in _WORD.finditer(text):
        start, end = match.span()
        is_mark = unicodedata.category(text[start]).startswith("M") or text[start] in _JOINERS
        adjacent = bool(found) and found[-1][1] == start
        if adjacent and (is_mark or (in_run and _is_letter(text[start]))):
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
        in_run = is_mark and _is_letter(text[found[-1][0]])
    return tuple(found)


def _is_letter(character: str) -> bool:
    """Return True for a letter or digit of a script that separates words by spaces."""
    return character.isalnum() and re.match(f"[{_UNSPACED}]", character) is None


def tags_of(words: Sequence[Span], entities: Iterable[Entity]) -> list[int]:
    """Return the class of each word. A word that an entity covers in part belongs to it, and one
    that two entities share to the first of them."""
    tags = [OUTSIDE] * len(words)
    ends = [end for _, end in words]
    for start, end, kind in sorted(entities):
        begun = False
        for i in range(bisect.bisect_right(ends, start), len(words)):
            if words[i][0] >= end:
                break
            if tags[i] == OUTSIDE:
                tags[i] = 2 * kind + (2 if begun else 1)
                begun = True
    return tags


def count_unaligned(words: Sequence[Span], entities: Iterable[Span]) -> int:
    """Return the number of entities that begin or end within a word. No tags of words stand for
    them, so they cannot be predicted."""
    starts, ends = {start for start, _ in words}, {end for _, end in words}
    return sum(start not in starts or end not in ends for start, end in entities)
