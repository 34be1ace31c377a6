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
from supermax.training.data.column_names import PAIRS, is_named, plain_name
from supermax.training.data.column_values import (
    MOST_LABELS,
    are_classes,
    are_groups,
    are_ids,
    are_in_one_split,
    are_parts,
    are_splits,
    are_titles,
    asks,
    has_words,
    kinds,
)
from supermax.training.data.columns import PART_NAMES
from supermax.training.data.encodings import UTF8
from supermax.training.data.entities.guessing import TaggedColumns, tagged_columns
from supermax.training.data.inputs.reading import Source, read_rows
from supermax.training.data.label_sets import parts_of
from supermax.training.data.names import is_name
from supermax.training.data.rows import CSV, NoTexts, Rows, check_header, plain

_FEWEST_COLUMNS = 3  # columns of 0 and 1 that are taken for labels of an agent that is not given


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
    measured: str = ""
    """Column of numbers without a role, if it is the only one: a search could regress on it."""
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


def guess_file(source: Source, encoding: str | None = None, agent: str | None = None) -> Guessed:
    """Guess the columns of data in any format from all of its rows. `encoding` None detects it.
    `agent`: the one that they are for; None: any.

    Raises UserError if the data cannot be read, or has no column of texts.
    """
    bad = BadRows()
    table = read_rows(source, bad, encoding)
    if not table.rows:
        bad.settle("stop", 0, table.file)
    if (tagged := tagged_columns(table)) is not None:
        return _guess_tagged(table, tagged, bad)
    if not any(is_named("text", name) for name in table.columns):
        check_header(table)
    cells = {name: _cells(table, name) for name in table.columns if name}
    found = guess(cells, table.file, _typed(table), _lists(table), agent)
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
        names = names or tuple(sorted(parts) if len(parts) <= MOST_LABELS else ())
    return replace(found, labels=names[: MOST_LABELS + 1], unlabelled=unlabelled)


def _guess_tagged(table: Rows, tagged: TaggedColumns, bad: BadRows) -> Guessed:
    """Guess the columns of a table with tokens and tags, or with texts and entities."""
    cells = {name: [row.cell(name) for row in table.rows] for name in table.columns if name}
    left = {name: own for name, own in cells.items() if name not in (tagged.text, tagged.label)}
    text, why = tagged.text, "lists of tokens"
    if text is None:
        named = _named("text", left, has_words)
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
    labels = tagged.types if len(tagged.types) <= MOST_LABELS else ()
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
    if not is_named("answer", name) and not is_named("answer_start", name):
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
    few = 2 <= len(names) <= max(MOST_LABELS, len(filled) // 2)
    return few and len(good) >= 0.9 * len(filled)


def _remarks(found: Guessed, cells: dict[str, list[str]], bad: BadRows) -> Iterator[str]:
    if bad.found:
        what = "this data" if bad.fatal else f"{counted(bad.rows, 'row')} of this data"
        yield "\n".join([f"`tune` refuses {what} as it is:", *bad.listing()])
    label, split = found.role("label"), found.role("split")
    if label is not None and not found.several and len(kinds(cells[label])) == 1:
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
    for name in (name for name in found.unused if is_named("split", name)):
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
            if is_named(role, name) and name not in skipped and (reason := why_no_classes(own))
        )


def _take_inputs(roles: _Roles, file: str) -> None:
    """Take the columns of texts, questions and answers, and those with special names."""
    left = roles.left
    for role in ("split", "id", "group", "answer_start"):
        roles.take(role, _named(role, left, _VALID[role]), (), "")
    if (pair := _pair(left)) is not None:
        for role, column in zip(("question", "text"), pair, strict=True):
            roles.take(role, None, [column], "one of two texts")
    else:
        roles.take("text", _named("text", left, has_words), _longest(left), "the longest texts")
    if "text" not in roles.found:
        raise NoTexts(f"{file} has no column that holds texts.")
    words = roles.cells_of("text")
    answer = _named("answer", left, lambda own: are_parts(own, words))
    quoted = [name for name, own in left.items() if are_parts(own, words) and has_words(own)]
    answers = [answer] if answer else quoted
    roles.take("answer", None, answers, "its values are pieces of the texts")
    if pair is not None:
        return
    asked = [name for name, own in left.items() if asks(own)]
    roles.take("question", _named("question", left, has_words), asked, "it holds questions")


def _pair(left: Mapping[str, list[str]]) -> tuple[str, str] | None:
    """Return the columns of two texts, by their usual names."""
    names = {plain_name(name): name for name, own in left.items() if has_words(own)}
    for first, second in PAIRS:
        if first in names and second in names:
            return names[first], names[second]
    return None


def _take_group(roles: _Roles, titles: Collection[str]) -> None:
    """Take a column whose values repeat, unless one is named like it."""
    left, splits = roles.left, roles.cells_of("split")
    repeated = [name for name in left if name in titles or are_groups(left[name])]
    repeated = [name for name in repeated if are_in_one_split(left[name], splits)]
    if "group" not in roles.found:
        roles.take("group", None, repeated, "each value is in several rows")


def guess(
    cells: dict[str, list[str]],
    file: str,
    typed: Sequence[str] = (),
    lists: Sequence[str] = (),
    agent: str | None = None,
) -> Guessed:
    """Guess the roles of columns, some `typed` as classes or `lists`; UserError without texts."""
    roles = _Roles(cells, dict(cells))
    left, found = roles.left, roles.found
    _take_inputs(roles, file)
    words, unfit = roles.cells_of("text"), roles.unfit("label", typed)
    label = _named("label", left, lambda own: bool(kinds(own)) and not why_no_classes(own))
    if label is None:
        known = (name for name in typed if name in left and kinds(left[name]))
        roles.take("label", None, known, "it is typed as classes")
    titles = {name for name, own in left.items() if "answer" in found and are_titles(own, words)}
    classes = [name for name, own in left.items() if are_classes(own) and name not in titles]
    is_open = label is None and not {"label", "answer"} & set(found)
    other = _OtherLabels()
    if is_open:
        other = _wanted_labels(left, agent) or _other_labels(
            left, lists, bool(classes), bool(unfit)
        )
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
    labels = kinds(roles.cells_of("label"))
    listed = () if other.several or len(labels) > MOST_LABELS else tuple(sorted(labels))
    return Guessed(
        tuple(found.values()),
        tuple(left),
        listed,
        unfit=unfit,
        numeric=other.numeric,
        several=other.several,
        binary=other.binary,
        label_separator=other.separator,
        measured=_measured(left) if not {"label", "answer"} & set(found) else "",
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


def _wanted_labels(left: dict[str, list[str]], agent: str | None) -> _OtherLabels | None:
    """Return the labels that only the given agent learns from: any columns of 0 and 1, or the
    only column of numbers; None: there are none."""
    if agent == MULTILABEL.name and len(columns := _binary(left)) > 1:
        return _OtherLabels(binary=columns)
    if agent == REGRESSION.name and _numbers(left) is None and (column := _measured(left)):
        return _OtherLabels(Guess("label", column, "the only numbers"), numeric=True)
    return None


def _measured(left: dict[str, list[str]]) -> str:
    """Return the column of numbers, if there is one only; or ""."""
    found = [name for name, own in left.items() if are_numbers(own)]
    return found[0] if len(found) == 1 else ""


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
    columns = _binary(left)
    return _OtherLabels(binary=() if unfit or len(columns) < _FEWEST_COLUMNS else columns)


def _sets(
    left: dict[str, list[str]], lists: Sequence[str], others: bool
) -> tuple[str, str] | None:
    """Return the column of sets of labels with the text between two of them: one that is named
    like labels, or else any other, if `others` are allowed."""
    named = [name for name in left if is_named("label", name) or is_named("labels", name)]
    for name in [*named, *(name for name in left if others and name not in named)]:
        if name in lists:
            return name, ""
        if separator := separator_of(left[name]):
            return name, separator
    return None


def _binary(left: dict[str, list[str]]) -> tuple[str, ...]:
    """Return the columns of 0 and 1."""
    return tuple(name for name, own in left.items() if kinds(own) == {"0", "1"})


def _numbers(left: dict[str, list[str]]) -> str | None:
    """Return the column that is named like labels or like numbers, and holds numbers."""
    roles = ("label", "number")
    return next(
        (
            name
            for role in roles
            for name, own in left.items()
            if is_named(role, name) and are_numbers(own)
        ),
        None,
    )


def _named(role: str, left: dict[str, list[str]], fits: Callable[[list[str]], bool]) -> str | None:
    return next((name for name in left if is_named(role, name) and fits(left[name])), None)


def _longest(left: dict[str, list[str]]) -> list[str]:
    """Return the columns that hold words, those with the longest texts first."""
    lengths = {name: fmean(map(len, own)) for name, own in left.items() if has_words(own)}
    return sorted(lengths, key=lambda name: -lengths[name])


_VALID: dict[str, Callable[[list[str]], bool]] = {
    "split": are_splits,
    "id": are_ids,
    "group": lambda own: all(cell.strip() for cell in own),
    "answer_start": lambda own: all(is_whole(cell.strip() or "0") for cell in own),
}
