"""Options that all readers of tables share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from supermax.training.data.bad_rows import OnBad, check_on_bad
from supermax.training.data.columns import Columns
from supermax.training.data.encodings import UTF8
from supermax.training.data.rows import Rows, plain


@dataclass(frozen=True)
class ReadOptions:
    """Options of a reader. Raises UserError for a value of `on_bad` that there is not."""

    name: str | None = None
    """Name of the corpus; None: that of the source."""
    labels: Sequence[str] | None = None
    """Labels, or types of entities, in their order; None: those of the rows."""
    on_bad: OnBad = "stop"
    encoding: str | None = None
    """Encoding of the file; None: it is detected."""
    own_splits: bool = False
    """Use the source's own splits, if it has any, unless a column is mapped as split."""

    def __post_init__(self) -> None:
        check_on_bad(self.on_bad)

    @property
    def known_labels(self) -> tuple[str, ...]:
        """Labels as text; empty if none are given."""
        return tuple(plain(label) or "" for label in self.labels or ())

    def with_split(self, columns: Columns, table: Rows) -> Columns:
        """Return the columns, with that of the source's own splits."""
        if self.own_splits and columns.split is None:
            return replace(columns, split=table.split)
        return columns

    def detected(self, table: Rows) -> str:
        """Return the encoding that was detected; empty if it was given, or is UTF-8."""
        return table.encoding if self.encoding is None and table.encoding != UTF8 else ""
