"""Baselines for entities that a fine-tuned encoder has to beat.

most frequent tags: each word has the tag that it has most often in training
words:              logistic regression on a word, its shape and ends, and its neighbours
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from supermax.training.data.entities import OUTSIDE, Entity, chunks, parsed_class, tags_of
from supermax.training.data.entities.token_tags import words_of
from supermax.training.data.examples import Corpus, Example
from supermax.training.eval.entity_metrics import entity_metrics

_EPOCHS = 10
_PENALTY = 1e-5  # alpha of the stochastic gradient descent


def most_frequent_tags(train: Corpus, validation: Corpus) -> dict[str, float]:
    """Return the metrics on validation of the most frequent tag of each word. Words that train
    does not have are part of no entity."""
    counts: dict[str, Counter[int]] = {}
    for example in train.entities:
        for word, tag in zip(_words(example), _tags(example), strict=True):
            counts.setdefault(word, Counter())[tag] += 1
    best = {word: own.most_common(1)[0][0] for word, own in counts.items()}
    predicted = [[best.get(word, OUTSIDE) for word in _words(e)] for e in validation.entities]
    return _metrics(predicted, validation)


def regression_on_words(train: Corpus, validation: Corpus) -> dict[str, float]:
    """Return the metrics on validation of a logistic regression on the words of train."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import SGDClassifier

    tags = np.array([tag for example in train.entities for tag in _tags(example)])
    if len(set(tags.tolist())) < 2:  # the regression needs two classes
        return _metrics([[OUTSIDE] * len(words_of(e)) for e in validation.entities], validation)
    vectorizer = CountVectorizer(analyzer=list, binary=True)  # of lists of features
    rows = vectorizer.fit_transform([own for e in train.entities for own in _features(e)])
    model = SGDClassifier(
        loss="log_loss", alpha=_PENALTY, max_iter=_EPOCHS, tol=None, random_state=0
    )
    model.fit(rows, tags)
    predicted = [
        model.predict(vectorizer.transform(list(_features(e)))).tolist() if words_of(e) else []
        for e in validation.entities
    ]
    return _metrics(predicted, validation)


def _words(example: Example) -> list[str]:
    return [example.text[start:end] for start, end in words_of(example)]


def _tags(example: Example) -> list[int]:
    return tags_of(words_of(example), example.entities or ())


def _features(example: Example) -> Iterator[list[str]]:
    """Yield the features of each word: of itself, of its ends, and of the words beside it."""
    words = _words(example)
    padded = ["<", *words, ">"]
    for i, word in enumerate(words, 1):
        lower = word.lower()
        names = [f"word {word}", f"lower {lower}", f"shape {_shape(word)}"]
        names += [f"begins {lower[:3]}", f"ends {lower[-3:]}", f"first {i == 1}"]
        for place in (i - 1, i + 1):
            near, side = padded[place], "before" if place < i else "after"
            names += [f"{side} {near.lower()}", f"{side} shape {_shape(near)}"]
        yield names


def _shape(word: str) -> str:
    """Return the kinds of a word's characters, such as Aa for Anna and 0 for 1987."""
    kinds = (
        "0" if c.isdigit() else "A" if c.isupper() else "a" if c.isalpha() else c for c in word
    )
    return re.sub(r"(.)\1+", r"\1", "".join(kinds))


def _metrics(predicted: Sequence[Sequence[int]], validation: Corpus) -> dict[str, float]:
    found = [
        _entities(example, tags)
        for example, tags in zip(validation.entities, predicted, strict=True)
    ]
    true = [example.entities or () for example in validation.entities]
    return entity_metrics(true, found, len(validation.label_names))


def _entities(example: Example, tags: Sequence[int]) -> list[Entity]:
    words = words_of(example)
    found = chunks(map(parsed_class, tags))
    return [Entity(words[first][0], words[end - 1][1], kind) for first, end, kind in found]
