"""Stratified splits into train, validation and test, where no group and no text is in two splits.

Groups with a text in common are joined into sets. Sets are assigned greedily, those with the
rarest strata and the largest first, each to the split that lacks most of its strata.
"""

from __future__ import annotations

import hashlib
import math
import random
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from supermax._util.text import counted
from supermax.agents.agent import TARGETS
from supermax.errors import UserError
from supermax.training.data.bad_rows import OnBad
from supermax.training.data.columns import PARTS, Columns
from supermax.training.data.examples import Corpus, Example
from supermax.training.data.inputs.reading import Source
from supermax.training.data.read_options import ReadOptions
from supermax.training.data.tables import Table, open_table

_FEWEST = 0.5  # expected examples of a stratum in the smallest split; rarer strata are ignored
Strata = Counter[tuple[str, ...]]


@dataclass(frozen=True)
class Splits:
    """Corpora for training, validation and test. A search never uses the test split."""

    train: Corpus
    validation: Corpus
    test: Corpus
    joined: int = 0
    """Groups that were joined with another one, as they have a text in common."""
    undivided: float = 0.0
    """Share of the examples in the largest set of joined groups, if it is larger than the smallest
    requested split; otherwise 0."""
    drawn: bool = False
    """True: the data came with splits but no validation rows, which were drawn from train."""

    @property
    def seen(self) -> Corpus:
        """Training and validation examples: all that a search may use."""
        seen = self.train.with_more(self.validation)
        return replace(seen, unlabelled=(), detected="")

    @property
    def parts(self) -> tuple[Corpus, Corpus, Corpus]:
        return self.train, self.validation, self.test

    @property
    def fingerprint(self) -> str:
        """Digest that changes when an example changes or moves to another split."""
        facts = "-".join(part.fingerprint for part in self.parts)
        return hashlib.sha256(facts.encode()).hexdigest()[:16]


def split(
    corpus: Corpus, *, validation: float = 0.15, test: float = 0.15, seed: int = 0
) -> Splits:
    """Split a corpus by shares; a share of 0 gives an empty split.

    The same corpus and seed give the same splits. Raises UserError if there are too few groups.
    """
    shares = (1 - validation - test, validation, test)
    _check(shares)
    set_of = joined(corpus)
    sets = _strata_of_sets(corpus, set_of)
    wanted = [share for share in shares if share > 0]
    if len(sets) < len(wanted):
        raise UserError(_too_few(corpus, len(set_of), len(sets), len(wanted)))
    part_of = _assign(sets, shares, seed)

    def part(index: int) -> Corpus:
        return corpus.only(lambda example: part_of[set_of[example.group]] == index)

    sizes = Counter(set_of[example.group] for example in corpus.examples)
    largest = max(sizes.values()) / sizes.total()
    return Splits(
        part(0),
        part(1),
        part(2),
        joined=len(set_of) - len(sets),
        undivided=largest if largest > min(wanted) else 0.0,
    )


def cross_validation(
    splits: Splits, folds: int, seed: int = 0
) -> tuple[tuple[Corpus, Corpus], ...]:
    """Return the training and validation corpus of each fold, without the test split.

    Folds are stratified, and no group and no text is in two of them. Raises UserError if there are
    too few groups.
    """
    corpus = splits.seen
    set_of = joined(corpus)
    sets = _strata_of_sets(corpus, set_of)
    if len(sets) < folds:
        raise UserError(_too_few(corpus, len(set_of), len(sets), folds))
    fold_of = _assign(sets, [1 / folds] * folds, seed)

    def fold(number: int) -> tuple[Corpus, Corpus]:
        def held_out(example: Example) -> bool:
            return fold_of[set_of[example.group]] == number

        return corpus.only(lambda example: not held_out(example)), corpus.only(held_out)

    return tuple(map(fold, range(folds)))


def joined(corpus: Corpus) -> dict[str, str]:
    """Return the set of every group, named by the first of its groups.

    Groups with a text in common, directly or through other groups, are in one set (union-find).
    """
    parents: dict[str, str] = {}

    def root(group: str) -> str:
        while (parent := parents.setdefault(group, group)) != group:
            parents[group] = parents[parent]
            group = parents[group]
        return group

    first: dict[bytes, str] = {}
    for example in corpus.examples:
        own = root(example.group)
        other = root(first.setdefault(same_text(example.text), example.group))
        parents[max(own, other)] = min(own, other)
    return {group: root(group) for group in parents}


def same_text(text: str) -> bytes:
    """Return a digest that ignores letter case, white space and compatibility forms."""
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return hashlib.blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _too_few(corpus: Corpus, groups: int, sets: int, wanted: int) -> str:
    count = counted(groups, "group", "groups")
    why = ""
    if sets < groups:
        why = f", which share texts and so make {counted(sets, 'set', 'sets')} that stay together"
    return (
        f"{corpus.name} has {count} of examples{why}, too few to split in {wanted}: bring more "
        f"data, or ask for fewer parts."
    )


def read_splits(
    path: Source,
    columns: Columns,
    *,
    name: str | None = None,
    labels: Sequence[str] | None = None,
    on_bad: OnBad = "stop",
    encoding: str | None = None,
    numeric: bool = False,
) -> Splits:
    """Read a table that comes with its splits: in the column `columns.split`, or as those of a
    folder or a dataset.

    No row is moved: `shared_texts` counts texts that are in two splits.
    """
    options = ReadOptions(name, labels, on_bad, encoding, own_splits=True)
    table = open_table(path, columns, options, numeric=numeric)
    if not table.part_of:
        raise UserError("No column is mapped as split; map one, or use read_table and split.")
    return splits_of(table)


def splits_of(table: Table) -> Splits:
    """Return the splits that the rows of a table came with."""
    train, validation, test = (table.part(wanted) for wanted in PARTS)
    return Splits(train, validation, test)


def with_validation(splits: Splits, share: float, seed: int = 0) -> Splits:
    """Return the splits with validation rows: if the file has none, labelled or not, draw `share`
    of train. The test split does not change."""
    unlabelled = any(rows.part == "validation" for rows in splits.train.unlabelled)
    if splits.validation.examples or unlabelled or not splits.train.examples or not share:
        return splits
    drawn = split(splits.train, validation=share, test=0.0, seed=seed)
    return replace(drawn, test=splits.test, drawn=True)


def shared_texts(splits: Splits) -> dict[str, int]:
    """Count the distinct texts of validation that are also in train, and those of test that are
    also in train or validation, as a refit trains on both."""
    train, validation, test = ({same_text(e.text) for e in part.examples} for part in splits.parts)
    return {"validation": len(validation & train), "test": len(test & (train | validation))}


def _check(shares: tuple[float, float, float]) -> None:
    train, *others = shares
    if min(others) < 0 or not train > 1e-9:
        raise UserError(
            "The shares of validation and test must be at least 0 and together below 1, so that "
            "something is left to train on."
        )


def _strata_of_sets(corpus: Corpus, set_of: Mapping[str, str]) -> dict[str, Strata]:
    """Count the strata of every set. The result does not depend on the order of the rows."""
    sets: dict[str, Strata] = {}
    for target in TARGETS:
        for example in corpus.of(target):
            own = sets.setdefault(set_of[example.group], Counter())
            for stratum in _strata(target.kind, example):
                own[stratum] += 1
    return dict(sorted(sets.items()))


def _strata(kind: str, example: Example) -> list[tuple[str, ...]]:
    """Return the stratum, and coarser ones for data in which every row has its own question."""
    if example.labels is not None:
        labels = [(kind, "label", str(label)) for label in example.labels]
        return [(kind,), *labels, (kind, "set", str(example.labels))]
    if example.entities is not None:
        types = {str(entity.type) for entity in example.entities}
        return [(kind,), *((kind, "type", each) for each in sorted(types or {"none"}))]
    spans = "-" if example.spans is None else str(bool(example.spans))
    return [(kind,), (kind, str(example.label), spans), (kind, "stratum", example.stratum)]


def _assign(groups: Mapping[str, Strata], shares: Sequence[float], seed: int) -> dict[str, int]:
    """Return the index of the split of each set of groups."""
    totals: Strata = Counter()
    for own in groups.values():
        _add(totals, own)
    smallest = min(share for share in shares if share > 0)
    kept = {stratum for stratum, n in totals.items() if n * smallest >= _FEWEST}
    trimmed = {
        g: Counter({s: n for s, n in own.items() if s in kept}) for g, own in groups.items()
    }
    allocation = _Allocation(shares, totals)
    order = list(trimmed)
    random.Random(seed).shuffle(order)
    order.sort(key=lambda group: _rarity(trimmed[group], totals))
    parts = {}
    for group in order:
        parts[group] = allocation.best(trimmed[group])
        allocation.put(trimmed[group], parts[group])
    _fill_empty(parts, trimmed, allocation)
    return parts


def _add(counts: Strata, more: Strata) -> None:
    """Add counts like `Counter.update`, which is slow for the few counts of a set."""
    for stratum, n in more.items():
        counts[stratum] += n


def _rarity(own: Strata, totals: Strata) -> tuple[int, int]:
    return min((totals[stratum] for stratum in own), default=0), -own.total()


class _Allocation:
    """Strata that each split holds so far, compared with its share."""

    def __init__(self, shares: Sequence[float], totals: Strata) -> None:
        self.shares, self.totals = shares, totals
        self.held: list[Strata] = [Counter() for _ in shares]
        self.wanted = [part for part, share in enumerate(shares) if share > 0]

    def cost(self, own: Strata, part: int) -> float:
        """Return the growth of a split's chi-square distance to its share with one more set.

        The sum is exact, so it does not depend on the order of the rows.
        """
        share, held, terms = self.shares[part], self.held[part], []
        for stratum, n in own.items():
            wanted = share * self.totals[stratum]
            terms.append(n * (2 * (held[stratum] - wanted) + n) / wanted)
        return math.fsum(terms)

    def best(self, own: Strata) -> int:
        return min(self.wanted, key=lambda part: self.cost(own, part))

    def put(self, own: Strata, part: int) -> None:
        _add(self.held[part], own)

    def take(self, own: Strata, part: int) -> None:
        self.held[part].subtract(own)


def _fill_empty(
    parts: dict[str, int], groups: Mapping[str, Strata], allocation: _Allocation
) -> None:
    """Move the smallest set of the split with most sets to a split that got none."""
    for part in allocation.wanted:
        if part in parts.values():
            continue
        largest = Counter(parts.values()).most_common(1)[0][0]
        own = [group for group, where in parts.items() if where == largest]
        group = min(own, key=lambda name: groups[name].total())
        allocation.take(groups[group], largest)
        allocation.put(groups[group], part)
        parts[group] = part
