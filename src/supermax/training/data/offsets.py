"""Character offsets of tokens, and spans adapted to them.

A tokenizer's normaliser may drop characters: accents, variation selectors, zero-width spaces. No
token covers those, but answers may begin or end with them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from supermax.training.data.examples import Example
from supermax.training.data.spans import Span

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Array = NDArray[np.integer]
_BATCH = 256  # texts that are tokenized at a time
_JOINERS = "\u200c\u200d"  # within a syllable or an emoji, but not in category M


def covered(length: int, windows: Iterable[Array]) -> NDArray[np.bool_]:
    """Return for each character of a text if a token of any window covers it."""
    depth = np.zeros(length + 1, dtype=np.int64)
    for offsets in windows:
        tokens = offsets[offsets[:, 0] >= 0]
        np.add.at(depth, tokens[:, 0], 1)
        np.add.at(depth, tokens[:, 1], -1)
    return np.cumsum(depth)[:-1] > 0


def widened(text: str, windows: Sequence[Array]) -> list[Array]:
    """Extend the offsets of tokens over dropped marks and joiners that follow them.

    Otherwise a predicted span could end within what a reader sees as one character.
    """
    if text.isascii():
        return list(windows)
    ends = np.arange(len(text) + 1, dtype=np.int32)
    for i in np.flatnonzero(~covered(len(text), windows))[::-1]:
        if text[i] in _JOINERS or unicodedata.category(text[i]).startswith("M"):
            ends[i] = ends[i + 1]
    result = []
    for offsets in windows:
        tokens = offsets[:, 1] > offsets[:, 0]
        extended = np.where(tokens, ends[offsets[:, 1]], offsets[:, 1])
        result.append(np.stack([offsets[:, 0], extended], axis=1))
    return result


def mapped(text: str, spans: Iterable[Span], windows: Sequence[Array]) -> tuple[Span, ...]:
    """Trim each span to the characters that a token covers and that are not white space.

    A span without such characters is left out. `windows` must be all windows of the text: a
    character that only another window covers was not dropped.
    """
    in_tokens = covered(len(text), windows)
    result = []
    for begin, end in spans:
        inside = [i for i in range(begin, end) if in_tokens[i] and not text[i].isspace()]
        if inside:
            result.append((inside[0], inside[-1] + 1))
    return tuple(result)


def without_tokens(
    examples: Iterable[Example], tokenizer: PreTrainedTokenizerFast
) -> list[Example]:
    """Return the examples with an answer that the tokenizer drops entirely.

    Texts are long, so answers are tokenized by themselves first; whole texts are tokenized only
    for answers that are dropped that way.
    """
    answered = [e for e in examples if e.spans]
    answers = list(dict.fromkeys(answer for e in answered for answer in _answers(e)))
    tokenized = zip(answers, _offsets(answers, tokenizer), strict=True)
    lost = {answer for answer, offsets in tokenized if not covered(len(answer), [offsets]).any()}
    suspects = [e for e in answered if not lost.isdisjoint(_answers(e))]
    whole = zip(suspects, _offsets([e.text for e in suspects], tokenizer), strict=True)
    return [e for e, offsets in whole if not _all_mapped(e, widened(e.text, [offsets]))]


def _all_mapped(example: Example, windows: Sequence[Array]) -> bool:
    spans = example.spans or ()
    return len(mapped(example.text, spans, windows)) == len(spans)


def _answers(example: Example) -> list[str]:
    return [example.text[begin:end] for begin, end in example.spans or ()]


def _offsets(texts: Sequence[str], tokenizer: PreTrainedTokenizerFast) -> Iterator[Array]:
    for first in range(0, len(texts), _BATCH):
        batch = list(texts[first : first + _BATCH])
        encoded = tokenizer(batch, return_offsets_mapping=True, verbose=False)
        for offsets in encoded["offset_mapping"]:
            yield np.array(offsets, dtype=np.int64).reshape(-1, 2)
