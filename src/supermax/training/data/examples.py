"""Examples and corpora: texts, also with a question, with a class, spans, a number, labels or
entities."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from supermax.agents import agent_of
from supermax.agents.agent import CLASSES, ENTITIES, LABEL_SETS, NUMBERS, SPANS, TARGETS, Target
from supermax.training.data.entities import Entity
from supermax.training.data.spans import Span


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
    value: float | None = None
    """Number to predict; None: the example is not for numbers."""
    labels: tuple[int, ...] | None = None
    """Its labels as ascending indices of the corpus's label names; (): it has none of them; None:
    the example is not for sets of labels."""
    entities: tuple[Entity, ...] | None = None
    """Entities of the text, which do not overlap; (): none; None: the example is not for them."""
    words: tuple[Span, ...] = ()
    """Words of a text that came as a list of words; (): the text is split by `words_in`."""

    def has(self, target: Target) -> bool:
        """Return True if the example is labelled for a target."""
        return getattr(self, target.field) is not None

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
    """Examples for classes, for spans, for both, for numbers, for sets of labels, or for
    entities."""

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
    numbers: tuple[Example, ...] = ()
    label_sets: tuple[Example, ...] = ()
    entities: tuple[Example, ...] = ()
    remarks: tuple[str, ...] = ()
    """Sentences about parts of the source that are not read."""

    @property
    def examples(self) -> tuple[Example, ...]:
        return tuple(example for target in TARGETS for example in self.of(target))

    def count(self, agent: str) -> int:
        """Return the number of examples that an agent uses."""
        return sum(len(self.of(target)) for target in agent_of(agent).targets)

    def of(self, target: Target) -> tuple[Example, ...]:
        """Return the examples for a target."""
        examples = {
            CLASSES: self.classes,
            SPANS: self.spans,
            NUMBERS: self.numbers,
            LABEL_SETS: self.label_sets,
            ENTITIES: self.entities,
        }
        return examples[target]

    def used_by(self, agent: str) -> Corpus:
        """Return the corpus without the examples that an agent does not use."""
        targets = agent_of(agent).targets
        return self._with(lambda target: self.of(target) if target in targets else ())

    @property
    def fingerprint(self) -> str:
        """Digest of everything that training and splits depend on; ids are not part of it."""
        digest = hashlib.sha256(repr(self.label_names).encode())
        for e in self.examples:
            facts = (e.group, e.text, e.question, e.label, e.spans)
            number = () if e.value is None else (e.value,)
            labels = () if e.labels is None else (e.labels,)
            entities = () if e.entities is None else (e.entities, e.words)
            digest.update(repr((*facts, *number, *labels, *entities)).encode())
        return digest.hexdigest()[:16]

    def only(self, wanted: Callable[[Example], bool]) -> Corpus:
        return self._with(lambda target: tuple(filter(wanted, self.of(target))))

    def with_more(self, other: Corpus) -> Corpus:
        """Return the corpus with the examples of another one after its own."""
        return self._with(lambda target: self.of(target) + other.of(target))

    def _with(self, examples: Callable[[Target], tuple[Example, ...]]) -> Corpus:
        """Return the corpus with the examples that the function returns for each target."""
        return replace(
            self,
            classes=examples(CLASSES),
            spans=examples(SPANS),
            numbers=examples(NUMBERS),
            label_sets=examples(LABEL_SETS),
            entities=examples(ENTITIES),
        )
