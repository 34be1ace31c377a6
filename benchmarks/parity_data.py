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
"""Articles of SQuAD that are held out."""
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


_SQUAD = ("has_answer_f1", "has_answer_exact")
TASKS = {
    "emotion": Task("tweeteval-emotion", "criteria", ("macro_f1",), 128, 5, rate=1e-4),
    "irony": Task("tweeteval-irony", "criteria", ("macro_f1",), 128, 5, rate=1e-4),
    "squad": Task("squad2-dev", "evidence", _SQUAD, 384, 4),
    "squad-share": Task("squad2-dev", "share", ("macro_f1", *_SQUAD), 384, 3),
    "squad-joint": Task("squad2-dev", "joint", ("macro_f1", *_SQUAD), 384, 3),
}


@dataclass(frozen=True)
class Row:
    text: str
    label: int
    question: str = ""
    start: int = -1
    """Where the answer begins; -1: there is none."""
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
        return _squad(table)
    labels = sorted({line["label"] for line in table})
    rows = [
        Row(line["text"], labels.index(line["label"]), group=str(i), split=line["split"])
        for i, line in enumerate(table)
    ]
    held = {"val", "validation", "dev"}
    return [r for r in rows if r.split == "train"], [r for r in rows if r.split in held], labels


def _squad(table: Sequence[dict[str, str]]) -> tuple[list[Row], list[Row], list[str]]:
    """Questions of some articles are held out. The class is whether there is an answer."""
    titles = sorted({line["title"] for line in table})
    random.Random(0).shuffle(titles)
    held = set(titles[:HELD_OUT])
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
    """Lower case, without punctuation and articles, split at white space."""
    lower = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", lower).split()


def answer_f1(predicted: str, gold: str) -> float:
    """Token F1 of SQuAD 2.0; of an empty answer 1 where both are empty."""
    ours, theirs = normalised(predicted), normalised(gold)
    if not ours or not theirs:
        return float(ours == theirs)
    common = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs))


def answer_metrics(rows: Sequence[Row], answers: Sequence[tuple[str, float]]) -> dict[str, float]:
    """`answers`: each row's best answer, and by how much its score beats that of no answer."""
    known = [(a, row.answer) for (a, _), row in zip(answers, rows, strict=True) if row.answer]
    given = [a if margin > 0 else "" for a, margin in answers]
    return {
        "has_answer_f1": sum(answer_f1(a, gold) for a, gold in known) / len(known),
        "has_answer_exact": sum(normalised(a) == normalised(g) for a, g in known) / len(known),
        "squad_f1": sum(answer_f1(a, r.answer) for a, r in zip(given, rows, strict=True))
        / len(rows),
    }
