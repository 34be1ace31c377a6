"""Statistics of a search's data for its report, without any of its texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from supermax._util.text import one_line
from supermax.tasks.truncation import Cut
from supermax.training.data.columns import PARTS
from supermax.training.data.examples import Corpus
from supermax.training.data.names import is_class_name
from supermax.training.data.splits import Splits

MOST_CLASSES = 50
_MOST_CUTS = 40


def data_summary(agent: str, splits: Splits, cuts: Sequence[Cut]) -> dict[str, Any]:
    """Return sizes of the splits, rows by class, text lengths and truncation, ready for JSON."""
    parts = [used_by(agent, corpus) for corpus in splits.parts]
    texts = {e.text for part in parts for e in part.examples}
    return {
        "labels": shown_labels(splits.train) if agent != "evidence" else [],
        "splits": dict(zip(PARTS, map(_sizes, parts), strict=True)),
        "texts": len(texts),
        "words": _quantiles([len(text.split()) for text in texts]),
        "characters": _quantiles([len(text) for text in texts]),
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
    """Return the names of the first classes; `class N` for a name that may be a text."""
    names = [one_line(name) for name in corpus.label_names[:MOST_CLASSES]]
    return [name if is_class_name(name) else f"class {i}" for i, name in enumerate(names)]


def used_by(agent: str, corpus: Corpus) -> Corpus:
    """Return the corpus without the classes or spans that the agent does not use."""
    unused: dict[str, Any] = {"criteria": {"spans": ()}, "evidence": {"classes": ()}}.get(
        agent, {}
    )
    return replace(corpus, **unused)


def _sizes(part: Corpus) -> dict[str, Any]:
    sizes: dict[str, Any] = {
        "rows": len(part.examples),
        "groups": len({e.group for e in part.examples}),
    }
    if part.classes:
        labels = Counter(e.label for e in part.classes)
        sizes["classes"] = [labels[i] for i, _ in enumerate(part.label_names[:MOST_CLASSES])]
    if part.spans:
        answered = sum(bool(e.spans) for e in part.spans)
        sizes["spans"] = {"with": answered, "without": len(part.spans) - answered}
    return sizes


def _quantiles(lengths: Sequence[int]) -> dict[str, int]:
    if not lengths:
        return {}
    middle, high = np.quantile(lengths, (0.5, 0.95))
    return {"median": round(middle), "p95": round(high), "longest": max(lengths)}
