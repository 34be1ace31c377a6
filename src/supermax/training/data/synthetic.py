"""Synthetic data in the form and the proportions of ReDSM5, with nobody's words in it.

    _plan() ──tasks──▶ tell() ──evidence, explicit negatives──▶ post_of() ──▶ a post around them

Difficulty 0: evidence has clear words, and its absence too. Towards 1, more sentences are about
someone else, negated, about another symptom or vague, and more labels are wrong.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Iterable
from pathlib import Path
from statistics import NormalDist

from supermax.errors import UserError
from supermax.training.data.examples import Corpus
from supermax.training.data.redsm5 import (
    ANNOTATION_COLUMNS,
    ANNOTATIONS,
    POST_COLUMNS,
    POSTS,
    Annotation,
    assemble,
)
from supermax.training.data.sentences import WORDINGS
from supermax.training.data.telling import Task, post_of, tell

_POSTS, _ANNOTATIONS, _PRESENT = 1484, 2058, 427  # of ReDSM5
_LENGTH = NormalDist(5.19, 1.0)  # logarithm of a post's words: mean about 295, longest thousands
_NOISE = 0.12  # at difficulty 1, of the labels "present", and as many of the others


def synthetic(
    posts: int = _POSTS, *, difficulty: float = 0.5, seed: int = 0, max_words: int | None = None
) -> Corpus:
    """A corpus as `read_redsm5` gives it; the same arguments give the same one.

    `max_words` cuts posts down to their annotated sentences and what else fits.
    """
    texts, annotations = _made(posts, difficulty, seed, max_words)
    return assemble("synthetic", texts, annotations)


def write_redsm5(
    folder: str | Path,
    posts: int = _POSTS,
    *,
    difficulty: float = 0.5,
    seed: int = 0,
    max_words: int | None = None,
) -> Path:
    """Writes the same data as the two files of ReDSM5; never over files that are there."""
    folder = Path(folder).expanduser()
    if there := [file for file in (POSTS, ANNOTATIONS) if (folder / file).exists()]:
        raise UserError(f"{folder} already holds {' and '.join(there)}; choose another folder.")
    texts, annotations = _made(posts, difficulty, seed, max_words)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / POSTS, POST_COLUMNS, texts.items())
        columns = (*ANNOTATION_COLUMNS, "explanation")
        _write(folder / ANNOTATIONS, columns, map(_record, annotations))
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}.") from None
    return folder


def _write(path: Path, columns: Iterable[str], records: Iterable[Iterable[object]]) -> None:
    with path.open("x", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(records)


def _record(a: Annotation) -> tuple[object, ...]:
    why = "The writer tells this of themselves." if a.status else "The writer does not tell this."
    return a.post, a.sentence, a.text, a.symptom, a.status, why


def _made(
    posts: int, difficulty: float, seed: int, max_words: int | None
) -> tuple[dict[str, str], list[Annotation]]:
    _check(posts, difficulty, max_words)
    draw = random.Random(seed)
    texts: dict[str, str] = {}
    annotations: list[Annotation] = []
    plan = zip(_plan(posts, difficulty, draw), _lengths(posts, draw), strict=True)
    for number, (tasks, words) in enumerate(plan, 1):
        post = f"p{number:05d}"
        told = tell(tasks, difficulty, draw)
        texts[post], places = post_of(told, min(words, max_words or words), draw)
        for task, sentence in zip(tasks, told, strict=False):  # distractors come last
            index, start = places[sentence]
            span = (start, start + len(sentence))
            annotations.append(
                Annotation(post, f"s{index}", task.symptom, task.status, sentence, span)
            )
    return texts, annotations


def _check(posts: int, difficulty: float, max_words: int | None) -> None:
    wrong = []
    if posts < 1:
        wrong.append("posts is at least 1")
    if not 0 <= difficulty <= 1:
        wrong.append("difficulty is between 0 and 1")
    if max_words is not None and max_words < 1:
        wrong.append("max_words is at least 1")
    if wrong:
        raise UserError("\n  - ".join(["Such data cannot be made:", *wrong]))


def _plan(posts: int, difficulty: float, draw: random.Random) -> list[list[Task]]:
    """For every post, the sentences that are annotated in it; each has at least one."""
    many = max(posts, round(posts * _ANNOTATIONS / _POSTS))
    owners = [*range(posts), *draw.choices(range(posts), k=many - posts)]
    draw.shuffle(owners)
    weights = [wording.weight for wording in WORDINGS.values()]
    symptoms = draw.choices(list(WORDINGS), weights, k=many)
    tasks: list[list[Task]] = [[] for _ in range(posts)]
    for owner, symptom, (shown, status) in zip(
        owners, symptoms, _labels(many, difficulty), strict=True
    ):
        tasks[owner].append(Task(symptom, shown, status))
    for own in tasks:
        draw.shuffle(own)
    return tasks


def _labels(many: int, difficulty: float) -> list[tuple[bool, int]]:
    """What is so and what the label says; as many are wrong of either kind, so that the
    proportion stays."""
    present = max(1, round(many * _PRESENT / _ANNOTATIONS))
    wrong = min(round(present * _NOISE * difficulty), many - present)
    return [
        (i < present, int(i < present - wrong or present <= i < present + wrong))
        for i in range(many)
    ]


def _lengths(posts: int, draw: random.Random) -> list[int]:
    """Words of every post. Evenly spaced quantiles: any seed has its long tail."""
    lengths = [round(math.exp(_LENGTH.inv_cdf((i + 0.5) / posts))) for i in range(posts)]
    draw.shuffle(lengths)
    return lengths
