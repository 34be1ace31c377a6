"""Numbers about the data of a search, for its report: never a text of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from supermax.agents.truncation import Cut
from supermax.training.data.columns import PARTS
from supermax.training.data.examples import Corpus
from supermax.training.data.splits import Splits
from supermax.training.words import is_class_name
from supermax.words import one_line

MOST_CLASSES = 50
_MOST_CUTS = 40


def data_summary(agent: str, splits: Splits, cuts: Sequence[Cut]) -> dict[str, Any]:
    """Return sizes of the splits, rows by class, lengths of the texts and cut texts, as JSON has
    them."""
    parts = [used_by(agent, corpus) for corpus in splits.parts]
    texts = {e.text for part in parts for e in part.examples}
    return {
        "labels": shown_labels(splits.train) if agent != "evidence" else [],
        "splits": dict(zip(PARTS, map(_sizes, parts), strict=True)),
        "texts": len(texts),
        "words": _spread([len(text.split()) for text in texts]),
        "characters": _spread([len(text) for text in texts]),
        "cut": [
            {
                "encoder": cut.encoder,
                "length": cut.length,
                "texts": cut.texts,
                "of": cut.of,
                "sampled": cut.sampled,
            }
            for cut in sorted(cuts, key=lambda cut: -cut.texts)[:_MOST_CUTS]
        ],
        "cuts": agent != "evidence",
    }


def shown_labels(corpus: Corpus) -> list[str]:
    """Return the names of the first classes; a number instead of what may be a text."""
    names = [one_line(name) for name in corpus.label_names[:MOST_CLASSES]]
    return [name if is_class_name(name) else f"class {i}" for i, name in enumerate(names)]


def used_by(agent: str, corpus: Corpus) -> Corpus:
    """Return the corpus without what the agent does not learn."""
    drop: dict[str, Any] = {"criteria": {"spans": ()}, "evidence": {"classes": ()}}.get(agent, {})
    return replace(corpus, **drop)


def _sizes(part: Corpus) -> dict[str, Any]:
    found: dict[str, Any] = {
        "rows": len(part.examples),
        "groups": len({e.group for e in part.examples}),
    }
    if part.classes:
        labels = Counter(e.label for e in part.classes)
        found["classes"] = [labels[i] for i, _ in enumerate(part.label_names[:MOST_CLASSES])]
    if part.spans:
        answered = sum(bool(e.spans) for e in part.spans)
        found["spans"] = {"with": answered, "without": len(part.spans) - answered}
    return found


def _spread(lengths: Sequence[int]) -> dict[str, int]:
    if not lengths:
        return {}
    middle, high = np.quantile(lengths, (0.5, 0.95))
    return {"median": round(middle), "p95": round(high), "longest": max(lengths)}
