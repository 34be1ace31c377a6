"""Columns of tokens and tags, or of texts and entities, found by their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from supermax.training.data.entities import parsed_tag
from supermax.training.data.entities.rows import Sentence, sentence_of
from supermax.training.data.rows import Rows

_TOKENS = ("tokens", "words", "token", "word")
_TAGS = ("ner_tags", "tags", "ner", "ner_tag", "bio_tags", "iob_tags", "labels", "label", "tag")
_MOSTLY = 0.9  # share of the rows that fit


@dataclass(frozen=True)
class TaggedColumns:
    text: str | None
    """Column of the tokens; None: the label has entities of a text."""
    label: str | None
    types: tuple[str, ...]
    """Types of the entities."""
    unlabelled: int
    """Rows without tags or entities, if there is a column of them."""


def tagged_columns(table: Rows) -> TaggedColumns | None:
    """Return the columns from which entities are learned; None if there are none."""
    values = {name: [row.values.get(name) for row in table.rows] for name in table.columns}
    lists = {name: own for name, own in values.items() if _are_lists(own)}
    tokens = [name for name in lists if _are_words(lists[name])]
    for text in _by_name(tokens, _TOKENS):
        for label in _by_name([name for name in lists if name != text], _TAGS):
            if _are_tags(lists[text], lists[label], label in _TAGS):
                return _columns(text, label, lists[text], lists[label])
        if text in _TOKENS:
            return TaggedColumns(text, None, (), 0)
    for label, own in lists.items():
        if _are_entities(own):
            return _columns(None, label, None, own)
    return None


def _columns(
    text: str | None, label: str, tokens: Sequence[Any] | None, marks: Sequence[Any]
) -> TaggedColumns:
    if tokens is None:
        types = {str(_label(mark)) for own in marks for mark in own or ()}
        missing = sum(own in (None, "") for own in marks)
    else:
        found = [sentence_of(*pair) for pair in zip(tokens, marks, strict=True)]
        known = [each.entities for each in found if isinstance(each, Sentence)]
        types = {e.type for entities in known for e in entities or ()}
        missing = sum(entities is None for entities in known)
    return TaggedColumns(text, label, tuple(sorted(types)), missing)


def _by_name(columns: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the columns, those with the first of the names first."""
    return sorted(columns, key=lambda name: names.index(name) if name in names else len(names))


def _are_lists(own: Sequence[Any]) -> bool:
    return all(isinstance(value, list) or value in (None, "") for value in own) and any(own)


def _are_words(own: Sequence[Any]) -> bool:
    return all(isinstance(word, str) for value in own for word in value or ())


def _are_tags(tokens: Sequence[Any], own: Sequence[Any], is_named: bool) -> bool:
    """Return True for a tag of each token in most rows; for numbers, if a name says so too."""
    pairs = [(words, tags) for words, tags in zip(tokens, own, strict=True) if words and tags]
    tags = [tag for _, own_tags in pairs for tag in own_tags]
    if not tags or sum(len(a) == len(b) for a, b in pairs) < _MOSTLY * len(pairs):
        return False
    if is_named and all(isinstance(tag, int) for tag in tags):
        return True
    parsed = [parsed_tag(tag) for tag in tags if isinstance(tag, str)]
    valid = [tag for tag in parsed if tag is not None]
    return len(valid) >= _MOSTLY * len(tags) and any(prefix != "O" for prefix, _ in valid)


def _are_entities(own: Sequence[Any]) -> bool:
    marks = [mark for value in own for mark in value or ()]
    return bool(marks) and all(_label(mark) is not None for mark in marks)


def _label(mark: Any) -> Any:
    if isinstance(mark, Mapping):
        whole = {"start", "end", "label"} <= set(mark)
        return mark["label"] if whole else None
    return mark[2] if isinstance(mark, list) and len(mark) == 3 else None
