"""Texts to classify that are longer than an encoder is given: they are cut, and that is told.

Splits, Space, Source ──truncation()──▶ Cut ──told()──▶ lines for a person
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from supermax.agents.text_length import counted_lengths, sample_size
from supermax.space import Categorical, Space
from supermax.space.presets import LENGTH
from supermax.training.config import TextConfig
from supermax.training.data.splits import Splits
from supermax.training.prepare import longest
from supermax.training.sources import Source
from supermax.words import counted

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
    """`texts` is extrapolated from a sample."""

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
    most = sample_size(len(sources) + beside)
    found: list[Cut] = []
    for source in sources:
        lengths = counted_lengths(examples, source, splits, cache, most)
        found += (
            Cut(source.name, length, cut, len(examples), lengths.sampled)
            for length in dict.fromkeys(min(n, longest(source)) for n in lengths_in(space))
            if (cut := lengths.longer(length))
        )
    return found


def lengths_in(space: Space) -> list[int]:
    """List the lengths of a space in order: choices, or the ends and the default of a range."""
    if LENGTH not in space.parameters:
        return [TextConfig().max_length]
    found: set[int] = set()
    for branch in space.parameters[LENGTH].branches:
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
