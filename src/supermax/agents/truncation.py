"""Texts to classify that are longer than an encoder is given: they are cut, and that is told.

Splits, Space, Source ──truncation()──▶ Cut ──told()──▶ lines for a person
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from supermax.space import Categorical, Space
from supermax.training.config import TextConfig
from supermax.training.data.splits import Splits
from supermax.training.lengths import histogram
from supermax.training.prepare import longest, texts_of
from supermax.training.sources import Source
from supermax.training.tokenizers import tokenizer_for
from supermax.words import counted

_MOST = 20_000  # texts, of all encoders together
_LEAST = 1_000  # of each; a share is then off by three points at most, as a rule
_LENGTH = "text.max_length"
_SHOWN = 5  # encoders


@dataclass(frozen=True)
class Cut:
    """Texts that an encoder does not see whole at a length."""

    encoder: str
    length: int
    """In tokens: of the space, or the most that the encoder takes."""
    texts: int
    of: int
    sampled: bool
    """Whether `texts` is extrapolated from a sample."""

    def __str__(self) -> str:
        share = "under 1%" if 100 * self.texts < self.of else f"{self.texts / self.of:.0%}"
        return f"{'about ' * self.sampled}{self.texts:,} ({share}) at {self.length} tokens"


def truncation(
    agent: str,
    splits: Splits,
    space: Space,
    sources: Collection[Source],
    cache: Path,
    beside: int = 0,
) -> list[Cut]:
    """Count what is cut at the lengths of a space. Texts in which spans are sought are not: they
    become several windows. The more encoders, `beside` these ones too, the smaller the sample."""
    examples = [e for part in splits.parts for e in part.classes] if agent != "evidence" else []
    if not examples:
        return []
    most = max(_LEAST, _MOST // max(1, len(sources) + beside))
    found: list[Cut] = []
    for source in sources:
        load = partial(tokenizer_for, source, texts_of(splits.train), cache)
        key = hashlib.sha256(f"{source.fingerprint} {splits.fingerprint}".encode()).hexdigest()
        lengths = histogram(examples, load, cache, key[:24], most)
        found += (
            Cut(source.name, length, cut, len(examples), lengths.sampled)
            for length in dict.fromkeys(min(n, longest(source)) for n in lengths_in(space))
            if (cut := lengths.longer(length))
        )
    return found


def lengths_in(space: Space) -> list[int]:
    """List the lengths of a space in order: choices, or the ends and the default of a range."""
    if _LENGTH not in space.parameters:
        return [TextConfig().max_length]
    found: set[int] = set()
    for branch in space.parameters[_LENGTH].branches:
        ends = branch.choices if isinstance(branch, Categorical) else (branch.low, branch.high)
        found |= {int(n) for n in (*ends, branch.default) if isinstance(n, int | float)}
    return sorted(found)


def told(cuts: Sequence[Cut]) -> list[str]:
    """Make one sentence for all encoders that cut the same; those that cut most come first."""
    if not cuts:
        return []
    by_encoder: dict[str, list[Cut]] = {}
    for cut in cuts:
        by_encoder.setdefault(cut.encoder, []).append(cut)
    alike: dict[str, list[str]] = {}
    for encoder, own in sorted(by_encoder.items(), key=lambda item: -item[1][0].texts):
        alike.setdefault(", ".join(map(str, own)), []).append(encoder)
    lines = [
        f"Of {cuts[0].of:,} texts to classify, {', '.join(names)} "
        f"{'truncates' if len(names) == 1 else 'truncate'} {words}."
        for words, names in alike.items()
    ]
    hidden = sum(len(names) for names in list(alike.values())[_SHOWN:])
    return lines[:_SHOWN] + [f"{counted(hidden, 'more encoder')} truncate fewer."] * (hidden > 0)
