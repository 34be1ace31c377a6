"""What counting words achieves: the bar that a fine-tuned encoder has to clear.

classes: TF-IDF of the words, alone and together with the question, and logistic regression
spans:   the sentence whose TF-IDF is most like the evidence for its question, or none
"""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from supermax.training.data.examples import Corpus, Example
from supermax.training.decode import best_threshold
from supermax.training.metrics import Floats, Span, class_metrics, span_metrics, token_f1

_STRENGTHS = (1.0, 10.0, 100.0)
_FOLDS = 3


def baseline(train: Corpus, validation: Corpus) -> dict[str, float]:
    """The metrics, on validation, of simple models that learnt from train alone."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    values: dict[str, float] = {}
    if train.classes and validation.classes:
        labels = [_label(example) for example in validation.classes]
        with threadpool_limits(1):  # threads of BLAS cost more than these small products
            probabilities = _class_probabilities(train, validation.classes)
        values |= class_metrics(labels, probabilities)
    if train.spans and validation.spans:
        texts = [example.text for example in validation.spans]
        true = [example.spans or () for example in validation.spans]
        values |= span_metrics(_best_sentences(train.spans, validation.spans), true, texts)
    return values


def trivial(train: Corpus, validation: Corpus) -> dict[str, float]:
    """The metrics, on validation, of the class that is most frequent in train and of no answer."""
    values: dict[str, float] = {}
    if train.classes and validation.classes:
        counts = np.bincount([_label(e) for e in train.classes], minlength=len(train.label_names))
        probabilities = np.tile(np.eye(len(counts))[counts.argmax()], (len(validation.classes), 1))
        values |= class_metrics([_label(e) for e in validation.classes], probabilities)
    if validation.spans:
        true = [example.spans or () for example in validation.spans]
        texts = [example.text for example in validation.spans]
        values |= span_metrics([()] * len(texts), true, texts)
    return values


# Classes.


def _label(example: Example) -> int:
    assert example.label is not None, "an example for classes has a class"
    return example.label


def _features(example: Example) -> list[str]:
    """Words and pairs of words; each word also with its question, as its sense depends on it."""
    words = re.findall(r"\w+", example.text.lower())
    pairs = [f"{one} {two}" for one, two in itertools.pairwise(words)]
    if not example.question:
        return words + pairs
    asked = [f"{example.question}|{word}" for word in words]
    return [*words, *pairs, *asked, f"{example.question}|"]


def _class_probabilities(train: Corpus, examples: Sequence[Example]) -> Floats:
    labels = np.array([_label(example) for example in train.classes])
    probabilities = np.zeros((len(examples), len(train.label_names)))
    if len(present := np.unique(labels)) == 1:
        probabilities[:, present[0]] = 1  # nothing to tell apart
        return probabilities
    model = _fitted(train.classes, labels)
    probabilities[:, model.classes_] = model.predict_proba(examples)
    return probabilities


def _fitted(examples: Sequence[Example], labels: Any) -> Any:
    """The model, with the strength of its regularisation chosen by groups of the training set."""
    from sklearn.pipeline import make_pipeline

    strength = _best_strength(examples, labels)
    return make_pipeline(_vectorizer(), _regression(strength)).fit(examples, labels)


def _vectorizer() -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(analyzer=_features, sublinear_tf=True)


def _regression(strength: float) -> Any:
    """Logistic regression by Newton's method, which takes a third of the time of the default."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(
        C=strength, class_weight="balanced", max_iter=2000, solver="newton-cg"
    )


def _best_strength(examples: Sequence[Example], labels: Any) -> float:
    from sklearn.metrics import f1_score

    fold = np.array([_fold(example, _FOLDS) for example in examples])
    guesses = np.full((len(_STRENGTHS), len(labels)), -1)
    for held_out in range(_FOLDS):
        learn, judge = np.flatnonzero(fold != held_out), np.flatnonzero(fold == held_out)
        if not len(judge) or len(np.unique(labels[learn])) < 2:
            return _STRENGTHS[1]  # too little to choose by
        vectorizer = _vectorizer()
        seen = vectorizer.fit_transform([examples[int(i)] for i in learn])
        unseen = vectorizer.transform([examples[int(i)] for i in judge])
        for row, strength in enumerate(_STRENGTHS):
            fitted = _regression(strength).fit(seen, labels[learn])
            guesses[row, judge] = fitted.predict(unseen)
    scores = [f1_score(labels, guess, average="macro") for guess in guesses]
    return _STRENGTHS[int(np.argmax(scores))]


def _fold(example: Example, folds: int) -> int:
    """The same on every machine and in every run, as Python's own hash of a text is not."""
    return zlib.crc32(example.group.encode()) % folds


# Spans.


def sentences(text: str) -> list[Span]:
    """The sentences, roughly: up to a full stop, a question mark or the like, or a line's end."""
    found = []
    for match in re.finditer(r"[^.!?\n]+[.!?]*", text):
        start, end = match.span()
        inner = match.group()
        start += len(inner) - len(inner.lstrip())
        end -= len(inner) - len(inner.rstrip())
        if start < end:
            found.append((start, end))
    return found


def _best_sentences(train: Sequence[Example], examples: Sequence[Example]) -> list[list[Span]]:
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
    vectorizer.fit([e.text for e in train] + [_words(e.question) for e in train])
    threshold = _threshold(train, vectorizer)
    spans, scores = _ranked(examples, _profiles(train, vectorizer), vectorizer)
    return [
        [span] if span is not None and score > threshold else []
        for span, score in zip(spans, scores, strict=True)
    ]


def _threshold(train: Sequence[Example], vectorizer: Any) -> float:
    """The score from which an answer is given, chosen on posts the profiles have not seen."""
    margins, gains = [], []
    for held_out in range(2):
        judged = [e for e in train if _fold(e, 2) == held_out]
        seen = [e for e in train if _fold(e, 2) != held_out]
        if not judged or not seen:
            continue
        spans, scores = _ranked(judged, _profiles(seen, vectorizer), vectorizer)
        guesses = [[] if span is None else [span] for span in spans]
        true = [e.spans or () for e in judged]
        silent = np.array([float(not some) for some in true])
        margins.append(scores)
        gains.append(token_f1(guesses, true, [e.text for e in judged]) - silent)
    if not margins:
        return 0.0
    return best_threshold(np.concatenate(margins), np.concatenate(gains))


def _words(question: str) -> str:
    return re.sub(r"[_\W]+", " ", question)  # DEPRESSED_MOOD is two words


def _profiles(train: Sequence[Example], vectorizer: Any) -> dict[str, Floats]:
    """For every question, what its evidence has more of than other sentences do."""
    questions: dict[str, tuple[list[str], list[str]]] = {}
    for example in train:
        evidence, other = questions.setdefault(example.question, ([], []))
        for start, end in sentences(example.text):
            hit = any(start < last and first < end for first, last in example.spans or ())
            (evidence if hit else other).append(example.text[start:end])
    return {
        question: _mean(vectorizer, [*evidence, _words(question)]) - _mean(vectorizer, other)
        for question, (evidence, other) in questions.items()
    }


def _mean(vectorizer: Any, texts: list[str]) -> Floats:
    if not texts:
        return np.zeros(len(vectorizer.vocabulary_))
    return np.asarray(vectorizer.transform(texts).mean(axis=0), dtype=np.float64).ravel()


def _ranked(
    examples: Sequence[Example], profiles: dict[str, Floats], vectorizer: Any
) -> tuple[list[Span | None], Floats]:
    """The best sentence of every example, and how well it fits."""
    spans: list[Span | None] = []
    scores = np.zeros(len(examples))
    for row, example in enumerate(examples):
        profile = profiles.get(example.question)
        if profile is None:  # a question that was never trained on: its own words
            profile = _mean(vectorizer, [_words(example.question)])
        bounds = sentences(example.text)
        if not bounds:
            spans.append(None)
            continue
        fits = vectorizer.transform([example.text[a:b] for a, b in bounds]) @ profile
        spans.append(bounds[int(np.argmax(fits))])
        scores[row] = float(np.max(fits))
    return spans, scores
