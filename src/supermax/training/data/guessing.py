"""Which column of somebody's table holds what, guessed from names and from what stands in them.

A guess is to be looked at by a person: each comes with its reason, and with nobody's text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from supermax.errors import UserError
from supermax.training.data.answers import is_whole
from supermax.training.data.bad_rows import BadRows
from supermax.training.data.classes import why_no_classes
from supermax.training.data.columns import PART_NAMES, Columns
from supermax.training.data.files import UTF8
from supermax.training.data.rows import check_header, plain, read_rows
from supermax.training.words import is_name
from supermax.words import counted

_NAMES = {
    "text": ("text", "note", "post", "sentence", "content", "body", "document", "message"),
    "label": ("label", "class", "target", "verdict", "status", "category", "y", "outcome"),
    "question": ("question", "criterion", "query", "asked", "prompt", "symptom"),
    "answer": ("answer", "evidence", "span", "highlight", "quote"),
    "answer_start": ("answer_start", "start", "offset"),
    "id": ("id", "row_id", "uid", "key"),
    "group": ("group", "patient", "user", "author", "subject", "post_id", "patient_id", "user_id"),
    "split": ("split", "fold", "part", "partition", "set"),
}
_MOST_LABELS = 20
_TO_PREDICT = ("question", "text", "id", "label", "answer", "answer_start", "split")


@dataclass(frozen=True)
class Guess:
    role: str
    column: str
    why: str


@dataclass(frozen=True)
class Guessed:
    columns: tuple[Guess, ...]
    unused: tuple[str, ...]
    labels: tuple[str, ...]
    unlabelled: int = 0
    """Rows of the file without a label, where a column of labels was found."""
    unfit: tuple[tuple[str, str], ...] = ()
    """Columns that are named like labels and cannot be any, each with the reason."""
    encoding: str = UTF8
    remarks: tuple[str, ...] = ()
    """Sentences on what a search will refuse, or do otherwise than the file seems to ask for."""

    def role(self, name: str) -> str | None:
        return next((guess.column for guess in self.columns if guess.role == name), None)

    @property
    def agent(self) -> str:
        """The agent that learns from what there is."""
        if self.role("answer") is None:
            return "criteria"
        return "evidence" if self.role("label") is None else "share"


def guess_file(path: Path, encoding: str | None = None) -> Guessed:
    """Guess from all rows of a file. Raises UserError where it cannot be read, or holds no text.
    `encoding`: None detects it."""
    bad = BadRows()
    table = read_rows(path.expanduser(), bad, encoding)
    if not table.rows:
        bad.settle("stop", 0, table.file)
    if not any(_is_named("text", name) for name in table.columns):
        check_header(table)
    cells = {
        name: [plain(row.values.get(name)) or "" for row in table.rows]
        for name in table.columns
        if name
    }
    found = replace(guess(cells, path.name), encoding=table.encoding)
    found = replace(found, remarks=tuple(_remarks(found, cells, bad)))
    if (label := found.role("label")) is None:
        return found
    return replace(found, unlabelled=sum(not cell.strip() for cell in cells[label]))


def _remarks(found: Guessed, cells: dict[str, list[str]], bad: BadRows) -> Iterator[str]:
    if bad.found:
        what = "this file" if bad.fatal else f"{counted(bad.rows, 'row')} of this file"
        yield "\n".join([f"`tune` refuses {what} as it is:", *bad.listing()])
    label, split = found.role("label"), found.role("split")
    if label is not None and len(_kinds(cells[label])) == 1:
        yield f"The column '{label}' holds one class alone; a search needs two."
    if split is not None:
        there = {PART_NAMES[cell.strip().lower()] for cell in cells[split]}
        if "train" not in there:
            yield (
                f"The column '{split}' has no rows of train, which `tune` needs: add such rows, "
                f"or remove data.columns.split to split all rows anew."
            )
        elif "validation" not in there:
            yield f"The column '{split}' has no rows of validation: `tune` draws them from train."
        return
    for name in (name for name in found.unused if _is_named("split", name)):
        values = {cell.strip() for cell in cells[name]}
        odd = sorted(value for value in values if value.lower() not in PART_NAMES)
        if len(odd) == len(values):  # another kind of part: of a body, say
            continue
        shown = ", ".join(repr(cell) for cell in odd if not cell or is_name(cell)) or "others"
        yield (
            f"The column '{name}' is not used, and all rows are split anew: beside train, "
            f"validation and test it holds {shown[:80]}."
        )


def chosen_columns(
    path: Path,
    encoding: str | None,
    given: Mapping[str, str | None],
    known: Mapping[str, str],
    *,
    asks: bool,
) -> Columns:
    """Return the columns of a file to predict, by their roles: those that are given, else those
    that are known from the search and in the file, else guessed ones. No column has two roles.
    `asks`: the model takes questions."""
    chosen = {role: column for role, column in given.items() if column is not None}
    try:
        guessed = guess_file(path, encoding)
    except UserError:
        if "text" not in chosen:  # short texts are not recognised, but may stand where they stood
            there = set(read_rows(path.expanduser(), BadRows(), encoding).columns)
            wanted = _TO_PREDICT if asks else _TO_PREDICT[1:]
            same = {role: known[role] for role in wanted if known.get(role) in there}
            chosen = same | chosen
        if "text" not in chosen:
            raise
        return Columns(**chosen)  # what is wrong with the file is said when it is read
    there = {guess.column for guess in guessed.columns} | set(guessed.unused)
    for column_of in (known.get, guessed.role):
        for role in _TO_PREDICT if asks else _TO_PREDICT[1:]:
            column = column_of(role)
            if role not in chosen and column in there - set(chosen.values()):
                chosen[role] = column
    if "answer" not in chosen:
        chosen.pop("answer_start", None)
    return Columns(**{"text": "text", **chosen})


def guess(cells: dict[str, list[str]], file: str) -> Guessed:
    """From the cells of each column."""
    left = dict(cells)
    found: list[Guess] = []

    def take(role: str, column: str | None, why: str) -> None:
        if column is not None:
            found.append(Guess(role, column, why))
            del left[column]

    for role in ("split", "id", "group", "answer_start"):
        take(role, _named(role, left, _SOUND[role]), "by its name")
    text = _named("text", left, _has_words) or _longest(left)
    if text is None:
        raise UserError(f"{file} has no column that holds texts.")
    words = cells[text]
    take("text", text, "by its name" if _is_named("text", text) else "the longest texts")
    answer = _named("answer", left, lambda own: _are_parts(own, words))
    quoted = [name for name, own in left.items() if _are_parts(own, words) and _has_words(own)]
    take("answer", answer or next(iter(quoted), None), "its pieces stand in the texts")
    question = _named("question", left, _has_words)
    asked = [name for name, own in left.items() if _asks(own)]
    take(
        "question",
        question or next(iter(asked), None),
        "by its name" if question else "it holds questions",
    )
    answered = "answer" in {guess.role for guess in found}
    unfit = tuple(
        (name, reason)
        for name, own in left.items()
        if _is_named("label", name) and (reason := why_no_classes(own))
    )
    label = _named("label", left, lambda own: bool(_kinds(own)) and not why_no_classes(own))
    titles = {name for name, own in left.items() if answered and _are_titles(own, words)}
    classes = [name for name, own in left.items() if _are_classes(own) and name not in titles]
    take(
        "label",
        label or (None if unfit else next(iter(classes), None)),
        "by its name" if label else "few values, each of them often",
    )
    if "group" not in {guess.role for guess in found}:
        repeated = [name for name in left if name in titles or _are_groups(left[name])]
        take("group", next(iter(repeated), None), "its values stand for several rows each")
    if "answer" not in {guess.role for guess in found}:
        found = [guess for guess in found if guess.role != "answer_start"]
    own = next((guess.column for guess in found if guess.role == "label"), None)
    labels = _kinds(cells[own]) if own else set()
    listed = tuple(sorted(labels)) if len(labels) <= _MOST_LABELS else ()
    return Guessed(tuple(found), tuple(left), listed, unfit=unfit)


def _named(role: str, left: dict[str, list[str]], fits: Callable[[list[str]], bool]) -> str | None:
    return next((name for name in left if _is_named(role, name) and fits(left[name])), None)


def _is_named(role: str, column: str) -> bool:
    name = column.strip().lower().replace(" ", "_").replace("-", "_")
    return name in _NAMES[role] or any(
        name.endswith(f"_{word}") for word in _NAMES[role] if role in ("text", "label", "answer")
    )


def _longest(left: dict[str, list[str]]) -> str | None:
    lengths = {name: fmean(map(len, own)) for name, own in left.items() if _has_words(own)}
    return max(lengths, key=lambda name: lengths[name]) if lengths else None


def _has_words(own: Sequence[str]) -> bool:
    filled = [cell for cell in own if cell.strip()]
    return bool(filled) and fmean(cell.count(" ") for cell in filled) >= 1


def _are_parts(own: Sequence[str], texts: Sequence[str]) -> bool:
    """Evidence stands in its text, and is not all of it."""
    pairs = [(part, text) for part, text in zip(own, texts, strict=True) if part.strip()]
    inside = sum(part.strip() in text and len(part) < len(text) for part, text in pairs)
    return bool(pairs) and inside >= 0.9 * len(pairs) and fmean(len(p) for p, _ in pairs) > 3


def _asks(own: Sequence[str]) -> bool:
    filled = [cell for cell in own if cell.strip()]
    return bool(filled) and sum(cell.rstrip().endswith("?") for cell in filled) > len(filled) / 2


def _kinds(own: Sequence[str]) -> set[str]:
    return {cell.strip() for cell in own if cell.strip()}


def _are_classes(own: Sequence[str]) -> bool:
    filled = sum(bool(cell.strip()) for cell in own)
    return 2 <= len(_kinds(own)) <= min(_MOST_LABELS, filled // 2) and not why_no_classes(own)


def _are_groups(own: Sequence[str]) -> bool:
    """Names that several rows share, too many to be classes."""
    kinds = set(own)
    names = all(cell.strip() and " " not in cell.strip() for cell in own)
    return names and len(kinds) > _MOST_LABELS and len(kinds) < 0.9 * len(own)


def _are_titles(own: Sequence[str], texts: Sequence[str]) -> bool:
    """Names that texts share, where each text stands in several rows with the same name. A class
    would differ between the questions on a text."""
    title_of = dict(zip(texts, own, strict=True))
    same = all(title_of[text] == cell for text, cell in zip(texts, own, strict=True))
    return same and all(map(str.strip, own)) and len(set(own)) < len(title_of) < 0.9 * len(own)


def _are_parts_of_data(own: Sequence[str]) -> bool:
    return all(cell.strip().lower() in PART_NAMES for cell in own)


def _are_ids(own: Sequence[str]) -> bool:
    filled = [cell for cell in own if cell.strip()]
    return len(filled) == len(own) == len(set(own))


_SOUND: dict[str, Callable[[list[str]], bool]] = {
    "split": _are_parts_of_data,
    "id": _are_ids,
    "group": lambda own: all(cell.strip() for cell in own),
    "answer_start": lambda own: all(is_whole(cell.strip() or "0") for cell in own),
}
