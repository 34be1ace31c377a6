"""The report on bad rows: every one counted, a few of each kind shown, no text of anyone in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, get_args

from supermax.errors import UserError
from supermax.training.words import is_name
from supermax.words import counted

OnBad = Literal["stop", "skip"]
SHOWN = 20


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
    ) -> None:
        self.found.append(BadRow(file, line, what, detail, id, skippable))

    def settle(self, on_bad: OnBad, left: int, file: str) -> int:
        """How many rows are left out; a UserError unless that is allowed and `left` are left."""
        if self.found and (on_bad == "stop" or self.fatal):
            raise UserError(self.report())
        if not left:
            empty = f"{file} has no rows."
            raise UserError(f"{self.report()}\nNo good row is left." if self.found else empty)
        return self.rows

    def report(self) -> str:
        """What is wrong and what to do, on one screen."""
        what_to_do = "Correct the file or the columns; leaving rows out would not be enough."
        if not self.fatal:
            skip = 'on_bad="skip" (--set data.on_bad=skip)'
            what_to_do = f"Correct these rows, or leave them out with {skip}."
        many = counted(len(self.found), "mistake", "mistakes")
        head = f"The data cannot be used as it is: {many} in {counted(self.rows, 'row', 'rows')}."
        return "\n".join([head, *_listing(self.found), what_to_do])


def check_on_bad(on_bad: str) -> None:
    if on_bad not in get_args(OnBad):
        raise UserError(f'on_bad is "stop" or "skip", not {on_bad!r:.20}.')


def _listing(found: Iterable[BadRow]) -> list[str]:
    kinds: dict[tuple[str, str], list[BadRow]] = {}
    for bad in sorted(found, key=lambda bad: (bad.skippable, bad.file, bad.line)):
        kinds.setdefault((bad.file, bad.what), []).append(bad)
    shares = _shares([len(rows) for rows in kinds.values()])
    lines = []
    for rows, share in zip(kinds.values(), shares, strict=True):
        lines += [f"  - {bad}" for bad in rows[:share]]
        if share and len(rows) > share:
            lines.append(f"    ... and {len(rows) - share:,} more like it")
    if hidden := shares.count(0):
        lines.append(f"  ... and {counted(hidden, 'other kind', 'other kinds')} of mistake")
    return lines


def _shares(sizes: list[int]) -> list[int]:
    """How many of each kind are shown: turn about, so that no kind hides another."""
    shares = [0] * len(sizes)
    left = min(SHOWN, sum(sizes))
    while left:
        for i, size in enumerate(sizes):
            if left and shares[i] < size:
                shares[i] += 1
                left -= 1
    return shares
