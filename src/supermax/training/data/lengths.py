"""Lengths of texts in tokens, which decide a trial's memory and what is truncated."""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from supermax._util.files import make_private, write_whole
from supermax.training.data.examples import Example

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_BATCH = 64  # texts that are tokenized at a time


@dataclass(frozen=True)
class Lengths:
    """Tokens of examples with their questions, before truncation."""

    longest: int
    """Tokens of the longest example."""
    total: int
    """Tokens of all examples."""


def lengths_of(
    examples: Sequence[Example],
    load: Callable[[], PreTrainedTokenizerFast],
    cache: Path,
    key: str,
) -> Lengths:
    """Count the tokens, or read them from the cache.

    `key` identifies examples and tokenizer; `load` returns the tokenizer.
    """
    path = cache / "tokens" / f"longest-{key}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        cached = json.loads(path.read_text())
        lengths = Lengths(int(cached["longest"]), int(cached["total"]))
        if 0 < lengths.longest <= lengths.total:
            return lengths
    counts = list(_token_counts(examples, load()))
    lengths = Lengths(max(counts, default=0), sum(counts))
    make_private(path.parent)
    write_whole(path, json.dumps(asdict(lengths)))
    return lengths


def _token_counts(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast
) -> Iterator[int]:
    for first in range(0, len(examples), _BATCH):
        batch = examples[first : first + _BATCH]
        texts, questions = [e.text for e in batch], [e.question for e in batch]
        pairs = (questions, texts) if any(questions) else (texts,)
        encoded = tokenizer(
            *pairs, return_token_type_ids=False, return_attention_mask=False, verbose=False
        )
        yield from (len(ids) for ids in encoded["input_ids"])


@dataclass(frozen=True)
class Histogram:
    """Numbers of texts by length in tokens, with their questions and before truncation."""

    counts: dict[int, int]
    """Counted texts by length."""
    texts: int
    """Number of all texts; more than were counted if a sample was taken."""

    @property
    def sampled(self) -> bool:
        return self.texts > sum(self.counts.values())

    def longer(self, length: int) -> int:
        """Return the number of texts with more tokens, extrapolated if a sample was taken."""
        longer = sum(n for tokens, n in self.counts.items() if tokens > length)
        return round(longer * self.texts / max(1, sum(self.counts.values())))


def histogram(
    examples: Sequence[Example],
    load: Callable[[], PreTrainedTokenizerFast],
    cache: Path,
    key: str,
    most: int,
) -> Histogram:
    """Count the tokens of at most `most` texts, or read them from the cache.

    `key` identifies examples and tokenizer; `load` returns the tokenizer.
    """
    path = cache / "tokens" / f"lengths-{key}-{most}.json"
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        cached = json.loads(path.read_text())
        counts = {int(tokens): int(n) for tokens, n in cached.items()}
        if sum(counts.values()) == min(most, len(examples)):
            return Histogram(counts, len(examples))
    sample = examples
    if len(examples) > most:
        chosen = sorted(random.Random(0).sample(range(len(examples)), most))
        sample = [examples[i] for i in chosen]
    counts = dict(sorted(Counter(_token_counts(sample, load())).items()))
    make_private(path.parent)
    write_whole(path, json.dumps(counts))
    return Histogram(counts, len(examples))
