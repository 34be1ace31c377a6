"""Comparison of an answer's text with gold answers, by the evaluation rules of SQuAD 2.0.

    text ──tokens() or characters()──▶ list ──best()──▶ score against the gold answers

One addition: scripts that put no spaces between words are compared character by character, as
multilingual evaluations (MLQA, CMRC 2018) do.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache
from typing import TypeVar

T = TypeVar("T", bound=Hashable)

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_RANGES = (
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff"  # Han
    "\uf900-\ufaff\U00020000-\U0003fffd"
    "\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f\U0001aff0-\U0001b16f"  # Hiragana, Katakana
    "\u0e01-\u0e7f\u0e80-\u0eff"  # Thai, Lao
    "\u1780-\u17ff\u19e0-\u19ff"  # Khmer
    "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f\U000116d0-\U000116ff"  # Myanmar
)
_SPACELESS = re.compile(f"[{_RANGES}]")
_PARTS = re.compile(f"[{_RANGES}]|[^{_RANGES}\\s]+")


def tokens(text: str) -> list[str]:
    """Split an answer into the tokens that are compared.

    SQuAD's normalisation: lower case, no ASCII punctuation, no articles, split at white space.
    A word that holds characters of a script without spaces is split further: each of these
    characters is a token, and so is each run of others between them and any punctuation.
    """
    plain = _ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION))
    if _SPACELESS.search(plain) is None:
        return plain.split()
    return [token for word in plain.split() for token in _parts(word)]


def _parts(word: str) -> list[str]:
    if _SPACELESS.search(word) is None:
        return [word]
    return _PARTS.findall("".join(" " if _is_punctuation(c) else c for c in word))


def characters(text: str) -> list[str]:
    """List the characters of an answer in lower case, without white space and punctuation."""
    return [c for word in text.lower().split() for c in word if not _is_punctuation(c)]


@cache
def _is_punctuation(character: str) -> bool:
    """Return True for ASCII punctuation, some of which Unicode calls symbols, and Unicode's."""
    return character in string.punctuation or unicodedata.category(character).startswith("P")


def f1(guess: Iterable[T], gold: Iterable[T]) -> float:
    """Return the F1 of two multisets; where either is empty, 1 if both are."""
    one, other = Counter(guess), Counter(gold)
    if not one or not other:
        return float(one == other)
    return 2 * (one & other).total() / (one.total() + other.total())


def exact(guess: Sequence[T], gold: Sequence[T]) -> float:
    """Return 1 for the same items in the same order, else 0."""
    return float(list(guess) == list(gold))


def best_score(
    score: Callable[[Sequence[T], Sequence[T]], float],
    guess: Sequence[T],
    golds: Iterable[Sequence[T]],
) -> float:
    """Return the best score over the gold answers.

    Empty gold answers do not count; if no other is left, the correct answer is none.
    """
    return max(score(guess, gold) for gold in [gold for gold in golds if gold] or [()])
