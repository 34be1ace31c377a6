"""Reader of ReDSM5 in its published format: posts, and sentences annotated for symptoms.

The corpus is gated: users bring their own copy. `synthetic` generates data of the same form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from supermax.errors import UserError
from supermax.training.data.bad_rows import BadRows, OnBad, check_on_bad
from supermax.training.data.examples import Corpus, Example
from supermax.training.data.inputs.reading import read_rows
from supermax.training.data.names import is_name, nearest_column
from supermax.training.data.places import Place
from supermax.training.data.rows import Row, Rows, require
from supermax.training.data.spans import Span, find_span, merged

POSTS, ANNOTATIONS = "redsm5_posts.csv", "redsm5_annotations.csv"
POST_COLUMNS = ("post_id", "text")
ANNOTATION_COLUMNS = ("post_id", "sentence_id", "sentence_text", "DSM5_symptom", "status")
LABELS = ("absent", "present")
SYMPTOMS = {
    "DEPRESSED_MOOD": "The writer feels sad, empty or hopeless.",
    "ANHEDONIA": "The writer has lost interest or pleasure in things.",
    "APPETITE_CHANGE": "The writer's appetite or weight has changed.",
    "SLEEP_ISSUES": "The writer sleeps badly, too little or too much.",
    "PSYCHOMOTOR": "The writer is restless or has slowed down.",
    "FATIGUE": "The writer is tired and lacks energy.",
    "WORTHLESSNESS": "The writer feels worthless or guilty.",
    "COGNITIVE_ISSUES": "The writer struggles to concentrate or to decide.",
    "SUICIDAL_THOUGHTS": "The writer has thoughts of death or of ending life.",
    "SPECIAL_CASE": "The writer shows another sign of distress, such as worry or withdrawal.",
}
"""Question for each symptom."""


def is_clinical(corpus: Corpus) -> bool:
    """Return True if a corpus has questions about symptoms: ReDSM5, synthetic data, or a table
    with the same questions."""
    questions = {e.question for e in corpus.examples}
    return bool(questions & {*SYMPTOMS, *SYMPTOMS.values()})


@dataclass(frozen=True)
class Annotation:
    """Sentence of a post that shows a symptom (status 1) or explicitly does not (0)."""

    post: str
    sentence: str
    symptom: str
    status: int
    text: str
    span: Span | None
    """Characters [start, end) of the sentence in its post; None: it is not in the post, and no
    positions are needed."""

    @property
    def id(self) -> str:
        return f"{self.post}/{self.sentence}/{self.symptom}"


def read_redsm5(
    folder: str | Path, *, name: str = "redsm5", on_bad: OnBad = "stop", located: bool = True
) -> Corpus:
    """Read a corpus: class examples from annotations, span examples from posts and symptoms.

    `located`: every sentence must be in its post. Without it, which is enough for `criteria`, a
    post and symptom has no span example if one of its sentences is not in the post.
    """
    check_on_bad(on_bad)
    bad = BadRows()
    posts, annotations = _files(Path(folder).expanduser(), bad)
    complete = [require(posts, POST_COLUMNS, bad), require(annotations, ANNOTATION_COLUMNS, bad)]
    found: list[Annotation] = []
    reading = _Reading(annotations.file, bad, located)
    if all(complete):
        reading.texts.update(_posts(posts, bad))
        read = (_annotation(row, reading) for row in annotations.rows)
        found = [annotation for annotation in read if annotation is not None]
    skipped = bad.settle(on_bad, len(found), annotations.file)
    return assemble(name, reading.texts, found, skipped)


def is_redsm5(folder: Path) -> bool:
    """Return True if a folder has one of the corpus's files. Reading reports a missing one."""
    return any((folder / name).exists() for name in (POSTS, ANNOTATIONS))


def assemble(
    name: str, posts: Mapping[str, str], annotations: Iterable[Annotation], skipped: int = 0
) -> Corpus:
    """Return the corpus of the annotations. Posts without annotations are not part of it."""
    classes, shown = [], dict[tuple[str, str], list[Span]]()
    lost = set[tuple[str, str]]()
    for a in annotations:
        classes.append(Example(a.id, a.post, a.text, SYMPTOMS[a.symptom], a.status))
        if a.span is None:
            lost.add((a.post, a.symptom))
        else:
            shown.setdefault((a.post, a.symptom), []).extend([a.span] if a.status else [])
    spans = [
        Example(
            f"{post}/{symptom}",
            post,
            posts[post],
            SYMPTOMS[symptom],
            spans=merged(found, posts[post]),
        )
        for (post, symptom), found in shown.items()
        if (post, symptom) not in lost
    ]
    return Corpus(name, LABELS, tuple(classes), tuple(spans), skipped)


def _files(folder: Path, bad: BadRows) -> tuple[Rows, Rows]:
    tables, mistakes = [], []
    for file in (POSTS, ANNOTATIONS):
        try:
            tables.append(read_rows(folder / file, bad))
        except UserError as error:
            mistakes.append(str(error))
    if mistakes:
        raise UserError("\n".join(mistakes))
    return tables[0], tables[1]


@dataclass(frozen=True)
class _Reading:
    file: str
    bad: BadRows
    located: bool = True
    texts: dict[str, str] = field(default_factory=dict)
    """Texts of the posts by id; empty for a bad post."""
    place_of: dict[str, Place] = field(default_factory=dict)
    """First place of each annotation, by its id."""


def _posts(table: Rows, bad: BadRows) -> dict[str, str]:
    texts: dict[str, str] = {}
    place_of: dict[str, Place] = {}
    for row in table.rows:
        post, text = row.cell("post_id").strip(), row.cell("text")
        if not post:
            bad.add(row.place, "post_id is missing")
        elif place_of.setdefault(post, row.place) != row.place:
            first = f" (first in {place_of[post].short})"
            bad.add(row.place, "the post occurs twice", first, id=post)
        else:
            texts[post] = text if text.strip() else ""
            if not text.strip():
                bad.add(row.place, "text is missing", id=post)
    return texts


def _annotation(row: Row, reading: _Reading) -> Annotation | None:
    """Return the annotation of a row; None if it is bad. All of its mistakes are reported."""
    post, sentence, symptom, status = (
        row.cell(name).strip() for name in ("post_id", "sentence_id", "DSM5_symptom", "status")
    )
    text = row.cell("sentence_text").strip()
    mistakes = [f"{name} is missing" for name in ANNOTATION_COLUMNS if not row.cell(name).strip()]
    mistakes += _invalid_values(symptom, status)
    name = f"{post}/{sentence}/{symptom}"
    if post and sentence and symptom and reading.place_of.setdefault(name, row.place) != row.place:
        mistakes.append("the sentence is annotated twice for its symptom")
    span = _span(post, text, reading, mistakes)
    for what in mistakes:
        advice = _NO_POSITIONS if what == _NOT_THERE else ""
        reading.bad.add(row.place, what, id=name, advice=advice)
    if mistakes:
        return None
    return Annotation(post, sentence, symptom, _STATUS[status], text, span)


def _invalid_values(symptom: str, status: str) -> list[str]:
    mistakes = []
    if symptom and symptom not in SYMPTOMS:
        shown = f" {symptom}" if is_name(symptom) else ""
        near = nearest_column(symptom, SYMPTOMS) if shown else ""
        mistakes.append(f"there is no symptom{shown or ' of that name'}{near}")
    if status and status not in _STATUS:
        mistakes.append("status is neither 0 nor 1")
    return mistakes


_STATUS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1}  # pandas writes 1.0 in columns with gaps


def _span(post: str, text: str, reading: _Reading, mistakes: list[str]) -> Span | None:
    if not post or not text:
        return None
    whole = reading.texts.get(post)
    span = find_span(whole, text) if whole else None
    if span is None and reading.located:
        missing = f"its post is not in {POSTS}" if whole is None else "its post has no text"
        mistakes.append(_NOT_THERE if whole else missing)
    return span


_NOT_THERE = "the sentence is not in its post"
_NO_POSITIONS = "The agent criteria needs no positions: supermax tune criteria --data FOLDER."
