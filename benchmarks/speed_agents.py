"""Agents in speed.py: their labels on the same texts, and losses and metrics of the peers.

Pair ──labelled()──▶ examples of an agent ──label_of()──▶ label of a row ──loss_of(), metric_of()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from supermax.training.data.entities import Entity
from supermax.training.data.examples import Corpus, Example
from supermax.training.models.assembly import Outputs

IGNORED = -100


@dataclass(frozen=True)
class Pair:
    """Criterion and text, of which the first sentence decides the class."""

    example: Example
    first: int
    """Characters of the first sentence."""
    sentences: int


def labelled(agent: str, pairs: Sequence[Pair], names: tuple[str, ...]) -> Corpus:
    """Return the examples of an agent: the same texts, with labels that can be learnt from them.

    Classes, spans and numbers have the criterion as their question; labels and entities are those
    of a text alone.
    """
    found: dict[str, list[Example]] = {}
    questions = sorted({pair.example.question for pair in pairs})
    for pair in pairs:
        for kind, example in _examples(agent, pair, questions):
            found.setdefault(kind, []).append(example)
    known = {"multilabel": tuple(questions), "token-classification": ("sentence",)}
    parts: Any = {kind: tuple(examples) for kind, examples in found.items()}
    return Corpus("pairs", () if agent == "regression" else known.get(agent, names), **parts)


def _examples(agent: str, pair: Pair, questions: list[str]) -> list[tuple[str, Example]]:
    example, is_positive = pair.example, bool(pair.example.label)
    bare = replace(example, label=None)
    spans = replace(bare, id=f"{example.id} span", spans=((0, pair.first),) if is_positive else ())
    if agent == "evidence":
        return [("spans", spans)]
    if agent == "regression":
        return [("numbers", replace(bare, value=float(pair.sentences)))]
    alone = replace(bare, question="")
    if agent == "multilabel":
        labels = (questions.index(example.question),) if is_positive else ()
        return [("label_sets", replace(alone, labels=labels))]
    if agent == "token-classification":
        entities = (Entity(0, pair.first, 0),) if is_positive else ()
        return [("entities", replace(alone, entities=entities))]
    classes = [("classes", example)]
    return classes if agent == "criteria" else [*classes, ("spans", spans)]


def label_of(agent: str, example: Example, encoded: Any, labels: int) -> Any:
    """Return the label of a row, from its encoding: that of one example in a list."""
    if agent == "multilabel":
        return [float(i in (example.labels or ())) for i in range(labels)]
    if agent == "regression":
        return example.value
    if agent == "token-classification":
        return _tags(example, encoded)
    if agent == "criteria":
        return example.label
    span = [IGNORED, IGNORED] if example.spans is None else _tokens_of(example, encoded)
    return span if agent == "evidence" else [_or_ignored(example.label), *span]


def _or_ignored(label: int | None) -> int:
    return IGNORED if label is None else label


def _tokens_of(example: Example, encoded: Any) -> list[int]:
    """Return the first and last token of the span; 0 and 0 if there is none or it is cut off."""
    if not example.spans:
        return [0, 0]
    begin, end = example.spans[0]
    tokens = [encoded.char_to_token(0, char, sequence_index=1) for char in (begin, end - 1)]
    return [0, 0] if None in tokens else tokens


def _tags(example: Example, encoded: Any) -> list[int]:
    """Return the tag of each word at its first token: O, B, I; others are ignored."""
    tags, before = [], None
    _, end, _ = example.entities[0] if example.entities else (0, 0, 0)
    for word, (begin, _) in zip(encoded.word_ids(0), encoded["offset_mapping"][0], strict=True):
        if word is None or word == before:
            tags.append(IGNORED)
        else:
            tags.append(0 if begin >= end else 1 if begin == 0 else 2)
        before = word
    return tags


# Losses.


def _of_span(outputs: Outputs, labels: Tensor) -> Tensor:
    assert outputs.starts is not None
    assert outputs.ends is not None
    return (_mean(outputs.starts, labels[:, 0]) + _mean(outputs.ends, labels[:, 1])) / 2


def _mean(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean over rows with a label; 0 if there is none."""
    total = cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")
    return total / (labels != IGNORED).sum().clamp_min(1)


def loss_of(agent: str, outputs: Outputs, labels: Tensor) -> Tensor:
    """Return the usual loss of a batch: that of Supermax with default settings."""
    if agent == "evidence":
        return _of_span(outputs, labels)
    assert outputs.classes is not None
    logits = outputs.classes.float()
    if agent == "multilabel":
        return binary_cross_entropy_with_logits(logits, labels)
    if agent == "regression":
        return mse_loss(logits[:, 0], labels)
    if agent == "token-classification":
        return _mean(logits.flatten(0, 1), labels.flatten())
    if agent == "criteria":
        return cross_entropy(logits, labels)
    return (_mean(logits, labels[:, 0]) + _of_span(outputs, labels[:, 1:])) / 2


def logits_of(outputs: Outputs) -> dict[str, Tensor]:
    """Return the logits of all heads, by name."""
    found = {"logits": outputs.classes, "starts": outputs.starts, "ends": outputs.ends}
    return {name: logits for name, logits in found.items() if logits is not None}


# Metrics.


def metric_of(agent: str) -> Callable[[Any, Any], float]:
    """Return the metric of an evaluation, a function of its logits and labels.

    Those of spans and entities are cheaper than the metrics of Supermax: positions of spans that
    are exactly right, and the macro F1 of the tags of words.
    """
    from sklearn.metrics import f1_score

    def macro_f1(logits: Any, labels: Any) -> float:
        return float(f1_score(labels, logits.argmax(-1), average="macro"))

    def of_labels(logits: Any, labels: Any) -> float:
        return float(f1_score(labels > 0, logits > 0, average="macro", zero_division=0))

    def of_numbers(logits: Any, labels: Any) -> float:
        from scipy import stats  # type: ignore[import-untyped]

        return float(np.nan_to_num(stats.spearmanr(logits[:, 0], labels).statistic))

    def of_tags(logits: Any, labels: Any) -> float:
        known = labels != IGNORED
        return macro_f1(logits[known], labels[known])

    def of_spans(logits: Any, labels: Any) -> float:
        found = np.stack([each.argmax(-1) for each in logits], axis=-1)
        return float((found == labels).all(-1).mean())

    def of_both(logits: Any, labels: Any) -> float:
        known = labels[:, 0] != IGNORED
        return macro_f1(logits[0][known], labels[known, 0])

    known: dict[str, Callable[[Any, Any], float]] = {
        "multilabel": of_labels,
        "regression": of_numbers,
        "token-classification": of_tags,
        "evidence": of_spans,
        "share": of_both,
        "joint": of_both,
    }
    return known.get(agent, macro_f1)
