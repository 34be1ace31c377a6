"""Report on bad rows: one line for each kind of mistake with a count, and no text of the data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from supermax._util.text import counted
from supermax.errors import UserError
from supermax.training.data.names import is_name
from supermax.training.data.places import Place, listed_places

OnBad = Literal["stop", "skip"]
"""Treatment of bad rows: an error, or skip and count them."""
SHOWN = 20
"""Kinds of mistakes that are listed."""
_PLACES = 3  # further places that are listed for a kind
_MANY = 0.1
"""Share of bad rows above which skipping them is not advised."""


@dataclass(frozen=True)
class BadRow:
    place: Place
    what: str
    """Kind of mistake: rows of the same kind are listed together."""
    detail: str = ""
    """Details of this row, after the kind."""
    id: str = ""
    skippable: bool = True
    """False: skipping the row does not help."""
    advice: str = ""
    """Advice for this mistake; empty: correct the row."""

    def __str__(self) -> str:
        named = f" (id {self.id})" if is_name(self.id) else ""
        return f"{self.place}{named}: {self.what}{self.detail}"


@dataclass
class BadRows:
    """Mistakes that were found so far."""

    found: list[BadRow] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Number of bad rows; a row may have several mistakes."""
        return len({bad.place for bad in self.found})

    @property
    def fatal(self) -> bool:
        """True if there is a mistake that cannot be skipped."""
        return not all(bad.skippable for bad in self.found)

    def add(
        self,
        place: Place,
        what: str,
        detail: str = "",
        *,
        id: str = "",
        skippable: bool = True,
        advice: str = "",
    ) -> None:
        self.found.append(BadRow(place, what, detail, id, skippable, advice))

    def settle(self, on_bad: OnBad, left: int, file: str) -> int:
        """Return the number of skipped rows, where `left` good rows are left.

        Raises UserError if bad rows may not be skipped, or if no good row is left.
        """
        if self.found and (on_bad == "stop" or self.fatal):
            raise UserError(self.report(left))
        if not left:
            empty = f"{file} has no rows."
            raise UserError(f"{self.report()}\nNo good row is left." if self.found else empty)
        return self.rows

    def report(self, left: int = 0) -> str:
        """Return the mistakes and the advice, on one screen. `left` is the number of good rows."""
        count = counted(len(self.found), "mistake", "mistakes")
        rows = counted(self.rows, "row", "rows")
        heading = f"The data cannot be used as it is: {count} in {rows}."
        return "\n".join([heading, *self.listing(), *self._advice(left)])

    def listing(self) -> list[str]:
        """Return a line for each kind of mistake, with its first row."""
        kinds: dict[tuple[str, str], list[BadRow]] = {}
        for bad in sorted(self.found, key=lambda bad: (bad.skippable, bad.place)):
            kinds.setdefault((bad.place.source, bad.what), []).append(bad)
        lines = [f"  - {rows[0]}{_more(rows[1:])}" for rows in list(kinds.values())[:SHOWN]]
        if (hidden := len(kinds) - SHOWN) > 0:
            lines.append(f"  ... and {counted(hidden, 'other kind', 'other kinds')} of mistake")
        return lines

    def _advice(self, left: int) -> list[str]:
        special = list(dict.fromkeys(bad.advice for bad in self.found if bad.advice))
        if self.fatal:
            return [*special, "Correct the file or the columns; leaving rows out is not enough."]
        skip = 'on_bad="skip" (--set data.on_bad=skip, or --on-bad skip to predict)'
        share = self.rows / (self.rows + left)
        if share > _MANY:
            correct = special or ["Correct these rows or the columns."]
            return [*correct, f"Leaving them out, {skip}, would drop {share:.0%} of the rows."]
        return [*special, f"Correct these rows, or leave them out with {skip}."]


def check_on_bad(on_bad: str) -> None:
    if on_bad not in get_args(OnBad):
        raise UserError(f'on_bad is "stop" or "skip", not {on_bad!r:.20}.')


def _more(rows: list[BadRow]) -> str:
    if not rows:
        return ""
    places = listed_places([bad.place for bad in rows], _PLACES)
    return f"; {len(rows):,} more like it ({places})"
