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
    trivial: str
    """Predictions of the trivial baseline."""
    fitted: str
    """Model of the fitted baseline."""
    task: str
    """Task of the pipelines of transformers and of the Hugging Face Hub."""
    windowed: bool = False
    """True: a long text becomes several windows; False: it is truncated."""


CLASSES = Target(
    "classes",
    "labels (map the column of the labels: data.columns.label)",
    "classes (map the column of the labels)",
    "a label",
    field="label",
    trivial="majority class",
    fitted="TF-IDF with logistic regression",
    task="text-classification",
)
SPANS = Target(
    "spans",
    "answers (map the column of the answers: data.columns.answer)",
    "spans (map the column of the answers)",
    "an answer, or with none marked",
    field="spans",
    trivial="no answer",
    fitted="most similar sentence by TF-IDF",
    task="question-answering",
    windowed=True,
)
NUMBERS = Target(
    "numbers",
    "numbers (map their column as label: data.columns.label)",
    "numbers (map their column as label, and read it with numeric=True)",
    "a number",
    field="value",
    trivial="mean",
    fitted="TF-IDF with ridge regression",
    task="text-classification",
)
LABEL_SETS = Target(
    "label_sets",
    "sets of labels (map their column as label, or the columns of 0 and 1: data.columns.labels)",
    "sets of labels (map their column as label with several=True, or columns of 0 and 1)",
    "its labels",
    field="labels",
    trivial="every label",
    fitted="TF-IDF with logistic regression",
    task="text-classification",
)
ENTITIES = Target(
    "entities",
    "entities (map the column of the tags or entities: data.columns.label)",
    "entities (map the column of the tags or entities as label, and read it with read_entities)",
    "entities, or with none marked",
    field="entities",
    trivial="most frequent tag of each word",
    fitted="logistic regression on words and their neighbours",
    task="token-classification",
    windowed=True,
)
TARGETS = (CLASSES, SPANS, NUMBERS, LABEL_SETS, ENTITIES)


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
    def label_sets(self) -> bool:
        """True: it has a head with an output for each label, of which a text has any number."""
        return LABEL_SETS in self.targets

    @property
    def entities(self) -> bool:
        """True: it has a head for the entities of a text, which classifies every token."""
        return ENTITIES in self.targets

    @property
    def named(self) -> bool:
        """True: it predicts names that the data lists: of classes, labels or types of entities."""
        return self.classes or self.label_sets or self.entities

    @property
    def windows(self) -> bool:
        """True: it splits long texts of some of its examples into windows."""
        return any(target.windowed for target in self.targets)

    @property
    def text_level(self) -> bool:
        """True: it has one encoder, and outputs for the whole text only. It can pool windows of a
        long text, and read the last token of a causal decoder."""
        return self.encoders == 1 and {*self.targets} <= {CLASSES, NUMBERS, LABEL_SETS}

    @property
    def truncates(self) -> bool:
        """True: it truncates texts of some of its examples."""
        return not all(target.windowed for target in self.targets)
