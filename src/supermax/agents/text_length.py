"""text.max_length from the data: the shortest length that leaves nearly all texts whole.

Splits, Space, Source ──with_length()──▶ the space with that length alone
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

from supermax.space import Categorical, Space, narrowed
from supermax.space.presets import LENGTH
from supermax.training.data.examples import Example
from supermax.training.data.splits import Splits
from supermax.training.lengths import Histogram, histogram
from supermax.training.prepare import longest, texts_of
from supermax.training.sources import Source
from supermax.training.tokenizers import tokenizer_for

_CUT = 0.01  # share of the texts that may be longer
_MOST = 20_000  # texts, of all encoders together
_LEAST = 1_000  # of each; a share is then off by three points at most, as a rule


def with_length(
    space: Space, splits: Splits, sources: Collection[Source], cache: Path
) -> tuple[Space, str]:
    """Return the space with one length, and a sentence about it."""
    classes = [e for part in splits.parts for e in part.classes]
    spans = [e for part in splits.parts for e in part.spans]
    most = sample_size(len(sources))
    counted = [
        (counted_lengths(examples, source, splits, cache, most, kind), longest(source))
        for source in sources
        for kind, examples in (("classes", classes), ("spans", spans))
        if examples
    ]
    length = shortest(counted, all_lengths(space))
    return narrowed(space, {LENGTH: length}), f"{LENGTH} is {length}, from the data."


def shortest(counted: Sequence[tuple[Histogram, int]], lengths: Sequence[int]) -> int:
    """Return the first length that at most 1 % of the texts exceed, or the last length. Each
    histogram stands beside the longest text that its encoder takes: more helps nobody."""
    for length in lengths:
        if all(
            length >= limit or found.longer(length) <= _CUT * found.texts
            for found, limit in counted
        ):
            return length
    return lengths[-1]


def all_lengths(space: Space) -> list[int]:
    """List all lengths of a space, in order."""
    found: set[int] = set()
    for branch in space.parameters[LENGTH].branches:
        if isinstance(branch, Categorical):
            found |= {int(n) for n in branch.choices if isinstance(n, int | float)}
        else:
            step = int(branch.step or 1)
            found |= set(range(int(branch.low), int(branch.high) + 1, step))
    return sorted(found)


def sample_size(encoders: int) -> int:
    """Return how many texts are counted for each encoder."""
    return max(_LEAST, _MOST // max(1, encoders))


def counted_lengths(
    examples: Sequence[Example],
    source: Source,
    splits: Splits,
    cache: Path,
    most: int,
    kind: str = "classes",
) -> Histogram:
    """Count the tokens of at most so many examples, once for each encoder, split and kind."""
    load = partial(tokenizer_for, source, texts_of(splits.train), cache)
    facts = f"{source.fingerprint} {splits.fingerprint}" + " spans" * (kind == "spans")
    return histogram(examples, load, cache, hashlib.sha256(facts.encode()).hexdigest()[:24], most)
