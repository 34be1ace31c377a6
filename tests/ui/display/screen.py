"""A terminal's screen, as far as the displays use one: enough to see what a person would see."""

from __future__ import annotations

import re

from rich.cells import cell_len

TOKEN = re.compile(r"\x1b\[([\d;]*)([A-Za-z])|\x1b\[\?[\d;]*[a-z]|[\r\n\b\x07]|[^\x1b\r\n\b\x07]")


class Screen:
    """Rows of text and a cursor. Lines that are too long wrap, and are counted; a narrower screen
    breaks them anew, as most terminals do. Nothing is ever dropped: the scrollback is on top."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.rows: list[str] = [""]
        self.row = self.column = 0
        self.wraps = 0
        self._rest = ""

    def resize(self, width: int, height: int) -> None:
        broken: list[str] = []
        for number, row in enumerate(self.rows):
            if number == self.row:
                cursor = len(broken)
            pieces = [row[i : i + width] for i in range(0, len(row), width)] or [""]
            broken += pieces
        self.rows, self.row, self.column = broken, cursor, min(self.column, width)
        self.width, self.height = width, height

    def feed(self, data: str) -> None:
        data = self._rest + data
        at = 0
        while match := TOKEN.match(data, at):
            at = match.end()
            self._take(match)
        self._rest = data[at:]

    def _take(self, match: re.Match[str]) -> None:
        token, (number, code) = match.group(), match.groups()
        if code == "A":
            top = max(0, len(self.rows) - self.height)
            self.row = max(top, self.row - int(number or 1))
        elif code == "K":
            self.rows[self.row] = ""
        elif token == "\r":
            self.column = 0
        elif token == "\n":
            self._down()
        elif token == "\b":
            self.column = max(0, self.column - 1)
        elif token[0] not in "\x1b\x07":
            self._put(token)

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append("")

    def _put(self, char: str) -> None:
        if self.column + cell_len(char) > self.width:
            self.wraps += 1
            self._down()
            self.column = 0
        row = self.rows[self.row].ljust(self.column)
        self.rows[self.row] = row[: self.column] + char + row[self.column + 1 :]
        self.column += cell_len(char)

    @property
    def text(self) -> str:
        """All that was ever on it and was not erased."""
        return "\n".join(row.rstrip() for row in self.rows)

    @property
    def visible(self) -> list[str]:
        return [row.rstrip() for row in self.rows[-self.height :]]
