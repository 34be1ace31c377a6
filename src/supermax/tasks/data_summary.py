"""Statistics of a search's data for its report, without any of its texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TypedDict

import numpy as np

from supermax._util.text import one_line
from supermax.agents import agent_of
from supermax.tasks.truncation import Cut
from supermax.training.data.columns import PARTS
from supermax.training.data.examples import Corpus
from supermax.training.data.names import is_class_name
from supermax.training.data.splits import Splits

MOST_CLASSES = 50
_MOST_CUTS = 40


class SplitSizes(TypedDict, total=False):
    """Sizes of a split. Without rows of a kind, its key is missing."""

    rows: int
    groups: int
    classes: list[int]
    """Rows of each class, or with each label."""
    unlabelled: int
    """Rows that have none of the labels."""
    spans: dict[str, int]
    """Rows `with` and `without` an answer."""
    numbers: dict[str, float]
    """Mean, standard deviation, lowest and highest number."""
    entities: list[int]
    """Entities of each type."""


def data_summary(agent: str, splits: Splits, cuts: Sequence[Cut]) -> dict[str, object]:
    """Return sizes of the splits, rows by class, text lengths and truncation, ready for JSON."""
    parts = [corpus.used_by(agent) for corpus in splits.parts]
    its = agent_of(agent)
    texts = {e.text for part in parts for e in part.examples}
    return {
        "labels": shown_labels(splits.train) if its.named else [],
        "splits": dict(zip(PARTS, map(_sizes, parts), strict=True)),
        "texts": len(texts),
        "words": _quantiles([len(text.split()) for text in texts]),
        "characters": _quantiles([len(text) for text in texts]),
        "cut": [_cut(cut) for cut in sorted(cuts, key=lambda c: -c.texts) if not cut.windows][
            :_MOST_CUTS
        ],
        "cuts": its.truncates and not any(cut.windows for cut in cuts),
    }


def _cut(cut: Cut) -> dict[str, object]:
    facts = asdict(cut)
    del facts["windows"]  # it is False
    return facts


def shown_labels(corpus: Corpus) -> list[str]:
    """Return the names of the first classes; `class N` for a name that may be a text."""
    names = [one_line(name) for name in corpus.label_names[:MOST_CLASSES]]
    return [name if is_class_name(name) else f"class {i}" for i, name in enumerate(names)]


def _sizes(part: Corpus) -> SplitSizes:
    groups = {example.group for example in part.examples}
    sizes: SplitSizes = {"rows": len(part.examples), "groups": len(groups)}
    if part.classes:
        labels = Counter(e.label for e in part.classes)
        sizes["classes"] = [labels[i] for i, _ in enumerate(part.label_names[:MOST_CLASSES])]
    if part.label_sets:
        labels = Counter(label for e in part.label_sets for label in e.labels or ())
        sizes["classes"] = [labels[i] for i, _ in enumerate(part.label_names[:MOST_CLASSES])]
        sizes["unlabelled"] = sum(not e.labels for e in part.label_sets)
    if part.spans:
        answered = sum(bool(e.spans) for e in part.spans)
        sizes["spans"] = {"with": answered, "without": len(part.spans) - answered}
    if part.numbers:
        values = np.array([e.value for e in part.numbers], dtype=np.float64)
        found = {"mean": values.mean(), "deviation": values.std()}
        found |= {"lowest": values.min(), "highest": values.max()}
        sizes["numbers"] = {name: float(f"{value:.6g}") for name, value in found.items()}
    if part.entities:
        types = Counter(e.type for example in part.entities for e in example.entities or ())
        sizes["entities"] = [types[i] for i, _ in enumerate(part.label_names[:MOST_CLASSES])]
    return sizes


def _quantiles(lengths: Sequence[int]) -> dict[str, int]:
    if not lengths:
        return {}
    middle, high = np.quantile(lengths, (0.5, 0.95))
    return {"median": round(middle), "p95": round(high), "longest": max(lengths)}
