"""Truncation of texts to classify that are longer than text.max_length.

Splits, Space, Source ──truncation()──▶ Cut ──truncation_notices()──▶ sentences
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from supermax._util.text import counted
from supermax.agents import agent_of
from supermax.space import Categorical, Space
from supermax.space.presets import LENGTH
from supermax.tasks.space_values import always_windows
from supermax.tasks.text_length import counted_lengths, sample_size
from supermax.training.config import TextConfig
from supermax.training.data.splits import Splits
from supermax.training.models.sources import Source
from supermax.training.prepare import max_input_length

_SHOWN = 5  # sentences


@dataclass(frozen=True)
class Cut:
    """Number of texts that are truncated with an encoder at a length."""

    encoder: str
    length: int
    """Maximum length in tokens: of the space, or of the encoder if that is smaller."""
    texts: int
    """Truncated texts."""
    of: int
    """Number of all texts."""
    sampled: bool
    """True: `texts` is extrapolated from a sample."""
    windows: bool = False
    """True: the texts become windows instead of being truncated."""

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
    """Count the truncated texts of each encoder at each length of a space.

    Texts of span examples are never truncated: they are split into windows. The sample of texts
    is smaller with more encoders; `beside` counts those that are not among `sources`.
    """
    targets = [target for target in agent_of(agent).targets if not target.windowed]
    examples = [e for part in splits.parts for target in targets for e in part.of(target)]
    if not examples:
        return []
    sample = sample_size(len(sources) + beside)
    cuts: list[Cut] = []
    for source in sources:
        lengths = counted_lengths(examples, source, splits, cache, sample)
        most_tokens = max_input_length(source)
        cuts += (
            Cut(source.name, length, cut, len(examples), lengths.sampled, always_windows(space))
            for length in dict.fromkeys(min(n, most_tokens) for n in lengths_in(space))
            if (cut := lengths.longer(length))
        )
    return cuts


def lengths_in(space: Space) -> list[int]:
    """Return lengths of a space in ascending order: choices, or bounds and default of a range."""
    if LENGTH not in space.parameters:
        return [TextConfig().max_length]
    found: set[int] = set()
    for branch in space.parameters[LENGTH].branches:
        ends = branch.choices if isinstance(branch, Categorical) else (branch.low, branch.high)
        found |= {int(n) for n in (*ends, branch.default) if isinstance(n, int | float)}
    return sorted(found)


def truncation_notices(cuts: Sequence[Cut]) -> list[str]:
    """Return a sentence for each set of encoders that truncate alike, or split texts into windows
    alike, those with most texts first."""
    if not cuts:
        return []
    by_encoder: dict[str, list[Cut]] = {}
    for cut in cuts:
        by_encoder.setdefault(cut.encoder, []).append(cut)
    alike: dict[str, list[str]] = {}
    for encoder, its_cuts in sorted(by_encoder.items(), key=lambda item: -item[1][0].texts):
        alike.setdefault(", ".join(map(str, its_cuts)), []).append(encoder)
    verb, rest = ("split", " into windows") if cuts[0].windows else ("truncate", "")
    lines = [
        f"Of {cuts[0].of:,} texts to classify, {', '.join(names)} "
        f"{verb}{'s' if len(names) == 1 else ''} {words}{rest}."
        for words, names in alike.items()
    ]
    hidden = sum(len(names) for names in list(alike.values())[_SHOWN:])
    return lines[:_SHOWN] + [f"{counted(hidden, 'more encoder')} {verb} fewer."] * (hidden > 0)
