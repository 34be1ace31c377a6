"""Places of rows in their source, for messages: line, index or file."""

from __future__ import annotations

from dataclasses import dataclass

LINE, INDEX, FILE = "line", "row index", "file"
_PLURALS = {LINE: "lines", INDEX: "row indices", FILE: "files"}
_LONGEST_PATH = 100


@dataclass(frozen=True, order=True, slots=True)
class Place:
    """Place of a row: a line of a text file, from 1; an index of a Parquet file, a data frame or a
    dataset, from 0; a file of a folder."""

    source: str
    """Name of the file, folder or dataset; with its split, if a dataset has several."""
    number: int = 0
    unit: str = LINE
    """LINE, INDEX or FILE; empty: the whole source."""
    file: str = ""
    """Path of a FILE within its folder."""

    @property
    def at(self) -> str:
        """Line, index or file. A name of a file that may be a text is replaced by its number."""
        shown = len(self.file) <= _LONGEST_PATH and not any(map(str.isspace, self.file))
        return (self.file if shown else f"number {self.number}") or str(self.number)

    @property
    def short(self) -> str:
        """Place within the source: "line 3"."""
        return f"{self.unit} {self.at}"

    def within(self, other: Place) -> str:
        """Return the place as it is named beside another one, in short if in the same source."""
        return self.short if self.source == other.source else str(self)

    @property
    def id(self) -> str:
        """Identifier of a row that has none of its own."""
        return f"{self.source}:{self.file or self.number}"

    def __str__(self) -> str:
        return f"{self.source}, {self.short}" if self.unit else self.source


def listed_places(places: list[Place], most: int) -> str:
    """Return the first places of one source: "lines 3, 4, 5, ..."."""
    unit = places[0].unit if len(places) == 1 else _PLURALS.get(places[0].unit, "")
    shown = ", ".join(place.at for place in places[:most])
    return f"{unit} {shown}{', ...' if len(places) > most else ''}"
