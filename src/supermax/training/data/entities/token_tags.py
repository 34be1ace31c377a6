"""Classes of the tokens of windows, from the entities of their text.

Each word is trained on and predicted in one window only: the one in which its first token is
farthest from what the window cuts off.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from supermax.training.data.entities import OUTSIDE, tags_of, words_in
from supermax.training.data.examples import Example
from supermax.training.data.offsets import Array
from supermax.training.data.spans import Span

IGNORED = -100


def words_of(example: Example) -> tuple[Span, ...]:
    """Return the words of an example's text."""
    return example.words or words_in(example.text)


def tagged_windows(example: Example, windows: Sequence[Array]) -> list[tuple[Array, Array]]:
    """Return word and class of each token of each window, from the offsets of the tokens.

    -1 and IGNORED stand for special tokens, and for words that another window decides.
    """
    words = words_of(example)
    tags = np.array([*tags_of(words, example.entities or ()), IGNORED], dtype=np.int16)
    owners = [_owners(offsets, words) for offsets in windows]
    decided = _windows_of_words(windows, owners, len(words))
    result: list[tuple[Array, Array]] = []
    for number, own in enumerate(owners):
        kept = np.where((own >= 0) & (decided[own] == number), own, -1).astype(np.int32)
        found = tags[kept]
        later = ~first_tokens(kept) & (found > OUTSIDE)
        # A later token of the first word of an entity continues it: B- becomes I-.
        result.append((kept, np.where(later, found + found % 2, found).astype(np.int16)))
    return result


def first_tokens(words: Array) -> NDArray[np.bool_]:
    """Return for each token if it is the first one of a word, from the words of the tokens."""
    return np.asarray((words >= 0) & (words != np.concatenate([[-1], words[:-1]])))


def _owners(offsets: Array, words: Sequence[Span]) -> Array:
    """Return the first word that each token overlaps; -1: none."""
    if not words:
        return np.full(len(offsets), -1)
    starts, ends = np.array(words).T
    found = np.searchsorted(ends, offsets[:, 0], side="right")
    within = found < len(words)
    overlaps = starts[np.where(within, found, 0)] < offsets[:, 1]
    real = (offsets[:, 0] >= 0) & (offsets[:, 1] > offsets[:, 0])
    return np.where(real & within & overlaps, found, -1)


def _windows_of_words(
    windows: Sequence[Array], owners: Sequence[Array], words: int
) -> NDArray[np.int64]:
    """Return the window that decides each word, and -1 for a word without tokens."""
    begins = np.full(words + 1, np.iinfo(np.int64).max)  # first character of each word's tokens
    for offsets, own in zip(windows, owners, strict=True):
        np.minimum.at(begins, own, np.where(own >= 0, offsets[:, 0], begins[-1]))
    decided, margin = np.full(words + 1, -1), np.full(words + 1, -1.0)
    for number, (offsets, own) in enumerate(zip(windows, owners, strict=True)):
        inside = np.flatnonzero(offsets[:, 0] >= 0)
        places = np.flatnonzero(first_tokens(own) & (offsets[:, 0] == begins[own]))
        left = places - inside[0] if number else np.full(len(places), np.inf)
        right = inside[-1] - places if number < len(windows) - 1 else np.inf
        room = np.minimum(left, right)
        better = room > margin[own[places]]
        decided[own[places[better]]], margin[own[places[better]]] = number, room[better]
    return decided
