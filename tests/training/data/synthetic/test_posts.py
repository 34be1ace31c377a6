"""Synthetic data has ReDSM5's form and proportions, and its difficulty can be set."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

from supermax.training.data.examples import Corpus, Example
from supermax.training.data.redsm5 import SYMPTOMS, read_redsm5
from supermax.training.data.splits import split
from supermax.training.data.synthetic import synthetic
from supermax.training.data.synthetic.symptom_templates import WORDINGS
from tests.training.redsm5_files import write_redsm5


def posts_of(corpus: Corpus) -> dict[str, str]:
    return {e.group: e.text for e in corpus.spans}


def test_proportions_and_lengths() -> None:
    corpus = synthetic()
    labels = [e.label for e in corpus.classes]
    assert (len(posts_of(corpus)), labels.count(1), labels.count(0)) == (1484, 427, 1631)
    words = [len(text.split()) for text in posts_of(corpus).values()]
    assert 280 < statistics.mean(words) < 310
    assert statistics.median(words) < 200
    assert 3000 < max(words) < 7000
    assert {e.question for e in corpus.classes} == set(SYMPTOMS.values())


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.floats(0, 1), st.integers(0, 999))
def test_form(posts: int, difficulty: float, seed: int) -> None:
    corpus = synthetic(posts, difficulty=difficulty, seed=seed, max_words=80)
    assert corpus == synthetic(posts, difficulty=difficulty, seed=seed, max_words=80)
    assert len(posts_of(corpus)) == posts
    assert len({e.id for e in corpus.examples}) == len(corpus.examples)
    assert corpus.label_names == ("absent", "present")
    shown = sum(bool(e.spans) for e in corpus.spans)
    assert 1 <= shown <= sum(e.label or 0 for e in corpus.classes)
    for example in corpus.classes:
        assert example.text in posts_of(corpus)[example.group]
        assert "{" not in example.text


@settings(max_examples=25, deadline=None)
@given(st.floats(0, 1), st.integers(0, 999))
def test_spans_are_the_sentences_annotated_as_present(difficulty: float, seed: int) -> None:
    corpus = synthetic(30, difficulty=difficulty, seed=seed, max_words=80)
    for post in corpus.spans:
        sentences = [e.text for e in corpus.classes if _same(e, post) and e.label == 1]
        pieces = [post.text[start:end] for start, end in post.spans or ()]
        assert sum(len(piece.split()) for piece in pieces) == sum(
            len(sentence.split()) for sentence in sentences
        )
        assert all(any(sentence in piece for piece in pieces) for sentence in sentences)


def _same(sentence: Example, post: Example) -> bool:
    return (sentence.group, sentence.question) == (post.group, post.question)


def test_seeds_and_difficulties_differ() -> None:
    prints = {synthetic(20, seed=s, difficulty=d).fingerprint for s in (0, 1) for d in (0.2, 0.8)}
    assert len(prints) == 4


def test_max_words() -> None:
    texts = posts_of(synthetic(200, max_words=60, difficulty=0.3)).values()
    assert statistics.mean(len(text.split()) for text in texts) < 60
    assert max(len(text.split()) for text in texts) < 150  # annotated sentences always stay


@pytest.mark.parametrize("difficulty", [0.0, 1.0])
def test_written_files_read_back_the_same(tmp_path: Path, difficulty: float) -> None:
    made = synthetic(120, difficulty=difficulty, seed=3)
    folder = write_redsm5(tmp_path / "data", made)
    assert read_redsm5(folder, name="synthetic") == made


def test_difficulty_grows_and_a_bag_of_words_is_not_enough() -> None:
    easy, middle, hard = (_baseline(difficulty) for difficulty in (0.0, 0.3, 1.0))
    assert easy > 0.95
    assert easy - 0.08 > middle > hard + 0.08
    assert hard < 0.75


def _baseline(difficulty: float) -> float:
    """Return the macro F1 of TF-IDF with logistic regression."""
    parts = split(synthetic(1000, difficulty=difficulty, max_words=30))
    train, test = parts.train.classes, parts.validation.classes + parts.test.classes
    words = TfidfVectorizer(token_pattern=r"\w+")
    model = LogisticRegression(C=10, max_iter=1000, class_weight="balanced")
    model.fit(words.fit_transform(map(_pair, train)), [e.label for e in train])
    found = model.predict(words.transform(map(_pair, test)))
    return float(f1_score([e.label for e in test], found, average="macro"))


def _pair(example: Example) -> str:
    return f"{example.question} {example.text}"


def test_every_symptom_has_its_wording() -> None:
    assert set(WORDINGS) == set(SYMPTOMS)
