"""Data, settings and metrics that both sides of parity.py share. Nothing here imports Supermax.

    file ──read()──▶ rows ──split()──▶ training rows, held-out rows

Metrics are written from the published rules: macro F1 as scikit-learn computes it, token F1 and
exact match as SQuAD 2.0 defines them.
"""

from __future__ import annotations

import collections
import csv
import gzip
import io
import random
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HELD_OUT = 3
"""Number of held-out articles of SQuAD."""
CLIP, WARMUP, DECAY, DROPOUT = 1.0, 0.1, 0.01, 0.1


@dataclass(frozen=True)
class Task:
    """One comparison: data file, agent, and the settings of both sides."""

    file: str
    agent: str
    metrics: tuple[str, ...]
    length: int
    epochs: int
    batch: int = 16
    rate: float = 5e-5
    stride: int = 128
    max_answer: int = 30
    held_from: int = 0
    """Index of the first of three held-out articles of SQuAD."""


_SQUAD = ("has_answer_f1", "has_answer_exact", "has_answer_position_f1", "best_squad_f1")
TASKS = {
    "emotion": Task("tweeteval-emotion", "criteria", ("macro_f1",), 128, 5, rate=1e-4),
    "irony": Task("tweeteval-irony", "criteria", ("macro_f1",), 128, 5, rate=1e-4),
    "squad": Task("squad2-dev", "evidence", _SQUAD, 384, 4),
    "squad-others": Task("squad2-dev", "evidence", _SQUAD, 384, 4, held_from=HELD_OUT),
    "squad-share": Task("squad2-dev", "share", ("macro_f1", *_SQUAD), 384, 3),
    "squad-joint": Task("squad2-dev", "joint", ("macro_f1", *_SQUAD), 384, 3),
}


@dataclass(frozen=True)
class Row:
    text: str
    label: int
    question: str = ""
    start: int = -1
    """First character of the answer; -1: no answer."""
    answer: str = ""
    group: str = ""
    split: str = ""


def read(folder: Path, task: Task) -> tuple[list[Row], list[Row], list[str]]:
    """Return training rows, held-out rows and label names."""
    path = next(
        p for p in (folder / f"{task.file}.csv", folder / f"{task.file}.csv.gz") if p.exists()
    )
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    table = list(csv.DictReader(io.StringIO(text, newline="")))
    if "passage" in table[0]:
        return _squad(table, task.held_from)
    labels = sorted({line["label"] for line in table})
    rows = [
        Row(line["text"], labels.index(line["label"]), group=str(i), split=line["split"])
        for i, line in enumerate(table)
    ]
    held = {"val", "validation", "dev"}
    return [r for r in rows if r.split == "train"], [r for r in rows if r.split in held], labels


def _squad(
    table: Sequence[dict[str, str]], held_from: int
) -> tuple[list[Row], list[Row], list[str]]:
    """Hold out the questions of three articles. The class is whether there is an answer."""
    titles = sorted({line["title"] for line in table})
    random.Random(0).shuffle(titles)
    held = set(titles[held_from : held_from + HELD_OUT])
    rows = [
        Row(line["passage"], int(bool(line["answer"])), line["asked"],
            int(float(line["start"])) if line["answer"] else -1, line["answer"], line["title"])
        for line in table
    ]  # fmt: skip
    train = [row for row in rows if row.group not in held]
    return train, [row for row in rows if row.group in held], ["none", "answer"]


# Metrics.


def macro_f1(true: Sequence[int], predicted: Sequence[int]) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(true, predicted, average="macro"))


def normalised(text: str) -> list[str]:
    """Return tokens: lower case, without punctuation and articles, split at white space."""
    lower = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", lower).split()


def answer_f1(predicted: str, gold: str) -> float:
    """Return the token F1 of SQuAD 2.0; if one is empty, 1 if both are, else 0."""
    ours, theirs = normalised(predicted), normalised(gold)
    if not ours or not theirs:
        return float(ours == theirs)
    common = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs))


def position_f1(text: str, predicted: tuple[int, int], gold: tuple[int, int]) -> float:
    """Return the F1 of the words that spans touch, by position, not by text."""
    words = [match.span() for match in re.finditer(r"\S+", text)]
    ours, theirs = (
        {i for i, (begin, end) in enumerate(words) if begin < b and end > a}
        for a, b in (predicted, gold)
    )
    return 2 * len(ours & theirs) / max(1, len(ours) + len(theirs))


@dataclass(frozen=True)
class Answer:
    """Best span of a row, and the margin of its score over that of no answer."""

    begin: int
    end: int
    margin: float


def answer_metrics(rows: Sequence[Row], answers: Sequence[Answer]) -> dict[str, float]:
    """Return F1 and exact match of rows with an answer; F1 of all with the best threshold."""
    f1, exact, positions, changes = [], [], [], []
    for row, answer in zip(rows, answers, strict=True):
        given = row.text[answer.begin : answer.end]
        score = answer_f1(given, row.answer)
        changes.append((answer.margin, score - float(not row.answer)))
        if row.answer:
            gold = (row.start, row.start + len(row.answer))
            f1.append(score)
            exact.append(normalised(given) == normalised(row.answer))
            positions.append(position_f1(row.text, (answer.begin, answer.end), gold))
    # Start with no answers, then add them by decreasing margin.
    total = best = float(sum(not row.answer for row in rows))
    for _, change in sorted(changes, key=lambda change: -change[0]):
        total += change
        best = max(best, total)
    return {
        "has_answer_f1": sum(f1) / len(f1),
        "has_answer_exact": sum(exact) / len(exact),
        "has_answer_position_f1": sum(positions) / len(positions),
        "best_squad_f1": best / len(rows),
    }
