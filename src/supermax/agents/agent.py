"""Definition of an agent: what its examples are labelled with, its model, and words about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """Kind of label that a head learns to predict."""

    kind: str
    """Name of the head's output, and of the examples in a corpus."""
    needs: str
    """Noun of the labels in a message, and the setting that maps their column."""
    examples: str
    """Noun of the examples in a message, and their column."""
    row: str
    """Noun of the label of one row."""
    field: str
    """Attribute of an example that holds the label."""
    windowed: bool = False
    """True: a long text becomes several windows; False: it is truncated."""


CLASSES = Target(
    "classes",
    "labels (map the column of the labels: data.columns.label)",
    "classes (map the column of the labels)",
    "a label",
    field="label",
)
SPANS = Target(
    "spans",
    "answers (map the column of the answers: data.columns.answer)",
    "spans (map the column of the answers)",
    "an answer, or with none marked",
    field="spans",
    windowed=True,
)
NUMBERS = Target(
    "numbers",
    "numbers (map their column as label: data.columns.label)",
    "numbers (map their column as label, and read it with numeric=True)",
    "a number",
    field="value",
)
TARGETS = (CLASSES, SPANS, NUMBERS)


@dataclass(frozen=True)
class Agent:
    """Task of a search. Everything that depends on the task is read from here."""

    name: str
    """Name in studies, exported models and the catalog of spaces."""
    targets: tuple[Target, ...]
    """Targets of its heads, in the order of their metrics."""
    metric: str
    """Default objective."""
    purpose: str
    """Predicate of a sentence about its model."""
    aliases: tuple[str, ...] = ()
    """Other names that settings, commands and Python take; the first is the usual name."""
    encoders: int = 1
    losses: tuple[str, ...] = ("cross_entropy", "label_smoothing", "focal")
    """Values of `loss.name`, the default first."""
    redsm5: bool = True
    """It learns from ReDSM5, and belongs to the agents that `supermax tune all` runs."""

    @property
    def usual_name(self) -> str:
        """Name of the task in the field."""
        return self.aliases[0] if self.aliases else self.name

    @property
    def classes(self) -> bool:
        """True: it has a head for classes."""
        return CLASSES in self.targets

    @property
    def spans(self) -> bool:
        """True: it has a head for spans."""
        return SPANS in self.targets

    @property
    def numbers(self) -> bool:
        """True: it has a head for a number."""
        return NUMBERS in self.targets

    @property
    def text_level(self) -> bool:
        """True: it has one encoder, and outputs for the whole text only. It can pool windows of a
        long text, and read the last token of a causal decoder."""
        return self.encoders == 1 and {*self.targets} <= {CLASSES, NUMBERS}

    @property
    def truncates(self) -> bool:
        """True: it truncates texts of some of its examples."""
        return not all(target.windowed for target in self.targets)
