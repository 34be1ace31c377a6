"""The report on bad rows: one line for each kind of mistake, with a count; no text of anyone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, get_args

from supermax.errors import UserError
from supermax.training.words import is_name
from supermax.words import counted

OnBad = Literal["stop", "skip"]
SHOWN = 20
"""Kinds of mistakes that are listed."""
_LINES = 3
_MANY = 0.1
"""Share of the rows above which leaving them out is no advice."""


@dataclass(frozen=True)
class BadRow:
    """One mistake in one row, named by file, line and id."""

    file: str
    line: int
    what: str
    """The kind of mistake: rows with the same words are listed together."""
    detail: str = ""
    id: str = ""
    skippable: bool = True
    advice: str = ""
    """Advice for this mistake, where it is not to correct the row."""

    def __str__(self) -> str:
        named = f" (id {self.id})" if is_name(self.id) else ""
        return f"{self.file}, line {self.line}{named}: {self.what}{self.detail}"


@dataclass
class BadRows:
    """What was found wrong so far."""

    found: list[BadRow] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows, not mistakes: one row may have several."""
        return len({(bad.file, bad.line) for bad in self.found})

    @property
    def fatal(self) -> bool:
        """Whether there is a mistake that leaving rows out does not mend."""
        return not all(bad.skippable for bad in self.found)

    def add(
        self,
        file: str,
        line: int,
        what: str,
        detail: str = "",
        *,
        id: str = "",
        skippable: bool = True,
        advice: str = "",
    ) -> None:
        self.found.append(BadRow(file, line, what, detail, id, skippable, advice))

    def settle(self, on_bad: OnBad, left: int, file: str) -> int:
        """How many rows are left out; a UserError unless that is allowed and `left` are left."""
        if self.found and (on_bad == "stop" or self.fatal):
            raise UserError(self.report(left))
        if not left:
            empty = f"{file} has no rows."
            raise UserError(f"{self.report()}\nNo good row is left." if self.found else empty)
        return self.rows

    def report(self, left: int = 0) -> str:
        """Return the mistakes and the advice, on one screen. `left`: number of good rows."""
        many = counted(len(self.found), "mistake", "mistakes")
        head = f"The data cannot be used as it is: {many} in {counted(self.rows, 'row', 'rows')}."
        return "\n".join([head, *self.listing(), *self._advice(left)])

    def listing(self) -> list[str]:
        """Return a line for each kind of mistake, with its first row."""
        return _listing(self.found)

    def _advice(self, left: int) -> list[str]:
        special = list(dict.fromkeys(bad.advice for bad in self.found if bad.advice))
        if self.fatal:
            return [*special, "Correct the file or the columns; leaving rows out is not enough."]
        skip = 'on_bad="skip" (--set data.on_bad=skip)'
        share = self.rows / (self.rows + left)
        if share > _MANY:
            correct = [] if special else ["Correct these rows or the columns."]
            return [
                *special,
                *correct,
                f"Leaving them out, {skip}, would drop {share:.0%} of the rows.",
            ]
        return [*special, f"Correct these rows, or leave them out with {skip}."]


def check_on_bad(on_bad: str) -> None:
    if on_bad not in get_args(OnBad):
        raise UserError(f'on_bad is "stop" or "skip", not {on_bad!r:.20}.')


def _listing(found: Iterable[BadRow]) -> list[str]:
    kinds: dict[tuple[str, str], list[BadRow]] = {}
    for bad in sorted(found, key=lambda bad: (bad.skippable, bad.file, bad.line)):
        kinds.setdefault((bad.file, bad.what), []).append(bad)
    lines = [f"  - {rows[0]}{_more(rows[1:])}" for rows in list(kinds.values())[:SHOWN]]
    if (hidden := len(kinds) - SHOWN) > 0:
        lines.append(f"  ... and {counted(hidden, 'other kind', 'other kinds')} of mistake")
    return lines


def _more(rows: list[BadRow]) -> str:
    if not rows:
        return ""
    shown = ", ".join(str(bad.line) for bad in rows[:_LINES])
    rest = ", ..." if len(rows) > _LINES else ""
    return f"; {len(rows):,} more like it (line{'s' if len(rows) > 1 else ''} {shown}{rest})"
