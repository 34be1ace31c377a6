"""Notices about the data, shown before the first trial."""

from __future__ import annotations

from collections import Counter

from supermax._util.text import counted
from supermax.training.data.columns import PARTS
from supermax.training.data.examples import Corpus
from supermax.training.data.splits import Splits, same_text, shared_texts

_FEW_ROWS = 20  # of a split; below it, differences between trials are mostly noise


def weaknesses(splits: Splits) -> list[str]:
    """Return sentences about data that was left out, and about what makes metrics unreliable."""
    return [
        *_detected(splits.train),
        *splits.train.remarks,
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
    """Name rows without a label, which are in no split."""
    notices = []
    for left in corpus.unlabelled:
        of = f" of the {left.part} split" if left.part else ""
        why = "cannot be scored and " if left.part in PARTS[1:] else ""
        notices.append(
            f"{counted(left.rows, 'row')}{of} in {left.file} without a label "
            f"{why}{'is' if left.rows == 1 else 'are'} left out: "
            f"`supermax predict` predicts such rows."
        )
    return notices


def _shared(splits: Splits) -> list[str]:
    """Count texts that occur in several splits, if the data came with its splits."""
    notices, shared = [], shared_texts(splits)
    for part, corpus, others in (
        ("validation", splits.validation, "train"),
        ("test", splits.test, "train or validation"),
    ):
        if count := shared[part]:
            texts = counted(len({same_text(e.text) for e in corpus.examples}), "text")
            occur = "occurs" if count == 1 else "occur"
            notices.append(
                f"{count:,} of {texts} of the {part} split also {occur} in {others} (ignoring "
                f"letter case and white space), so metrics on it are optimistic."
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
    """Name classes that a split lacks, and splits with few rows."""
    notices = []
    names = splits.train.label_names
    for split_name, part in zip(PARTS, splits.parts, strict=True):
        rows = part.classes or part.numbers or part.label_sets or part.entities
        if not rows:
            continue
        counts = Counter(example.label for example in part.classes)
        counts.update(label for example in part.label_sets for label in example.labels or ())
        counts.update(e.type for example in part.entities for e in example.entities or ())
        missing = [name for i, name in enumerate(names) if not counts[i]]
        if missing:
            what = "entity" if part.entities else "row"
            notices.append(f"The {split_name} split has no {what} of {', '.join(missing)}.")
        if len(rows) < _FEW_ROWS and split_name != "train":
            notices.append(
                f"The {split_name} split has {counted(len(rows), 'row')}: too few to tell trials "
                f"apart."
            )
    return notices
