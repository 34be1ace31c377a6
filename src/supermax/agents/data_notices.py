"""Facts about the data that a person should know before the first trial, as sentences."""

from __future__ import annotations

from collections import Counter

from supermax.training.data.columns import PARTS
from supermax.training.data.examples import Corpus
from supermax.training.data.splits import Splits, same, shared_texts
from supermax.words import counted

_FEW = 20  # rows to judge by


def weaknesses(splits: Splits) -> list[str]:
    """Say what was left out, and what makes the values of a search say little."""
    return [
        *_detected(splits.train),
        *_unlabelled(splits.train),
        *_shared(splits),
        *_undivided(splits),
        *_rare(splits),
    ]


def _detected(corpus: Corpus) -> list[str]:
    if not corpus.detected:
        return []
    return [
        f"{corpus.name} is not UTF-8. It is read as {corpus.detected}; if words look wrong, set "
        f"data.encoding to another."
    ]


def _unlabelled(corpus: Corpus) -> list[str]:
    """Rows that were left out of all splits."""
    notices = []
    for left in corpus.unlabelled:
        rows = counted(left.rows, "row", "rows")
        of = f" of the {left.part} split" if left.part else ""
        why = "cannot be scored and " if left.part in PARTS[1:] else ""
        notices.append(
            f"{rows}{of} in {left.file} without a label {why}{_is(left.rows)} left out: "
            f"`supermax predict` answers such rows."
        )
    return notices


def _shared(splits: Splits) -> list[str]:
    """Texts that stand in several splits, where the data came split."""
    notices, shared = [], shared_texts(splits)
    for part, corpus, others in (
        ("validation", splits.validation, "train"),
        ("test", splits.test, "train or validation"),
    ):
        if count := shared[part]:
            texts = counted(len({same(e.text) for e in corpus.examples}), "text", "texts")
            stand = "stands" if count == 1 else "stand"
            notices.append(
                f"{count:,} of {texts} of the {part} split also {stand} in {others} (letter case "
                f"and white space aside), so metrics on it are optimistic."
            )
    return notices


def _undivided(splits: Splits) -> list[str]:
    if not splits.undivided:
        return []
    sizes = [len(part.examples) for part in splits.parts]
    shares = (f"{part} {size / sum(sizes):.0%}" for part, size in zip(PARTS, sizes, strict=True))
    return [
        f"Rows that share a group or a text stay in one split, and the largest such set makes "
        f"{splits.undivided:.0%} of the data. The splits hold: {', '.join(shares)}."
    ]


def _rare(splits: Splits) -> list[str]:
    """Classes that a split lacks, and splits with few rows."""
    notices = []
    names = splits.train.label_names
    for what, part in zip(PARTS, splits.parts, strict=True):
        if not part.classes:
            continue
        counts = Counter(example.label for example in part.classes)
        missing = [name for i, name in enumerate(names) if not counts[i]]
        if missing:
            notices.append(f"The {what} split has no row of {', '.join(missing)}.")
        if len(part.classes) < _FEW and what != "train":
            notices.append(
                f"The {what} split has {len(part.classes)} rows: too few to tell trials apart."
            )
    return notices


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
