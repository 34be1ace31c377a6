"""Examples and corpora: a question and a text, with a class, spans of the text, or both."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Example:
    """Text, or question and text, with its label and spans."""

    id: str
    """Name of the row in messages, where its text never appears."""
    group: str
    """Group that must be in one split only, such as the post of a sentence."""
    text: str
    question: str = ""
    label: int | None = None
    """Class as an index of the corpus's label names; None: the example is not for classes."""
    spans: tuple[tuple[int, int], ...] | None = None
    """Answers as character ranges [start, end); (): no answer; None: the example is not for spans.

    Each of several is a correct answer by itself.
    """

    @property
    def stratum(self) -> str:
        """Stratum whose proportion all splits keep."""
        spans = "-" if self.spans is None else "span" if self.spans else "none"
        return f"{self.question}|{self.label}|{spans}"


@dataclass(frozen=True)
class Unlabelled:
    """Rows of a file without a label, which are for prediction and not trained on."""

    file: str
    rows: int
    part: str = ""
    """Train, validation or test; empty: the data comes without splits."""


@dataclass(frozen=True)
class Corpus:
    """Examples for classes, for spans, or for both."""

    name: str
    label_names: tuple[str, ...]
    classes: tuple[Example, ...] = ()
    spans: tuple[Example, ...] = ()
    skipped: int = 0
    """Bad rows that were skipped, as the user allowed."""
    unlabelled: tuple[Unlabelled, ...] = ()
    """Rows without a label. Like `skipped`, of the whole file, also in one of its splits."""
    detected: str = ""
    """Encoding of the file, if it was detected and is not UTF-8; else empty."""
    remarks: tuple[str, ...] = ()
    """Sentences about parts of the source that are not read."""

    @property
    def examples(self) -> tuple[Example, ...]:
        return self.classes + self.spans

    def count(self, agent: str) -> int:
        """Return the number of examples that an agent uses."""
        classes = len(self.classes) if agent != "evidence" else 0
        return classes + (len(self.spans) if agent != "criteria" else 0)

    @property
    def fingerprint(self) -> str:
        """Digest of everything that training and splits depend on; ids are not part of it."""
        digest = hashlib.sha256(repr(self.label_names).encode())
        for e in self.examples:
            digest.update(repr((e.group, e.text, e.question, e.label, e.spans)).encode())
        return digest.hexdigest()[:16]

    def only(self, wanted: Callable[[Example], bool]) -> Corpus:
        classes, spans = (tuple(filter(wanted, each)) for each in (self.classes, self.spans))
        return replace(self, classes=classes, spans=spans)
