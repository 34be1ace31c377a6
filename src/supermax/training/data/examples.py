"""What every task is made of: an example, and a corpus of them.

Nothing here knows about any subject: a question and a text, a class, spans of the text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Example:
    """One text, or a question and a text, with what is known about it."""

    id: str
    """Names the row wherever a person reads about it; texts never appear there."""
    group: str
    """What must not straddle train and validation: the post a sentence is from."""
    text: str
    question: str = ""
    label: int | None = None
    """The class, as its position among the corpus's label names; None: not asked."""
    spans: tuple[tuple[int, int], ...] | None = None
    """Evidence in the text, as character ranges [start, end); (): there is none; None: not
    asked. Each of several is a right answer by itself."""

    @property
    def stratum(self) -> str:
        """What splits keep in proportion."""
        spans = "-" if self.spans is None else "span" if self.spans else "none"
        return f"{self.question}|{self.label}|{spans}"


@dataclass(frozen=True)
class Unlabelled:
    """Rows of a file without a label, which are left out: they are there to be predicted."""

    file: str
    rows: int
    part: str = ""
    """Train, validation or test, where the rows come split."""


@dataclass(frozen=True)
class Corpus:
    """Examples for classes, for spans, or for both."""

    name: str
    label_names: tuple[str, ...]
    classes: tuple[Example, ...] = ()
    spans: tuple[Example, ...] = ()
    skipped: int = 0
    """Rows that were left out because they were bad, by the user's leave."""
    unlabelled: tuple[Unlabelled, ...] = ()
    """Rows of the whole file, like `skipped`, also in a part of it."""
    detected: str = ""
    """Encoding of the file, where it was detected and is not UTF-8."""

    @property
    def examples(self) -> tuple[Example, ...]:
        return self.classes + self.spans

    def count(self, agent: str) -> int:
        """Number of examples that an agent uses."""
        classes = len(self.classes) if agent != "evidence" else 0
        return classes + (len(self.spans) if agent != "criteria" else 0)

    @property
    def fingerprint(self) -> str:
        """Changes when anything that is learnt from, or split by, changes; names do not count."""
        digest = hashlib.sha256(repr(self.label_names).encode())
        for e in self.examples:
            digest.update(repr((e.group, e.text, e.question, e.label, e.spans)).encode())
        return digest.hexdigest()[:16]

    def restricted_to(self, groups: Iterable[str]) -> Corpus:
        kept = set(groups)
        return self.only(lambda example: example.group in kept)

    def only(self, wanted: Callable[[Example], bool]) -> Corpus:
        """Keep some of the examples."""
        classes, spans = (tuple(filter(wanted, each)) for each in (self.classes, self.spans))
        return replace(self, classes=classes, spans=spans)
