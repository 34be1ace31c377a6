"""Characters of a text that its tokens stand for.

A tokenizer's normaliser may drop characters: accents, variation selectors, zero-width spaces. No
token covers those, and yet answers begin and end with them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from supermax.training.data.examples import Example
from supermax.training.data.spans import Span

Array = NDArray[Any]
_AT_ONCE = 256
_JOINERS = "\u200c\u200d"  # within a syllable or an emoji, though they are no marks


def covered(length: int, windows: Iterable[Array]) -> NDArray[np.bool_]:
    """Mark the characters of a text that a token of any of its windows covers."""
    depth = np.zeros(length + 1, dtype=np.int64)
    for offsets in windows:
        tokens = offsets[offsets[:, 0] >= 0]
        np.add.at(depth, tokens[:, 0], 1)
        np.add.at(depth, tokens[:, 1], -1)
    return np.cumsum(depth)[:-1] > 0


def widened(text: str, windows: Sequence[Array]) -> list[Array]:
    """Extend tokens over the dropped marks and joiners that follow them, so that what is predicted
    does not end within what a reader sees as one character."""
    if text.isascii():
        return list(windows)
    ends = np.arange(len(text) + 1, dtype=np.int32)
    for place in np.flatnonzero(~covered(len(text), windows))[::-1]:
        if text[place] in _JOINERS or unicodedata.category(text[place]).startswith("M"):
            ends[place] = ends[place + 1]
    result = []
    for offsets in windows:
        tokens = offsets[:, 1] > offsets[:, 0]
        moved = np.where(tokens, ends[offsets[:, 1]], offsets[:, 1])
        result.append(np.stack([offsets[:, 0], moved], axis=1))
    return result


def mapped(text: str, spans: Iterable[Span], windows: Sequence[Array]) -> tuple[Span, ...]:
    """Cut each span to its first and last character that is no white space and that a token of the
    text covers; a span without any is left out.

    `windows` must be all windows of the text: what only another window covers is not dropped.
    """
    known = covered(len(text), windows)
    result = []
    for begin, end in spans:
        inside = [i for i in range(begin, end) if known[i] and not text[i].isspace()]
        if inside:
            result.append((inside[0], inside[-1] + 1))
    return tuple(result)


def without_tokens(examples: Iterable[Example], tokenizer: Any) -> list[Example]:
    """Find the examples that have an answer of which the tokenizer leaves nothing.

    Answers are tokenised by themselves, as texts are long; only texts of which an answer is lost
    that way are looked at whole.
    """
    held = [e for e in examples if e.spans]
    pieces = list(dict.fromkeys(piece for e in held for piece in _pieces(e)))
    found = zip(pieces, _offsets(pieces, tokenizer), strict=True)
    lost = {piece for piece, offsets in found if not covered(len(piece), [offsets]).any()}
    doubted = [e for e in held if not lost.isdisjoint(_pieces(e))]
    whole = zip(doubted, _offsets([e.text for e in doubted], tokenizer), strict=True)
    return [e for e, offsets in whole if not _all_mapped(e, widened(e.text, [offsets]))]


def _all_mapped(example: Example, windows: Sequence[Array]) -> bool:
    spans = example.spans or ()
    return len(mapped(example.text, spans, windows)) == len(spans)


def _pieces(example: Example) -> list[str]:
    return [example.text[begin:end] for begin, end in example.spans or ()]


def _offsets(texts: Sequence[str], tokenizer: Any) -> Iterator[Array]:
    for first in range(0, len(texts), _AT_ONCE):
        some = list(texts[first : first + _AT_ONCE])
        encoded = tokenizer(some, return_offsets_mapping=True, verbose=False)
        for offsets in encoded["offset_mapping"]:
            yield np.array(offsets, dtype=np.int64).reshape(-1, 2)
