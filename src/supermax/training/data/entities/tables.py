"""Reader of any table whose rows have entities, by a mapping of its columns.

source ──read_rows()──▶ rows ──sentence_of()──▶ examples, and a report of every bad row
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from supermax._util.text import counted
from supermax.errors import UserError
from supermax.training.data.bad_rows import BadRows, OnBad
from supermax.training.data.columns import Columns, check_columns
from supermax.training.data.entities import Entity, count_unaligned, words_in
from supermax.training.data.entities.rows import NamedEntity, Sentence, sentence_of
from supermax.training.data.examples import Corpus, Example, Unlabelled
from supermax.training.data.inputs.reading import Source, read_rows
from supermax.training.data.places import Place
from supermax.training.data.read_options import ReadOptions
from supermax.training.data.rows import CONLL, Row, Rows, require
from supermax.training.data.tables import Table, unlabelled_examples


def read_entities(
    path: Source,
    columns: Columns,
    *,
    name: str | None = None,
    labels: Sequence[str] | None = None,
    on_bad: OnBad = "stop",
    encoding: str | None = None,
) -> Corpus:
    """Read a corpus of texts with entities, for the agent `token-classification`.

    `columns.text` holds lists of tokens, and `columns.label` a tag for each of them; or texts, and
    lists of entities with `start`, `end` and `label`. Without a label, the rows are to be
    predicted. `labels` are the types of entities, in their order; others are mistakes. All else
    is as in `read_table`.
    """
    return open_entities(path, columns, ReadOptions(name, labels, on_bad, encoding)).corpus


def open_entities(path: Source, columns: Columns, options: ReadOptions) -> Table:
    """Read a corpus like `read_entities`, with the split of each row."""
    known = options.known_labels
    _check(columns, known)
    bad = BadRows()
    table = read_rows(path, bad, options.encoding)
    columns = options.with_split(columns, table)
    drafts = list(_drafts(table, columns, known, bad))
    skipped = bad.settle(options.on_bad, len(drafts), table.file)
    unlabelled: tuple[Unlabelled, ...] = ()
    if columns.label is not None:
        counts = Counter(draft.part for draft in drafts if draft.entities is None)
        unlabelled = tuple(Unlabelled(table.file, n, part) for part, n in sorted(counts.items()))
        drafts = [draft for draft in drafts if draft.entities is not None]
    types = known or tuple(sorted({e.type for draft in drafts for e in draft.entities or ()}))
    if columns.label is not None and not types:
        raise UserError(
            f"{table.file}: no row has an entity in the column {columns.label!r}, so there is "
            f"nothing to learn from. Mark some, or map another column as label."
        )
    corpus = Corpus(
        options.name or table.name,
        types,
        skipped=skipped,
        unlabelled=unlabelled,
        detected=options.detected(table),
        remarks=(*table.remarks, *_unaligned(drafts, table.file)),
        entities=tuple(draft.typed(types) for draft in drafts),
    )
    return Table(corpus, {draft.example.id: draft.part for draft in drafts if draft.part})


def known_entities(
    path: Source, columns: Columns, encoding: str | None = None
) -> dict[str, tuple[NamedEntity, ...]]:
    """Return the entities of the rows that have them, by the ids that `read_entities` gives the
    rows; bad rows are left out."""
    bad = BadRows()
    drafts = _drafts(read_rows(path, bad, encoding), columns, (), bad)
    return {draft.example.id: draft.entities for draft in drafts if draft.entities is not None}


@dataclass(frozen=True)
class _Draft:
    """Example whose entities still have names as types."""

    example: Example
    entities: tuple[NamedEntity, ...] | None
    part: str

    def typed(self, types: Sequence[str]) -> Example:
        if self.entities is None:
            return self.example
        found = (Entity(e.start, e.end, types.index(e.type)) for e in self.entities)
        return replace(self.example, entities=tuple(found))


def _check(columns: Columns, types: tuple[str, ...]) -> None:
    check_columns(columns, types if len(types) > 1 else ())
    for role in ("question", "answer", "answer_start"):
        if role in columns.mapped():
            raise UserError(
                f"The agent token-classification reads texts with entities alone: leave the "
                f"column of the {role} unmapped (data.columns.{role})."
            )


def _drafts(
    table: Rows, columns: Columns, types: tuple[str, ...], bad: BadRows
) -> Iterator[_Draft]:
    """Yield the draft of each good row; the mistakes of all others are added to `bad`."""
    if not require(table, columns.mapped().values(), bad):
        return
    sentences = {row.place: _sentence(row, table, columns, types, bad) for row in table.rows}
    plain_rows = tuple(
        Row(row.place, {**row.values, columns.text: found.text})
        for row in table.rows
        if (found := sentences[row.place]) is not None
    )
    read = replace(table, rows=plain_rows)
    for place, example, part in unlabelled_examples(read, replace(columns, label=None), bad):
        if (sentence := sentences[place]) is not None:
            yield _Draft(replace(example, words=sentence.words), sentence.entities, part)


def _sentence(
    row: Row, table: Rows, columns: Columns, types: tuple[str, ...], bad: BadRows
) -> Sentence | None:
    """Return the sentence of a row; None if it has mistakes, which are reported."""
    marks = row.values.get(columns.label) if columns.label is not None else None
    found = sentence_of(row.values.get(columns.text), marks)
    given = row.cell(columns.id).strip() if columns.id is not None else ""
    if isinstance(found, list):
        for mistake in found:
            place = _line_of(row.place, mistake.token) if table.form == CONLL else row.place
            advice = mistake.advice
            bad.add(place, mistake.what, mistake.detail, id=given, advice=advice)
        return None
    if types and any(entity.type not in types for entity in found.entities or ()):
        shown = ", ".join(types) if len(types) <= 12 else f"the {len(types)} that were given"
        advice = "Remove data.labels to take all types of the file, or list every one of them."
        bad.add(row.place, f"the type of an entity is none of {shown}", id=given, advice=advice)
        return None
    return found


def _line_of(place: Place, token: int) -> Place:
    """Return the line of a token of the sentence that begins here."""
    return replace(place, number=place.number + token)


def _unaligned(drafts: Sequence[_Draft], file: str) -> Iterator[str]:
    """Count the entities that begin or end within a word."""
    count = sum(
        count_unaligned(words_in(draft.example.text), [(e.start, e.end) for e in draft.entities])
        for draft in drafts
        if draft.entities and not draft.example.words
    )
    if count:
        yield (
            f"{counted(count, 'entity', 'entities')} of {file} "
            f"{'begins or ends' if count == 1 else 'begin or end'} within a word, and so cannot "
            f"be predicted exactly: metrics count {'it' if count == 1 else 'them'} as missed."
        )
