"""Train, validation and test: no group and no text straddles, and every stratum keeps its share.

Groups that have a text in common are joined, and what is joined is given out whole, those with the
rarest strata and the largest first, each to the part that lacks most of what it holds.
"""

from __future__ import annotations

import hashlib
import math
import random
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    """Three corpora; a search never looks at the test one."""

    train: Corpus
    validation: Corpus
    test: Corpus
    joined: int = 0
    """Groups that were joined with another since they have a text in common."""
    undivided: float = 0.0
    """Share of the examples in the largest set that had to stay together, where it is larger than
    the smallest part that was asked for; otherwise 0."""
    drawn: bool = False
    """The data came split, without validation rows, and these were drawn from train."""

    @property
    def parts(self) -> tuple[Corpus, Corpus, Corpus]:
        return self.train, self.validation, self.test

    @property
    def fingerprint(self) -> str:
        """Changes when an example changes or moves to another part."""
        facts = "-".join(part.fingerprint for part in self.parts)
        return hashlib.sha256(facts.encode()).hexdigest()[:16]


def split(
    corpus: Corpus, *, validation: float = 0.15, test: float = 0.15, seed: int = 0
) -> Splits:
    """The same corpus and seed give the same splits; a share of 0 gives an empty one."""
    shares = (1 - validation - test, validation, test)
    _check(shares)
    set_of = joined(corpus)
    sets = _strata_of_sets(corpus, set_of)
    wanted = [share for share in shares if share > 0]
    if len(sets) < len(wanted):
        raise UserError(_too_few(corpus, len(set_of), len(sets), len(wanted)))
    parts = _dealt(sets, shares, seed)
    own = [[g for g, its in set_of.items() if parts[its] == number] for number in range(3)]
    sizes = Counter(set_of[example.group] for example in corpus.examples)
    largest = max(sizes.values()) / sizes.total()
    return Splits(
        corpus.restricted_to(own[0]),
        corpus.restricted_to(own[1]),
        corpus.restricted_to(own[2]),
        joined=len(set_of) - len(sets),
        undivided=largest if largest > min(wanted) else 0.0,
    )


def joined(corpus: Corpus) -> dict[str, str]:
    """Name for every group the set that it belongs to: groups with a text in common, directly or
    by way of others, are one set, which is named by the first of them."""
    above: dict[str, str] = {}

    def top(group: str) -> str:
        while (parent := above.setdefault(group, group)) != group:
            above[group] = above[parent]
            group = above[group]
        return group

    first: dict[bytes, str] = {}
    for example in corpus.examples:
        mine, other = top(example.group), top(first.setdefault(same(example.text), example.group))
        above[max(mine, other)] = min(mine, other)
    return {group: top(group) for group in above}


def same(text: str) -> bytes:
    """Digest that texts share which differ in letter case, white space or compatibility forms."""
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return hashlib.blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _too_few(corpus: Corpus, groups: int, sets: int, wanted: int) -> str:
    many = counted(groups, "group", "groups")
    why = ""
    if sets < groups:
        why = f", which share texts and so make {counted(sets, 'set', 'sets')} that stay together"
    return (
        f"{corpus.name} has {many} of examples{why}, too few to split in {wanted}: bring more "
        f"data, or set a share to 0."
    )


def read_splits(
    path: str | Path,
    columns: Columns,
    *,
    name: str | None = None,
    labels: Sequence[str] | None = None,
    on_bad: OnBad = "stop",
    encoding: str | None = None,
) -> Splits:
    """A table that comes split, by its column `columns.split`. No row is moved: `shared_texts`
    counts what stands in two parts."""
    if columns.split is None:
        raise UserError("No column is mapped as split; map one, or use read_table and split.")
    table = open_table(path, columns, name=name, labels=labels, on_bad=on_bad, encoding=encoding)
    train, validation, test = (table.part(wanted) for wanted in PARTS)
    return Splits(train, validation, test)


def with_validation(splits: Splits, share: float, seed: int = 0) -> Splits:
    """Return splits that have validation rows: where the file has none, labelled or not, `share`
    of train. Test rows stay what they are."""
    unlabelled = any(rows.part == "validation" for rows in splits.train.unlabelled)
    if splits.validation.examples or unlabelled or not splits.train.examples or not share:
        return splits
    dealt = split(splits.train, validation=share, test=0.0, seed=seed)
    return replace(dealt, test=splits.test, drawn=True)


def shared_texts(splits: Splits) -> dict[str, int]:
    """Count the distinct texts of validation that stand in train too, and those of test that stand
    in train or validation, from both of which a refit learns."""
    train, validation, test = ({same(e.text) for e in part.examples} for part in splits.parts)
    return {"validation": len(validation & train), "test": len(test & (train | validation))}


def _check(shares: tuple[float, float, float]) -> None:
    train, *others = shares
    if min(others) < 0 or not train > 1e-9:
        raise UserError(
            "The shares of validation and test are at least 0 and together below 1, so that "
            "something is left to train on."
        )


def _strata_of_sets(corpus: Corpus, set_of: Mapping[str, str]) -> dict[str, Strata]:
    """Count what every set holds, in an order of its own whatever the order of the rows."""
    sets: dict[str, Strata] = {}
    for kind, examples in (("classes", corpus.classes), ("spans", corpus.spans)):
        for example in examples:
            own = sets.setdefault(set_of[example.group], Counter())
            for stratum in _strata(kind, example):
                own[stratum] += 1
    return dict(sorted(sets.items()))


def _strata(kind: str, example: Example) -> list[tuple[str, ...]]:
    """The stratum, and coarser ones for when each row has a question of its own."""
    spans = "-" if example.spans is None else str(bool(example.spans))
    return [(kind,), (kind, str(example.label), spans), (kind, "stratum", example.stratum)]


def _dealt(groups: Mapping[str, Strata], shares: Sequence[float], seed: int) -> dict[str, int]:
    """Which part each group goes to."""
    totals: Strata = Counter()
    for own in groups.values():
        _add(totals, own)
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


def _add(counts: Strata, more: Strata) -> None:
    """As `Counter.update`, which is slow for the few counts of a set."""
    for stratum, n in more.items():
        counts[stratum] += n


def _rarity(own: Strata, totals: Strata) -> tuple[int, int]:
    return min((totals[stratum] for stratum in own), default=0), -own.total()


class _Table:
    """What each part holds so far, next to what it should."""

    def __init__(self, shares: Sequence[float], totals: Strata) -> None:
        self.shares, self.totals = shares, totals
        self.held: list[Strata] = [Counter() for _ in shares]
        self.wanted = [part for part, share in enumerate(shares) if share > 0]

    def cost(self, own: Strata, part: int) -> float:
        """How much a part's distance to its shares (chi-square) grows with a group: to the bit
        the same in whatever order its rows came."""
        share, held, terms = self.shares[part], self.held[part], []
        for stratum, n in own.items():
            wanted = share * self.totals[stratum]
            terms.append(n * (2 * (held[stratum] - wanted) + n) / wanted)
        return math.fsum(terms)

    def best(self, own: Strata) -> int:
        return min(self.wanted, key=lambda part: self.cost(own, part))

    def put(self, own: Strata, part: int) -> int:
        _add(self.held[part], own)
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
