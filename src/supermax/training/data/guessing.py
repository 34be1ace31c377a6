"""Guess of the columns of a table from their names, types and values.

Guesses are meant to be reviewed: each comes with its reason, and without any text of the data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from supermax._util.text import counted
from supermax.agents.criteria import CRITERIA
from supermax.agents.evidence import EVIDENCE
from supermax.agents.multilabel import MULTILABEL
from supermax.agents.regression import REGRESSION
from supermax.agents.share import SHARE
from supermax.agents.token_classification import TOKEN_CLASSIFICATION
from supermax.training.data.answers import is_whole
from supermax.training.data.bad_rows import BadRows
from supermax.training.data.classes import are_numbers, separator_of, why_no_classes
from supermax.training.data.columns import PART_NAMES
from supermax.training.data.encodings import UTF8
from supermax.training.data.entities.guessing import TaggedColumns, tagged_columns
from supermax.training.data.inputs.reading import Source, read_rows
from supermax.training.data.label_sets import parts_of
from supermax.training.data.names import is_name
from supermax.training.data.rows import CSV, NoTexts, Rows, check_header, plain

_NAMES = {
    "text": ("text", "note", "post", "sentence", "content", "body", "document", "message"),
    "label": ("label", "class", "target", "verdict", "status", "category", "y", "outcome"),
    "labels": ("labels", "tags", "classes", "categories", "topics", "emotions", "genres"),
    "number": ("score", "rating", "value", "number", "grade", "stars"),
    "question": ("question", "criterion", "query", "asked", "prompt", "symptom"),
    "answer": (
        "answer", "answers", "answers.text", "evidence", "span", "spans", "highlight", "quote",
    ),
    "answer_start": ("answer_start", "answers.answer_start", "start", "offset"),
    "id": ("id", "row_id", "uid", "key"),
    "group": ("group", "patient", "user", "author", "subject", "post_id", "patient_id", "user_id"),
    "split": ("split", "fold", "part", "partition", "set"),
}  # fmt: skip
_MOST_LABELS = 20
_FEWEST_COLUMNS = 3  # columns of 0 and 1 that are taken for labels


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
    """Rows without a label, if a column of labels was found."""
    unfit: tuple[tuple[str, str], ...] = ()
    """Columns named like labels that cannot hold classes, each with the reason."""
    encoding: str = UTF8
    numeric: bool = False
    """The column of the labels holds numbers that are no classes."""
    several: bool = False
    """The column of the labels holds sets of labels."""
    binary: tuple[str, ...] = ()
    """Columns of 0 and 1, one for each label."""
    label_separator: str = ""
    """Text between the labels of a cell; empty: they are lists, or single labels."""
    entities: bool = False
    """The column of the labels holds tags of tokens, or entities."""
    form: str = CSV
    """Format of the source."""
    separator: str = ","
    """Character between the fields of CSV."""
    remarks: tuple[str, ...] = ()
    """Sentences about mistakes that a search will refuse, and about columns that it ignores."""

    def role(self, name: str) -> str | None:
        """Return the column of a role; None if there is none."""
        return next((guess.column for guess in self.columns if guess.role == name), None)

    @property
    def mapped(self) -> dict[str, str | list[str]]:
        """Columns by role, as settings have them."""
        roles: dict[str, str | list[str]] = {guess.role: guess.column for guess in self.columns}
        if self.binary:
            roles["labels"] = list(self.binary)
        if self.label_separator:
            roles["label_separator"] = self.label_separator
        return roles

    @property
    def reasons(self) -> dict[str, str]:
        """Reason of each column or setting of `mapped`, by role."""
        others = {"labels": "columns of 0 and 1", "label_separator": "detected"}
        return {**others, **{guess.role: guess.why for guess in self.columns}}

    @property
    def agent(self) -> str:
        """Agent that fits the columns."""
        if self.several or self.binary:
            return MULTILABEL.name
        if self.numeric:
            return REGRESSION.name
        if self.entities:
            return TOKEN_CLASSIFICATION.name
        if self.role("answer") is None:
            return CRITERIA.name
        return EVIDENCE.name if self.role("label") is None else SHARE.name


def guess_file(source: Source, encoding: str | None = None) -> Guessed:
    """Guess the columns of data in any format from all of its rows. `encoding` None detects it.

    Raises UserError if the data cannot be read, or has no column of texts.
    """
    bad = BadRows()
    table = read_rows(source, bad, encoding)
    if not table.rows:
        bad.settle("stop", 0, table.file)
    if (tagged := tagged_columns(table)) is not None:
        return _guess_tagged(table, tagged, bad)
    if not any(_is_named("text", name) for name in table.columns):
        check_header(table)
    cells = {name: _cells(table, name) for name in table.columns if name}
    found = guess(cells, table.file, _typed(table), _lists(table))
    found = replace(found, encoding=table.encoding, form=table.form, separator=table.separator)
    own = Guess("split", table.split or "", "its own splits")
    columns = (own if guess.column == table.split else guess for guess in found.columns)
    found = replace(found, columns=tuple(columns))
    remarks = [*table.remarks, *_remarks(found, cells, bad)]
    found = replace(found, remarks=tuple(remarks))
    if (label := found.role("label")) is None:
        return found
    names = table.classes.get(label, found.labels)
    unlabelled = sum(not cell.strip() for cell in cells[label])
    if found.several:
        values = [row.values.get(label) for row in table.rows]
        unlabelled = sum(value is None for value in values)
        parts = {part for each in values for part in parts_of(each, found.label_separator) or ()}
        names = names or tuple(sorted(parts) if len(parts) <= _MOST_LABELS else ())
    return replace(found, labels=names[: _MOST_LABELS + 1], unlabelled=unlabelled)


def _guess_tagged(table: Rows, tagged: TaggedColumns, bad: BadRows) -> Guessed:
    """Guess the columns of a table with tokens and tags, or with texts and entities."""
    cells = {name: [row.cell(name) for row in table.rows] for name in table.columns if name}
    left = {name: own for name, own in cells.items() if name not in (tagged.text, tagged.label)}
    text, why = tagged.text, "lists of tokens"
    if text is None:
        named = _named("text", left, _has_words)
        text = named or next(iter(_longest(left)), None)
        why = "by its name" if named else "the longest texts"
        if text is None:
            raise NoTexts(f"{table.file} has no column that holds texts.")
    found = [Guess("text", text, why)]
    left.pop(text, None)
    if tagged.label is not None:
        why = "a tag for each token" if tagged.text is not None else "entities of the texts"
        found.append(Guess("label", tagged.label, why))
    for role in ("split", "id", "group"):
        if (name := _named(role, left, _VALID[role])) is not None:
            own = role == "split" and name == table.split
            found.append(Guess(role, name, "its own splits" if own else "by its name"))
            del left[name]
    labels = tagged.types if len(tagged.types) <= _MOST_LABELS else ()
    guessed = Guessed(
        tuple(found),
        tuple(left),
        labels,
        unlabelled=tagged.unlabelled,
        encoding=table.encoding,
        entities=True,
        form=table.form,
        separator=table.separator,
    )
    return replace(guessed, remarks=(*table.remarks, *_remarks(guessed, cells, bad)))


def _cells(table: Rows, name: str) -> list[str]:
    """Return the cells of a column as text. Of answers in a list, the first one is returned."""
    if not _is_named("answer", name) and not _is_named("answer_start", name):
        return [row.cell(name) for row in table.rows]
    values = (row.values.get(name) for row in table.rows)
    firsts = (next(iter(value), None) if isinstance(value, list) else value for value in values)
    return [plain(value) or "" for value in firsts]


def _typed(table: Rows) -> list[str]:
    """Return the columns that are typed as classes, each row with one of them."""
    return [
        name
        for name in table.classes
        if not any(isinstance(row.values.get(name), list) for row in table.rows)
    ]


def _lists(table: Rows) -> list[str]:
    """Return the columns whose cells are lists of few names, and no list for each other."""
    lists = {
        name: [row.values.get(name) for row in table.rows]
        for name in table.columns
        if any(isinstance(row.values.get(name), list) for row in table.rows)
    }
    lengths = {
        name: [len(cell) if isinstance(cell, list) else None for cell in cells]
        for name, cells in lists.items()
    }
    return [
        name
        for name, cells in lists.items()
        if _are_sets(cells) and list(lengths.values()).count(lengths[name]) == 1
    ]


def _are_sets(cells: Sequence[object]) -> bool:
    """Return True if nearly all cells are lists of different names, and the names are few."""
    filled = [cell for cell in cells if cell is not None]
    found = [parts_of(cell, "") for cell in filled if isinstance(cell, list)]
    good = [parts for parts in found if parts is not None and len(set(parts)) == len(parts)]
    names = {part for parts in good for part in parts}
    few = 2 <= len(names) <= max(_MOST_LABELS, len(filled) // 2)
    return few and len(good) >= 0.9 * len(filled)


def _remarks(found: Guessed, cells: dict[str, list[str]], bad: BadRows) -> Iterator[str]:
    if bad.found:
        what = "this data" if bad.fatal else f"{counted(bad.rows, 'row')} of this data"
        yield "\n".join([f"`tune` refuses {what} as it is:", *bad.listing()])
    label, split = found.role("label"), found.role("split")
    if label is not None and not found.several and len(_kinds(cells[label])) == 1:
        yield f"The column '{label}' holds only one class; a search needs two."
    if split is not None:
        parts = {PART_NAMES[cell.strip().lower()] for cell in cells[split]}
        if "train" not in parts:
            yield (
                f"The column '{split}' has no rows of train, which `tune` needs: add such rows, "
                f"or remove data.columns.split to let `tune` split all rows."
            )
        elif "validation" not in parts:
            yield f"The column '{split}' has no rows of validation: `tune` draws them from train."
        return
    for name in (name for name in found.unused if _is_named("split", name)):
        values = {cell.strip() for cell in cells[name]}
        odd = sorted(value for value in values if value.lower() not in PART_NAMES)
        if len(odd) == len(values):  # not a split: parts of a body, for example
            continue
        shown = ", ".join(repr(cell) for cell in odd if not cell or is_name(cell)) or "others"
        yield (
            f"The column '{name}' is not used, and `tune` splits all rows: besides train, "
            f"validation and test it holds {shown[:80]}."
        )


@dataclass(frozen=True)
class _Roles:
    """Columns that have a role so far, and those that are left, with their cells."""

    cells: Mapping[str, list[str]]
    left: dict[str, list[str]]
    found: dict[str, Guess] = field(default_factory=dict)

    def take(self, role: str, named: str | None, others: Iterable[str], why: str) -> None:
        """Take the column named like the role, or else the first of the others."""
        column = named or next(iter(others), None)
        if column is not None:
            self.found[role] = Guess(role, column, "by its name" if named else why)
            del self.left[column]

    def cells_of(self, role: str) -> list[str]:
        """Return the cells of the column with a role; [] without one."""
        return list(self.cells[self.found[role].column]) if role in self.found else []

    def unfit(self, role: str, skipped: Sequence[str] = ()) -> tuple[tuple[str, str], ...]:
        """Return the columns named like the role that hold no classes, each with the reason."""
        return tuple(
            (name, reason)
            for name, own in self.left.items()
            if _is_named(role, name) and name not in skipped and (reason := why_no_classes(own))
        )


def _take_inputs(roles: _Roles, file: str) -> None:
    """Take the columns of texts, questions and answers, and those with special names."""
    left = roles.left
    for role in ("split", "id", "group", "answer_start"):
        roles.take(role, _named(role, left, _VALID[role]), (), "")
    roles.take("text", _named("text", left, _has_words), _longest(left), "the longest texts")
    if "text" not in roles.found:
        raise NoTexts(f"{file} has no column that holds texts.")
    words = roles.cells_of("text")
    answer = _named("answer", left, lambda own: _are_parts(own, words))
    quoted = [name for name, own in left.items() if _are_parts(own, words) and _has_words(own)]
    answers = [answer] if answer else quoted
    roles.take("answer", None, answers, "its values are pieces of the texts")
    asked = [name for name, own in left.items() if _asks(own)]
    roles.take("question", _named("question", left, _has_words), asked, "it holds questions")


def _take_group(roles: _Roles, titles: Collection[str]) -> None:
    """Take a column whose values repeat, unless one is named like it."""
    left, splits = roles.left, roles.cells_of("split")
    repeated = [name for name in left if name in titles or _are_groups(left[name])]
    repeated = [name for name in repeated if _are_in_one_split(left[name], splits)]
    if "group" not in roles.found:
        roles.take("group", None, repeated, "each value is in several rows")


def guess(
    cells: dict[str, list[str]], file: str, typed: Sequence[str] = (), lists: Sequence[str] = ()
) -> Guessed:
    """Guess the roles of columns, some `typed` as classes or `lists`; UserError without texts."""
    roles = _Roles(cells, dict(cells))
    left, found = roles.left, roles.found
    _take_inputs(roles, file)
    words, unfit = roles.cells_of("text"), roles.unfit("label", typed)
    label = _named("label", left, lambda own: bool(_kinds(own)) and not why_no_classes(own))
    if label is None:
        known = (name for name in typed if name in left and _kinds(left[name]))
        roles.take("label", None, known, "it is typed as classes")
    titles = {name for name, own in left.items() if "answer" in found and _are_titles(own, words)}
    classes = [name for name, own in left.items() if _are_classes(own) and name not in titles]
    is_open = label is None and not {"label", "answer"} & set(found)
    other = _other_labels(left, lists, bool(classes), bool(unfit)) if is_open else _OtherLabels()
    if other.guess is not None:
        found["label"] = other.guess
        unfit = tuple(pair for pair in unfit if pair[0] != other.guess.column)
    for name in other.columns:
        del left[name]
    if "label" not in found and not other.binary:
        roles.take("label", label, () if unfit else classes, "few values, each in many rows")
    if "label" not in found:  # numbers with a decimal comma, for example
        unfit += roles.unfit("number")
    _take_group(roles, titles)
    if "answer" not in found:
        found.pop("answer_start", None)
    labels = _kinds(roles.cells_of("label"))
    listed = () if other.several or len(labels) > _MOST_LABELS else tuple(sorted(labels))
    return Guessed(
        tuple(found.values()),
        tuple(left),
        listed,
        unfit=unfit,
        numeric=other.numeric,
        several=other.several,
        binary=other.binary,
        label_separator=other.separator,
    )


@dataclass(frozen=True)
class _OtherLabels:
    """Labels that are no classes: numbers, sets of labels, or columns of 0 and 1."""

    guess: Guess | None = None
    numeric: bool = False
    several: bool = False
    separator: str = ""
    binary: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return self.binary if self.guess is None else (self.guess.column,)


def _other_labels(
    left: dict[str, list[str]], lists: Sequence[str], classes: bool, unfit: bool
) -> _OtherLabels:
    """Return the labels that are no classes. `classes`: another column may hold classes;
    `unfit`: a column is named like labels and holds none."""
    if (sets := _sets(left, lists, not classes)) is not None:
        name, separator = sets
        guess = Guess("label", name, "several labels in a row")
        return _OtherLabels(guess, several=True, separator=separator)
    if (numbers := _numbers(left)) is not None:
        return _OtherLabels(Guess("label", numbers, "by its name, numbers"), numeric=True)
    return _OtherLabels(binary=() if unfit else _binary(left))


def _sets(
    left: dict[str, list[str]], lists: Sequence[str], others: bool
) -> tuple[str, str] | None:
    """Return the column of sets of labels with the text between two of them: one that is named
    like labels, or else any other, if `others` are allowed."""
    named = [name for name in left if _is_named("label", name) or _is_named("labels", name)]
    for name in [*named, *(name for name in left if others and name not in named)]:
        if name in lists:
            return name, ""
        if separator := separator_of(left[name]):
            return name, separator
    return None


def _binary(left: dict[str, list[str]]) -> tuple[str, ...]:
    """Return the columns of 0 and 1, if they are so many that each stands for a label."""
    found = tuple(name for name, own in left.items() if _kinds(own) == {"0", "1"})
    return found if len(found) >= _FEWEST_COLUMNS else ()


def _numbers(left: dict[str, list[str]]) -> str | None:
    """Return the column that is named like labels or like numbers, and holds numbers."""
    roles = ("label", "number")
    return next(
        (
            name
            for role in roles
            for name, own in left.items()
            if _is_named(role, name) and are_numbers(own)
        ),
        None,
    )


def _named(role: str, left: dict[str, list[str]], fits: Callable[[list[str]], bool]) -> str | None:
    return next((name for name in left if _is_named(role, name) and fits(left[name])), None)


def _is_named(role: str, column: str) -> bool:
    name = column.strip().lower().replace(" ", "_").replace("-", "_")
    return name in _NAMES[role] or any(
        name.endswith(f"_{word}") for word in _NAMES[role] if role in ("text", "label", "answer")
    )


def _longest(left: dict[str, list[str]]) -> list[str]:
    """Return the columns that hold words, those with the longest texts first."""
    lengths = {name: fmean(map(len, own)) for name, own in left.items() if _has_words(own)}
    return sorted(lengths, key=lambda name: -lengths[name])


def _has_words(own: Sequence[str]) -> bool:
    filled = [cell for cell in own if cell.strip()]
    return bool(filled) and fmean(cell.count(" ") for cell in filled) >= 1


def _are_parts(own: Sequence[str], texts: Sequence[str]) -> bool:
    """Return True if nearly all values are pieces of their texts, and not the whole texts."""
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
    """Return True for names that several rows share, too many to be classes."""
    kinds = set(own)
    names = all(cell.strip() and " " not in cell.strip() for cell in own)
    return names and len(kinds) > _MOST_LABELS and len(kinds) < 0.9 * len(own)


def _are_titles(own: Sequence[str], texts: Sequence[str]) -> bool:
    """Return True for names that texts share, if each text is in several rows with one name.

    A class would differ between the questions on a text.
    """
    title_of = dict(zip(texts, own, strict=True))
    same = all(title_of[text] == cell for text, cell in zip(texts, own, strict=True))
    return same and all(map(str.strip, own)) and len(set(own)) < len(title_of) < 0.9 * len(own)


def _are_in_one_split(own: Sequence[str], splits: Sequence[str]) -> bool:
    """Return True if no value is in two of the splits, if there are any."""
    parts = [PART_NAMES[cell.strip().lower()] for cell in splits]
    split_of = dict(zip(own, parts, strict=False))
    return all(split_of[cell] == part for cell, part in zip(own, parts, strict=False))


def _are_splits(own: Sequence[str]) -> bool:
    return all(cell.strip().lower() in PART_NAMES for cell in own)


def _are_ids(own: Sequence[str]) -> bool:
    filled = [cell for cell in own if cell.strip()]
    return len(filled) == len(own) == len(set(own))


_VALID: dict[str, Callable[[list[str]], bool]] = {
    "split": _are_splits,
    "id": _are_ids,
    "group": lambda own: all(cell.strip() for cell in own),
    "answer_start": lambda own: all(is_whole(cell.strip() or "0") for cell in own),
}
