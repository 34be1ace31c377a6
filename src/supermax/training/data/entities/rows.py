"""Sentence of a row: its text, its words and its entities, with the mistakes in them.

tokens and tags, or text and entities ──sentence_of()──▶ Sentence, or the row's mistakes
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from supermax.training.data.entities import chunks, parsed_tag
from supermax.training.data.names import is_class_name
from supermax.training.data.rows import plain
from supermax.training.data.spans import Span

NO_NAMES = (
    "Write tags as words such as B-PER, or load a dataset whose column is typed as ClassLabel."
)


@dataclass(frozen=True)
class NamedEntity:
    """Entity whose type is still a name."""

    start: int
    end: int
    type: str


@dataclass(frozen=True)
class Sentence:
    text: str
    words: tuple[Span, ...]
    """Words that the row lists; (): it has a text."""
    entities: tuple[NamedEntity, ...] | None
    """None: they are not known."""


@dataclass(frozen=True)
class Mistake:
    what: str
    detail: str = ""
    token: int = 0
    """Number of the token that it is about, from 0."""
    advice: str = ""


def sentence_of(source: Any, marks: Any) -> Sentence | list[Mistake]:
    """Return the sentence of a row, or its mistakes.

    `source` is a text or a list of tokens. `marks` are a tag for each token, or the entities with
    their characters; None or an empty text: they are not known.
    """
    if isinstance(source, list):
        return _tagged(source, marks)
    text = plain(source)
    if text is None:
        return [Mistake("the text is neither a text nor a list of tokens")]
    if marks is None or marks == "":
        return Sentence(text, (), None)
    return _marked(text, marks)


def _tagged(tokens: list[Any], tags: Any) -> Sentence | list[Mistake]:
    words: list[str] = []
    for i, token in enumerate(tokens):
        word = plain(token)
        if not (word or "").strip():
            return [Mistake("a token is empty or no text", f" (token {i + 1})", i)]
        words.append(word or "")
    spans, at = [], 0
    for word in words:
        spans.append((at, at + len(word)))
        at += len(word) + 1
    text = " ".join(words)
    if not tags or (isinstance(tags, list) and all(tag is None for tag in tags)):
        return Sentence(text, tuple(spans), None)
    if not isinstance(tags, list):
        return [Mistake("the tags are not a list, as the tokens are")]
    if len(tags) != len(tokens):
        counts = f" ({len(tags)} tags, {len(tokens)} tokens)"
        return [Mistake("there are not as many tags as tokens", counts)]
    parsed = [parsed_tag(tag) if isinstance(tag, str) else None for tag in tags]
    if mistakes := list(_unknown_tags(tags, parsed)):
        return mistakes[:1]
    found = chunks([tag for tag in parsed if tag is not None])
    entities = (NamedEntity(spans[a][0], spans[b - 1][1], kind) for a, b, kind in found)
    return Sentence(text, tuple(spans), tuple(entities))


def _unknown_tags(tags: list[Any], parsed: list[tuple[str, str] | None]) -> Iterator[Mistake]:
    for i, (tag, known) in enumerate(zip(tags, parsed, strict=True)):
        place = f"token {i + 1}"
        if isinstance(tag, int | float):
            yield Mistake("the tags are numbers without names", f" ({place})", i, NO_NAMES)
        elif known is None:
            shown = f"{tag!r}, " if isinstance(tag, str) and is_class_name(tag) else ""
            what = "the tag is neither O nor a type after B-, I-, E-, S-, L- or U-"
            yield Mistake(what, f" ({shown}{place})", i)


def _marked(text: str, marks: Any) -> Sentence | list[Mistake]:
    if not isinstance(marks, list):
        return [Mistake("the entities are not a list")]
    if any(isinstance(mark, str) for mark in marks):
        return [Mistake("tags need a list of tokens, but the text is not split into tokens")]
    found: list[NamedEntity] = []
    for mark in marks:
        entity = _entity(mark)
        if entity is None:
            return [Mistake("an entity is not {start, end, label} or [start, end, label]")]
        place = f" (characters {entity.start} to {entity.end} of {len(text)})"
        if not 0 <= entity.start <= entity.end <= len(text):
            return [Mistake("an entity is outside the text", place)]
        piece = text[entity.start : entity.end]
        if not piece.strip():
            return [Mistake("an entity is empty or white space", place)]
        start = entity.start + len(piece) - len(piece.lstrip())
        found.append(NamedEntity(start, start + len(piece.strip()), entity.type))
    found.sort(key=lambda entity: (entity.start, entity.end))
    for one, other in itertools.pairwise(found):
        if other.start < one.end:
            shown = f" ({one.start} to {one.end}, and {other.start} to {other.end})"
            return [Mistake("two entities overlap", shown)]
    return Sentence(text, (), tuple(found))


def _entity(mark: Any) -> NamedEntity | None:
    if isinstance(mark, Mapping):
        mark = [mark.get(key) for key in ("start", "end", "label")]
    if not isinstance(mark, list) or len(mark) != 3:
        return None
    start, end = (each for each in mark[:2])
    label = (plain(mark[2]) or "").strip()
    numbers = all(isinstance(n, int) and not isinstance(n, bool) for n in (start, end))
    return NamedEntity(start, end, label) if numbers and label else None
