"""TF-IDF baselines: they learn from words, and cope with data they cannot learn from."""

from __future__ import annotations

import random

from supermax.training.data.examples import Corpus, Example
from supermax.training.eval.baseline import baseline, sentences, trivial

SIGNS = {"SLEEP_ISSUES": "insomnia", "FATIGUE": "tired"}
FILLER = ["The train was late.", "We had soup for dinner.", "It rained all day long.", "I read."]


def corpus(seed: int, count: int) -> Corpus:
    """Return posts in which both signs occur; a post shows a criterion if its own sign occurs."""
    rng = random.Random(seed)
    classes, spans = [], []
    for i in range(count):
        question = rng.choice(list(SIGNS))
        shown = [sign for sign in SIGNS.values() if rng.random() < 0.5]
        parts = [f"Again so {sign} this week." for sign in shown] + rng.sample(FILLER, 3)
        rng.shuffle(parts)
        text = " ".join(parts)
        sign = f"Again so {SIGNS[question]} this week."
        found = ((text.index(sign), text.index(sign) + len(sign)),) if sign in text else ()
        name = f"{seed}-{i}"
        classes.append(Example(name, name, text, question, int(bool(found))))
        spans.append(Example(name, name, text, question, None, found))
    return Corpus("toy", ("no", "yes"), tuple(classes), tuple(spans))


def test_it_learns_from_question_and_word() -> None:
    """The class depends on question and word together: neither alone is enough."""
    values = baseline(corpus(1, 160), corpus(2, 80))
    assert values["macro_f1"] > 0.9
    assert values["token_f1"] > 0.85
    assert values["null_accuracy"] > 0.85
    assert values == baseline(corpus(1, 160), corpus(2, 80))


def test_each_task_by_itself_and_none() -> None:
    full = corpus(1, 40)
    only = Corpus("toy", full.label_names, full.classes)
    assert "token_f1" not in baseline(only, only)
    assert "macro_f1" not in baseline(Corpus("toy", (), (), full.spans), full)
    assert baseline(Corpus("toy", ()), full) == {}


def test_one_class_and_one_group_are_no_error() -> None:
    same = tuple(Example(str(i), "g", "a word or two", "q", 1, ()) for i in range(4))
    one = Corpus("toy", ("no", "yes"), same, same)
    values = baseline(one, one)
    assert values["accuracy"] == 1
    mixed = tuple(Example(str(i), "g", f"word{i % 2}", "", i % 2) for i in range(8))
    assert baseline(Corpus("toy", ("a", "b"), mixed), Corpus("toy", ("a", "b"), mixed))


def test_sentences() -> None:
    text = "  One here. Two?! \n\n three "
    assert [text[a:b] for a, b in sentences(text)] == ["One here.", "Two?!", "three"]
    assert sentences("  \n ") == []


def test_trivial_answers_are_the_most_frequent_class_and_none() -> None:
    train, validation = corpus(1, 60), corpus(2, 40)
    values = trivial(train, validation)
    without = sum(not example.spans for example in validation.spans) / 40
    assert values["token_f1"] == values["null_accuracy"] == without
    assert values["has_answer_f1"] == 0
    frequent = round(sum(example.label or 0 for example in train.classes) / 60)
    assert values["accuracy"] == sum(e.label == frequent for e in validation.classes) / 40
    assert values["mcc"] == 0
