"""Data and settings that all sides of parity.py share. Nothing here imports Supermax.

    files ──read()──▶ training rows, held-out rows, names of classes, labels or entity types

| task | files, under these names | from |
|---|---|---|
| emotion, irony | tweeteval-emotion.csv, tweeteval-irony.csv: text, label, split | TweetEval |
| squad… | squad2-dev.csv: passage, asked, answer, start, title | SQuAD 2.0, half of its dev set |
| goemotions | goemotions-ekman-train.tsv, -dev.tsv, goemotions-ekman-labels.txt | data/ekman of the GitHub repository monologg/GoEmotions-pytorch |
| stsb | stsb-en-train.csv, stsb-en-dev.csv | data of PhilipMay/stsb-multi-mt |
| wnut | wnut17train.conll, emerging.dev.conll | leondz/emerging_entities_17 |

All may be compressed (.gz).
"""  # noqa: E501

from __future__ import annotations

import csv
import gzip
import io
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HELD_OUT = 3
"""Number of held-out articles of SQuAD."""
CLIP, WARMUP, DECAY, DROPOUT = 1.0, 0.1, 0.01, 0.1
LABEL_THRESHOLD = 0.5
"""Probability above which a label is predicted."""
MOST_TRAINED, MOST_HELD_OUT = 3000, 2000
"""Rows of goemotions, stsb and wnut that are drawn, so that a training takes seconds on a GPU."""


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
_LABELS = ("macro_f1", "micro_f1", "auprc")
_ENTITIES = ("entity_f1", "entity_precision", "entity_recall")
TASKS = {
    "emotion": Task("tweeteval-emotion", "criteria", ("macro_f1",), 128, 5, rate=1e-4),
    "irony": Task("tweeteval-irony", "criteria", ("macro_f1",), 128, 5, rate=1e-4),
    "goemotions": Task("goemotions-ekman", "multilabel", _LABELS, 128, 5, rate=1e-4),
    "stsb": Task("stsb-en", "regression", ("spearman", "pearson"), 128, 5, rate=1e-4),
    "wnut": Task("wnut17", "token-classification", _ENTITIES, 128, 5, rate=1e-4, stride=32),
    "squad": Task("squad2-dev", "evidence", _SQUAD, 384, 4),
    "squad-others": Task("squad2-dev", "evidence", _SQUAD, 384, 4, held_from=HELD_OUT),
    "squad-share": Task("squad2-dev", "share", ("macro_f1", *_SQUAD), 384, 3),
    "squad-joint": Task("squad2-dev", "joint", ("macro_f1", *_SQUAD), 384, 3),
}


@dataclass(frozen=True)
class Row:
    text: str
    label: int = -1
    """Class; -1: the task has none."""
    question: str = ""
    """First text of a pair."""
    start: int = -1
    """First character of the answer; -1: no answer."""
    answer: str = ""
    group: str = ""
    split: str = ""
    value: float = 0.0
    labels: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    """Words of the text, which a space separates, where they have tags."""
    tags: tuple[str, ...] = ()

    @property
    def word_spans(self) -> list[tuple[int, int]]:
        """Characters [start, end) of each word."""
        spans, start = [], 0
        for word in self.words:
            spans.append((start, start + len(word)))
            start += len(word) + 1
        return spans


Split = tuple[list[Row], list[Row], list[str]]


def read(folder: Path, task: Task) -> Split:
    """Return training rows, held-out rows, and names of classes, labels or entity types."""
    if task.agent == "multilabel":
        names = content(folder / f"{task.file}-labels.txt").split()
        train, held = (content(folder / f"{task.file}-{part}.tsv") for part in ("train", "dev"))
        return _drawn(sets_of_labels(train), sets_of_labels(held), names)
    if task.agent == "regression":
        train, held = (content(folder / f"{task.file}-{part}.csv") for part in ("train", "dev"))
        return _drawn(rated_pairs(train), rated_pairs(held), [])
    if task.agent == "token-classification":
        files = f"{task.file}train.conll", "emerging.dev.conll"
        rows, others = (list(tagged_sentences(content(folder / name))) for name in files)
        return _drawn(rows, others, entity_types([*rows, *others]))
    table = list(csv.DictReader(io.StringIO(content(folder / f"{task.file}.csv"), newline="")))
    return _squad(table, task.held_from) if "passage" in table[0] else _classes(table)


def content(path: Path) -> str:
    """Return the text of a file, or of its compressed version."""
    if path.exists():
        return path.read_bytes().decode()
    return gzip.decompress(path.with_name(f"{path.name}.gz").read_bytes()).decode()


def _drawn(train: Iterable[Row], held: Iterable[Row], names: list[str]) -> Split:
    """Draw rows if there are more than needed: the same ones for all sides and seeds."""
    return _sample(train, MOST_TRAINED), _sample(held, MOST_HELD_OUT), names


def _sample(rows: Iterable[Row], most: int) -> list[Row]:
    found = list(rows)
    return found if len(found) <= most else random.Random(0).sample(found, most)


def sets_of_labels(text: str) -> Iterator[Row]:
    """Yield the rows of GoEmotions: text, numbers of labels with commas, id; without quoting."""
    for line in text.split("\n"):
        if line:
            words, labels, name = line.split("\t")
            yield Row(words, labels=tuple(sorted(map(int, labels.split(",")))), group=name)


def rated_pairs(text: str) -> Iterator[Row]:
    """Yield the rows of STS-B: two sentences and their similarity from 0 to 5, as CSV."""
    for i, (first, second, value) in enumerate(csv.reader(io.StringIO(text, newline=""))):
        yield Row(second, question=first, value=float(value), group=str(i))


def tagged_sentences(text: str) -> Iterator[Row]:
    """Yield the sentences of WNUT17: a word and its tag per line; blank lines separate them."""
    pairs: list[list[str]] = []
    number = 0
    for line in [*text.split("\n"), ""]:
        if line.strip():
            pairs.append(line.split("\t"))
        elif pairs:
            words, tags = zip(*pairs, strict=True)
            yield Row(" ".join(words), words=words, tags=tags, group=str(number))
            number, pairs = number + 1, []


def entity_types(rows: Sequence[Row]) -> list[str]:
    return sorted({tag.partition("-")[2] for row in rows for tag in row.tags if tag != "O"})


def _classes(table: Sequence[dict[str, str]]) -> Split:
    labels = sorted({line["label"] for line in table})
    rows = [
        Row(line["text"], labels.index(line["label"]), group=str(i), split=line["split"])
        for i, line in enumerate(table)
    ]
    held = {"val", "validation", "dev"}
    return [r for r in rows if r.split == "train"], [r for r in rows if r.split in held], labels


def _squad(table: Sequence[dict[str, str]], held_from: int) -> Split:
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
