"""TF-IDF baselines that a fine-tuned encoder has to beat.

classes: TF-IDF of the words, alone and crossed with the question, and logistic regression
numbers: the same features, and ridge regression
labels:  the same features, and a logistic regression for each label against the others
spans:   the sentence whose TF-IDF is most similar to the evidence for its question, or none
Those for entities are in `entity_baseline.py`.
"""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from supermax.training.data.examples import Corpus, Example
from supermax.training.data.label_sets import indicators
from supermax.training.eval.decode import best_threshold, gains
from supermax.training.eval.entity_baseline import most_frequent_tags, regression_on_words
from supermax.training.eval.label_metrics import label_metrics
from supermax.training.eval.metrics import Bools, Floats, Ints, Span, class_metrics, span_metrics
from supermax.training.eval.number_metrics import number_metrics

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

_STRENGTHS = (1.0, 10.0, 100.0)  # C of the logistic regression: the inverse of the L2 penalty
_PENALTIES = (0.1, 1.0, 10.0)  # alpha of the ridge regression
_FOLDS = 3
_MOST_CHOOSING = 4  # labels by which a strength is chosen


def baseline(train: Corpus, validation: Corpus) -> dict[str, float]:
    """Return the metrics on validation of TF-IDF models fitted on train."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    values: dict[str, float] = {}
    if train.classes and validation.classes:
        with threadpool_limits(1):  # the products are too small for BLAS threads to pay
            probabilities = _class_probabilities(train, validation.classes)
        values |= class_metrics(_labels(validation.classes), probabilities)
    if train.spans and validation.spans:
        predicted = _predict_sentences(train.spans, validation.spans)
        values |= span_metrics(predicted, *_truths(validation.spans))
    if train.numbers and validation.numbers:
        with threadpool_limits(1):
            guesses = _predict_numbers(train.numbers, validation.numbers)
        values |= number_metrics(_numbers(validation.numbers), guesses)
    if train.label_sets and validation.label_sets:
        with threadpool_limits(1):
            likely = _label_probabilities(train, validation.label_sets)
        values |= label_metrics(_sets(train, validation), likely > 0.5, likely)
    if train.entities and validation.entities:
        values |= regression_on_words(train, validation)
    return values


def trivial(train: Corpus, validation: Corpus) -> dict[str, float]:
    """Return the metrics on validation of the majority class of train, of no answer, of the mean
    of train, of every label for every text, and of the most frequent tag of each word in train."""
    values: dict[str, float] = {}
    if train.classes and validation.classes:
        counts = np.bincount(_labels(train.classes), minlength=len(train.label_names))
        probabilities = np.tile(np.eye(len(counts))[counts.argmax()], (len(validation.classes), 1))
        values |= class_metrics(_labels(validation.classes), probabilities)
    if validation.spans:
        values |= span_metrics([()] * len(validation.spans), *_truths(validation.spans))
    if train.numbers and validation.numbers:
        truths = _numbers(validation.numbers)
        values |= number_metrics(truths, np.full(len(truths), _numbers(train.numbers).mean()))
    if train.label_sets and validation.label_sets:
        truth = _sets(train, validation)
        every = np.ones(truth.shape)
        values |= label_metrics(truth, every, every)
    if train.entities and validation.entities:
        values |= most_frequent_tags(train, validation)
    return values


def _labels(examples: Sequence[Example]) -> Ints:
    return np.array([example.label for example in examples], dtype=np.int64)


def _numbers(examples: Sequence[Example]) -> Floats:
    return np.array([example.value for example in examples], dtype=np.float64)


def _sets(names_of: Corpus, corpus: Corpus) -> Bools:
    return np.asarray(indicators(corpus.label_sets, len(names_of.label_names)) > 0)


def _label_probabilities(train: Corpus, examples: Sequence[Example]) -> Floats:
    """Return the probabilities of each label [N, L]; 0 or 1 where all or none of train have it.

    One strength for all labels is chosen by a few frequent ones, since there may be hundreds.
    """
    truth = _sets(train, train)
    shares = truth.mean(axis=0)
    probabilities = np.tile(np.round(shares), (len(examples), 1))
    learnt = [int(i) for i in np.flatnonzero((shares > 0) & (shares < 1))]
    frequent = sorted(learnt, key=lambda i: abs(shares[i] - 0.5))[:_MOST_CHOOSING]
    if not learnt:
        return probabilities
    strengths = [_best_strength(train.label_sets, truth[:, i].astype(np.int64)) for i in frequent]
    vectorizer = _vectorizer()
    features = vectorizer.fit_transform(train.label_sets)
    rows = vectorizer.transform(examples)
    for i in learnt:
        model = _regression(float(np.median(strengths))).fit(features, truth[:, i])
        probabilities[:, i] = model.predict_proba(rows)[:, 1]
    return probabilities


def _predict_numbers(train: Sequence[Example], examples: Sequence[Example]) -> Floats:
    """Return the predictions of a ridge regression."""
    from sklearn.linear_model import Ridge

    vectorizer, numbers = _vectorizer(), _numbers(train)
    features = vectorizer.fit_transform(train)
    model = Ridge(alpha=_best_penalty(train, numbers), solver="lsqr").fit(features, numbers)
    return np.asarray(model.predict(vectorizer.transform(examples)), dtype=np.float64)


def _best_penalty(examples: Sequence[Example], numbers: Floats) -> float:
    """Return the penalty with the least squared error in a cross-validation over groups."""
    from sklearn.linear_model import Ridge

    fold = np.array([_fold(example, _FOLDS) for example in examples])
    errors = np.zeros(len(_PENALTIES))
    for held_out in range(_FOLDS):
        train, test = np.flatnonzero(fold != held_out), np.flatnonzero(fold == held_out)
        if not len(test) or not len(train):
            return _PENALTIES[1]  # too little data to choose by
        vectorizer = _vectorizer()
        train_features = vectorizer.fit_transform([examples[int(i)] for i in train])
        test_features = vectorizer.transform([examples[int(i)] for i in test])
        for row, penalty in enumerate(_PENALTIES):
            model = Ridge(alpha=penalty, solver="lsqr").fit(train_features, numbers[train])
            errors[row] += ((model.predict(test_features) - numbers[test]) ** 2).sum()
    return _PENALTIES[int(np.argmin(errors))]


def _truths(examples: Sequence[Example]) -> tuple[list[tuple[Span, ...]], list[str]]:
    """Return the true spans and the texts."""
    return [example.spans or () for example in examples], [example.text for example in examples]


def _features(example: Example) -> list[str]:
    """Return words, pairs of words, and each word crossed with the question."""
    words = re.findall(r"\w+", example.text.lower())
    pairs = [f"{one} {two}" for one, two in itertools.pairwise(words)]
    if not example.question:
        return words + pairs
    crossed = [f"{example.question}|{word}" for word in words]
    return [*words, *pairs, *crossed, f"{example.question}|"]


def _class_probabilities(train: Corpus, examples: Sequence[Example]) -> Floats:
    labels = _labels(train.classes)
    probabilities = np.zeros((len(examples), len(train.label_names)))
    if len(present := np.unique(labels)) == 1:
        probabilities[:, present[0]] = 1  # the regression needs two classes
        return probabilities
    vectorizer = _vectorizer()
    model = _regression(_best_strength(train.classes, labels))
    model.fit(vectorizer.fit_transform(train.classes), labels)
    probabilities[:, model.classes_] = model.predict_proba(vectorizer.transform(examples))
    return probabilities


def _vectorizer() -> TfidfVectorizer:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(analyzer=_features, sublinear_tf=True)


def _regression(strength: float) -> LogisticRegression:
    """Return a logistic regression with the Newton solver, three times as fast as the default."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(
        C=strength, class_weight="balanced", max_iter=2000, solver="newton-cg"
    )


def _best_strength(examples: Sequence[Example], labels: Ints) -> float:
    """Return the strength with the best macro F1 in a cross-validation over groups."""
    from sklearn.metrics import f1_score

    fold = np.array([_fold(example, _FOLDS) for example in examples])
    predictions = np.full((len(_STRENGTHS), len(labels)), -1)
    for held_out in range(_FOLDS):
        train, test = np.flatnonzero(fold != held_out), np.flatnonzero(fold == held_out)
        if not len(test) or len(np.unique(labels[train])) < 2:
            return _STRENGTHS[1]  # too little data to choose by
        vectorizer = _vectorizer()
        train_features = vectorizer.fit_transform([examples[int(i)] for i in train])
        test_features = vectorizer.transform([examples[int(i)] for i in test])
        for row, strength in enumerate(_STRENGTHS):
            model = _regression(strength).fit(train_features, labels[train])
            predictions[row, test] = model.predict(test_features)
    scores = [f1_score(labels, predicted, average="macro") for predicted in predictions]
    return _STRENGTHS[int(np.argmax(scores))]


def _fold(example: Example, folds: int) -> int:
    """Return the fold of the example's group: unlike `hash`, the same in every process."""
    return zlib.crc32(example.group.encode()) % folds


def sentences(text: str) -> list[Span]:
    """Split a text roughly into sentences, at `.`, `!`, `?` and line ends."""
    found = []
    for match in re.finditer(r"[^.!?\n]+[.!?]*", text):
        start, end = match.span()
        inner = match.group()
        start += len(inner) - len(inner.lstrip())
        end -= len(inner) - len(inner.rstrip())
        if start < end:
            found.append((start, end))
    return found


def _predict_sentences(train: Sequence[Example], examples: Sequence[Example]) -> list[list[Span]]:
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
    vectorizer.fit([e.text for e in train] + [_words(e.question) for e in train])
    threshold = _threshold(train, vectorizer)
    spans, scores = _best_sentence(examples, _profiles(train, vectorizer), vectorizer)
    return [
        [span] if span is not None and score > threshold else []
        for span, score in zip(spans, scores, strict=True)
    ]


def _threshold(train: Sequence[Example], vectorizer: TfidfVectorizer) -> float:
    """Return the score above which an answer is given, cross-fitted over groups."""
    margins, gained = [], []
    for held_out in range(2):
        test = [e for e in train if _fold(e, 2) == held_out]
        fitted_on = [e for e in train if _fold(e, 2) != held_out]
        if not test or not fitted_on:
            continue
        spans, scores = _best_sentence(test, _profiles(fitted_on, vectorizer), vectorizer)
        best = [[] if span is None else [span] for span in spans]
        margins.append(scores)
        gained.append(gains(best, *_truths(test)))
    if not margins:
        return 0.0
    return best_threshold(np.concatenate(margins), np.concatenate(gained))[0]


def _words(question: str) -> str:
    return re.sub(r"[_\W]+", " ", question)  # DEPRESSED_MOOD is two words


def _profiles(train: Sequence[Example], vectorizer: TfidfVectorizer) -> dict[str, Floats]:
    """Return for each question the mean TF-IDF of its evidence minus that of other sentences."""
    questions: dict[str, tuple[list[str], list[str]]] = {}
    for example in train:
        evidence, other = questions.setdefault(example.question, ([], []))
        for start, end in sentences(example.text):
            is_evidence = any(start < last and first < end for first, last in example.spans or ())
            (evidence if is_evidence else other).append(example.text[start:end])
    return {
        question: _mean(vectorizer, [*evidence, _words(question)]) - _mean(vectorizer, other)
        for question, (evidence, other) in questions.items()
    }


def _mean(vectorizer: TfidfVectorizer, texts: list[str]) -> Floats:
    if not texts:
        return np.zeros(len(vectorizer.vocabulary_))
    return np.asarray(vectorizer.transform(texts).mean(axis=0), dtype=np.float64).ravel()


def _best_sentence(
    examples: Sequence[Example], profiles: dict[str, Floats], vectorizer: TfidfVectorizer
) -> tuple[list[Span | None], Floats]:
    """Return the best sentence of each example and its score; None if it has no sentence."""
    spans: list[Span | None] = []
    scores = np.zeros(len(examples))
    for row, example in enumerate(examples):
        profile = profiles.get(example.question)
        if profile is None:  # the question is not in train: use its own words
            profile = _mean(vectorizer, [_words(example.question)])
        bounds = sentences(example.text)
        if not bounds:
            spans.append(None)
            continue
        similarity = vectorizer.transform([example.text[a:b] for a, b in bounds]) @ profile
        spans.append(bounds[int(np.argmax(similarity))])
        scores[row] = float(np.max(similarity))
    return spans, scores
