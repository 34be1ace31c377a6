"""Train, validation and test: no group straddles, and every stratum keeps its share.

Groups are given out one by one, those with the rarest strata and the largest first, each to the
part that lacks most of what it holds.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from supermax.errors import UserError
from supermax.training.data.bad_rows import OnBad
from supermax.training.data.columns import PARTS, Columns
from supermax.training.data.examples import Corpus, Example
from supermax.training.data.tables import open_table
from supermax.words import counted

_FEWEST = 0.5  # examples expected in a part; a stratum with fewer cannot be shared out
Strata = Counter[tuple[str, ...]]


@dataclass(frozen=True)
class Splits:
    """Three corpora without a group in common; a search never looks at the test one."""

    train: Corpus
    validation: Corpus
    test: Corpus


def split(
    corpus: Corpus, *, validation: float = 0.15, test: float = 0.15, seed: int = 0
) -> Splits:
    """The same corpus and seed give the same splits; a share of 0 gives an empty one."""
    shares = (1 - validation - test, validation, test)
    _check(shares)
    groups = _groups(corpus)
    wanted = sum(share > 0 for share in shares)
    if len(groups) < wanted:
        raise UserError(
            f"{corpus.name} has {counted(len(groups), 'group', 'groups')} of examples, too few "
            f"to split in {wanted}: bring more data, or set a share to 0."
        )
    parts = _dealt(groups, shares, seed)
    chosen = [{group for group, part in parts.items() if part == number} for number in range(3)]
    return Splits(*(corpus.restricted_to(own) for own in chosen))


def read_splits(
    path: str | Path,
    columns: Columns,
    *,
    name: str | None = None,
    labels: Sequence[str] | None = None,
    on_bad: OnBad = "stop",
) -> Splits:
    """A table that comes split, by its column `columns.split`."""
    if columns.split is None:
        raise UserError("No column is mapped as split; map one, or use read_table and split.")
    table = open_table(path, columns, name=name, labels=labels, on_bad=on_bad)
    chosen = [{g for g, part in table.part_of.items() if part == wanted} for wanted in PARTS]
    return Splits(*(table.corpus.restricted_to(own) for own in chosen))


def _check(shares: tuple[float, float, float]) -> None:
    train, *others = shares
    if min(others) < 0 or not train > 1e-9:
        raise UserError(
            "The shares of validation and test are at least 0 and together below 1, so that "
            "something is left to train on."
        )


def _groups(corpus: Corpus) -> dict[str, Strata]:
    """What every group holds, in an order of its own whatever the order of the rows."""
    groups: dict[str, Strata] = {}
    for kind, examples in (("classes", corpus.classes), ("spans", corpus.spans)):
        for example in examples:
            groups.setdefault(example.group, Counter()).update(_strata(kind, example))
    return dict(sorted(groups.items()))


def _strata(kind: str, example: Example) -> list[tuple[str, ...]]:
    """The stratum, and coarser ones for when each row has a question of its own."""
    spans = "-" if example.spans is None else str(bool(example.spans))
    return [(kind,), (kind, str(example.label), spans), (kind, "stratum", example.stratum)]


def _dealt(groups: Mapping[str, Strata], shares: Sequence[float], seed: int) -> dict[str, int]:
    """Which part each group goes to."""
    totals = sum(groups.values(), Strata())
    smallest = min(share for share in shares if share > 0)
    kept = {stratum for stratum, n in totals.items() if n * smallest >= _FEWEST}
    trimmed = {
        g: Counter({s: n for s, n in own.items() if s in kept}) for g, own in groups.items()
    }
    table = _Table(shares, totals)
    order = list(trimmed)
    random.Random(seed).shuffle(order)
    order.sort(key=lambda group: _rarity(trimmed[group], totals))
    parts = {group: table.put(trimmed[group], table.best(trimmed[group])) for group in order}
    _filled(parts, trimmed, table)
    return parts


def _rarity(own: Strata, totals: Strata) -> tuple[int, int]:
    return min((totals[stratum] for stratum in own), default=0), -own.total()


class _Table:
    """What each part holds so far, next to what it should."""

    def __init__(self, shares: Sequence[float], totals: Strata) -> None:
        self.shares, self.totals = shares, totals
        self.held: list[Strata] = [Counter() for _ in shares]

    def cost(self, own: Strata, part: int) -> float:
        """How much a part's distance to its shares (chi-square) grows with a group: to the bit
        the same in whatever order its rows came."""
        wanted = {stratum: self.shares[part] * self.totals[stratum] for stratum in own}
        return math.fsum(
            n * (2 * (self.held[part][stratum] - wanted[stratum]) + n) / wanted[stratum]
            for stratum, n in own.items()
        )

    def best(self, own: Strata) -> int:
        return min(self.wanted, key=lambda part: self.cost(own, part))

    @property
    def wanted(self) -> list[int]:
        return [part for part, share in enumerate(self.shares) if share > 0]

    def put(self, own: Strata, part: int) -> int:
        self.held[part].update(own)
        return part

    def take(self, own: Strata, part: int) -> None:
        self.held[part].subtract(own)


def _filled(parts: dict[str, int], groups: Mapping[str, Strata], table: _Table) -> None:
    """Gives a part that got nothing the smallest group of the part that has most."""
    for part in table.wanted:
        if part in parts.values():
            continue
        largest = Counter(parts.values()).most_common(1)[0][0]
        own = [group for group, where in parts.items() if where == largest]
        group = min(own, key=lambda name: groups[name].total())
        table.take(groups[group], largest)
        parts[group] = table.put(groups[group], part)
