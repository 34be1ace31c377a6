"""Reader of CoNLL files: one token per line, a blank line between sentences, the tag last."""

from __future__ import annotations

from collections.abc import Iterator

from supermax.training.data.bad_rows import BadRows
from supermax.training.data.encodings import NAME_IT, NOT_UTF8, first_wrong_byte
from supermax.training.data.entities import parsed_tag
from supermax.training.data.places import Place
from supermax.training.data.rows import CONLL, Row, Rows

TOKENS, TAGS, DOCUMENT = "tokens", "tags", "document"
_START = b"-DOCSTART-"
_LOOKED_AT = 2_000  # lines that decide the format
Line = tuple[int, bytes]
"""Number from 1, and content."""


def read_conll(file: str, data: bytes, bad: BadRows) -> Rows:
    """Read a row for each sentence, placed at its first line.

    Lines -DOCSTART- separate documents; with several of them, the rows have their numbers.
    Comments, lines before a sentence that begin with "# " and have no tag, are skipped.
    """
    sentences, documents = [], 0
    for document, lines in _sentences(data):
        documents = max(documents, document)
        if wrong := [(n, byte) for n, line in lines if (byte := first_wrong_byte(line))]:
            bad.add(Place(file, wrong[0][0]), NOT_UTF8, wrong[0][1], advice=NAME_IT)
        else:
            sentences.append((document, lines[0][0], [_fields(line) for _, line in lines]))
    tagged = any(len(fields) > 1 for *_, records in sentences for fields in records)
    rows = []
    for document, first, records in sentences:
        if tagged and (untagged := [i for i, f in enumerate(records) if len(f) == 1]):
            bad.add(Place(file, first + untagged[0]), "the line has a token without a tag")
            continue
        values: dict[str, object] = {TOKENS: [fields[0] for fields in records]}
        if tagged:
            values[TAGS] = [fields[-1] for fields in records]
        if documents > 1:
            values[DOCUMENT] = str(document)
        rows.append(Row(Place(file, first), values))
    columns = (TOKENS, *([TAGS] * tagged), *([DOCUMENT] * (documents > 1)))
    return Rows(file, columns, tuple(rows), form=CONLL)


def looks_like_conll(data: bytes) -> bool:
    """Return True for text with a tag at the end of its lines and blank lines between some."""
    lines = data.split(b"\n")[:_LOOKED_AT]
    ignored = (line.startswith(_START) or _is_comment(line) for line in lines)
    filled = [line for line, skip in zip(lines, ignored, strict=True) if line.strip() and not skip]
    tags = [_tag(line) for line in filled]
    some = any(tag is not None and tag[0] != "O" for tag in tags)
    blanks = [i for i, line in enumerate(lines[:-1]) if not line.strip()]
    return some and bool(blanks) and sum(map(bool, tags)) >= 0.9 * len(tags)


def _sentences(data: bytes) -> Iterator[tuple[int, list[Line]]]:
    """Yield the lines of each sentence with the number of its document, from 1; 0 for none."""
    document, lines = 0, list[Line]()
    for number, line in enumerate([*data.split(b"\n"), b""], 1):
        starts = line.startswith(_START)
        if line.strip() and not starts:
            if lines or not _is_comment(line):
                lines.append((number, line))
            continue
        if lines:
            yield document, lines
        document, lines = document + starts, []


def _is_comment(line: bytes) -> bool:
    return line.startswith(b"# ") and _tag(line) is None


def _tag(line: bytes) -> tuple[str, str] | None:
    fields = _fields(line)
    return parsed_tag(fields[-1]) if len(fields) > 1 else None


def _fields(line: bytes) -> list[str]:
    """Return the columns of a line: between tabs if it has one, else between white space."""
    text = line.decode("utf-8", errors="surrogateescape").strip("\r")
    return [part.strip() for part in text.split("\t")] if "\t" in text else text.split()
