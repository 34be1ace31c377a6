"""Lengths of texts in an encoder's tokens: they decide a trial's memory, and what is cut."""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from supermax.files import make_private, write_whole
from supermax.training.data.examples import Example

_AT_ONCE = 64


@dataclass(frozen=True)
class Lengths:
    """Tokens of examples, uncut, with their questions."""

    longest: int
    total: int


def lengths_of(
    examples: Sequence[Example], load: Callable[[], Any], cache: Path, key: str
) -> Lengths:
    """Count the tokens, once: `key` names the examples and the tokenizer, which `load` gives."""
    path = cache / "tokens" / f"longest-{key}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        kept = json.loads(path.read_text())
        found = Lengths(int(kept["longest"]), int(kept["total"]))
        if 0 < found.longest <= found.total:
            return found
    found = _counted(examples, load())
    make_private(path.parent)
    write_whole(path, json.dumps(asdict(found)))
    return found


def _counted(examples: Sequence[Example], tokenizer: Any) -> Lengths:
    longest = total = 0
    for count in _token_counts(examples, tokenizer):
        longest, total = max(longest, count), total + count
    return Lengths(longest, total)


def _token_counts(examples: Sequence[Example], tokenizer: Any) -> Iterator[int]:
    for first in range(0, len(examples), _AT_ONCE):
        batch = examples[first : first + _AT_ONCE]
        texts, questions = [e.text for e in batch], [e.question for e in batch]
        pairs = (questions, texts) if any(questions) else (texts,)
        encoded = tokenizer(
            *pairs, return_token_type_ids=False, return_attention_mask=False, verbose=False
        )
        yield from (len(ids) for ids in encoded["input_ids"])


@dataclass(frozen=True)
class Histogram:
    """Numbers of texts by their length in tokens, uncut, with their questions."""

    counts: dict[int, int]
    texts: int
    """In all; more than were counted where a sample was taken."""

    @property
    def sampled(self) -> bool:
        return self.texts > sum(self.counts.values())

    def longer(self, length: int) -> int:
        """Texts with more tokens than this; extrapolated from the sample where one was taken."""
        found = sum(n for tokens, n in self.counts.items() if tokens > length)
        return round(found * self.texts / max(1, sum(self.counts.values())))


def histogram(
    examples: Sequence[Example], load: Callable[[], Any], cache: Path, key: str, most: int
) -> Histogram:
    """Count the tokens of at most so many texts, once: `key` names the examples and the tokenizer,
    which `load` gives."""
    path = cache / "tokens" / f"lengths-{key}-{most}.json"
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        kept = json.loads(path.read_text())
        found = {int(tokens): int(n) for tokens, n in kept.items()}
        if sum(found.values()) == min(most, len(examples)):
            return Histogram(found, len(examples))
    some = examples
    if len(examples) > most:
        chosen = sorted(random.Random(0).sample(range(len(examples)), most))
        some = [examples[i] for i in chosen]
    counts = dict(sorted(Counter(_token_counts(some, load())).items()))
    make_private(path.parent)
    write_whole(path, json.dumps(counts))
    return Histogram(counts, len(examples))
