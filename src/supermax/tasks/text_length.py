"""Choice of text.max_length from the data: the shortest that truncates at most 1 % of the texts.

Splits, Space, Source ──with_length()──▶ the space with that length, or with those up to it
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

from supermax.agents.agent import TARGETS
from supermax.space import Categorical, Space, narrowed
from supermax.space.presets import LENGTH
from supermax.tasks.space_values import integers
from supermax.training.data.examples import Example
from supermax.training.data.lengths import Histogram, histogram
from supermax.training.data.splits import Splits
from supermax.training.models.sources import Source
from supermax.training.models.tokenizers import tokenizer_for
from supermax.training.prepare import max_input_length, texts_of

_MOST_TRUNCATED = 0.01  # share of the texts
_SAMPLE = 20_000  # texts that are tokenized for all encoders together
_LEAST_SAMPLE = 1_000  # for each encoder: the 95 % interval of a share is then ±3 points at most


def with_length(
    space: Space, splits: Splits, sources: Collection[Source], cache: Path
) -> tuple[Space, str]:
    """Return the space with the length that the data needs, and a sentence about it.

    A range of lengths becomes that one. Of a list all up to it remain, since shorter ones cost
    less.
    """
    of_target = {t: [e for part in splits.parts for e in part.of(t)] for t in TARGETS}
    sample = sample_size(len(sources))
    histograms = [
        (
            counted_lengths(examples, source, splits, cache, sample, target.kind),
            max_input_length(source),
        )
        for source in sources
        for target, examples in of_target.items()
        if examples
    ]
    lengths = integers(space, LENGTH)
    length = shortest(histograms, lengths)
    listed = isinstance(space.parameters[LENGTH].branches[0], Categorical)
    remaining = [n for n in lengths if n <= length]
    if listed and len(remaining) > 1:
        found = ", ".join(map(str, remaining))
        return narrowed(space, {LENGTH: remaining}), f"{LENGTH} is one of {found}, from the data."
    return narrowed(space, {LENGTH: length}), f"{LENGTH} is {length}, from the data."


def shortest(histograms: Sequence[tuple[Histogram, int]], lengths: Sequence[int]) -> int:
    """Return the first length that truncates at most 1 % of the texts, or the last length.

    Each histogram comes with the maximum input length of its encoder.
    """
    for length in lengths:
        if all(
            length >= limit or found.longer(length) <= _MOST_TRUNCATED * found.texts
            for found, limit in histograms
        ):
            return length
    return lengths[-1]


def sample_size(encoders: int) -> int:
    """Return the number of texts to tokenize for each of so many encoders."""
    return max(_LEAST_SAMPLE, _SAMPLE // max(1, encoders))


def counted_lengths(
    examples: Sequence[Example],
    source: Source,
    splits: Splits,
    cache: Path,
    most: int,
    kind: str = "classes",
) -> Histogram:
    """Return the token lengths of at most `most` examples, cached for encoder, data and kind."""
    load = partial(tokenizer_for, source, texts_of(splits.train), cache)
    facts = f"{source.fingerprint} {splits.fingerprint}" + " spans" * (kind == "spans")
    return histogram(examples, load, cache, hashlib.sha256(facts.encode()).hexdigest()[:24], most)
