"""Metrics of spans beside SQuAD 2.0's evaluation, written anew from its published description.

The reference works on texts alone and shares no code with the package. Rajpurkar et al. (2016),
section 6.1: ignore punctuation and articles (a, an, the); F1 over bags of tokens; the maximum over
the gold answers, then the mean over the questions. Rajpurkar et al. (2018), section 5: a question
without an answer counts 1 where nothing is answered, else 0.
"""

from __future__ import annotations

import string
import unicodedata
from itertools import groupby

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from supermax.training.eval.metrics import Span, answer_values, span_metrics

ARTICLES = {"a", "an", "the"}
SPACELESS = ("CJK", "KANGXI", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")
Case = tuple[str, list[str]]
"""An answer that was given, "" for none, and the gold answers."""


# The reference.


def normalised(answer: str) -> list[str]:
    """Return the tokens of an answer: lower case, without punctuation and articles, split."""
    kept = "".join(c for c in answer.lower() if c not in set(string.punctuation))
    words = ("".join(run) for _, run in groupby(kept, key=str.isalnum))
    return "".join(" " if word in ARTICLES else word for word in words).split()


def is_spaceless(character: str) -> bool:
    return unicodedata.name(character, "").removeprefix("HALFWIDTH ").startswith(SPACELESS)


def segmented(answer: str) -> list[str]:
    """Return tokens like `normalised`, each character of a script without spaces by itself."""
    found = []
    for word in normalised(answer):
        if not any(map(is_spaceless, word)):
            found.append(word)
            continue
        for kind, run in groupby(word, key=kind_of):
            part = "".join(run)
            if kind != "punctuation":
                found += list(part) if kind == "spaceless" else [part]
    return found


def kind_of(character: str) -> str:
    if unicodedata.category(character)[0] == "P":
        return "punctuation"
    return "spaceless" if is_spaceless(character) else "other"


def f1(guess: list[str], gold: list[str]) -> float:
    if not guess or not gold:
        return 1.0 if guess == gold else 0.0
    left, shared = list(gold), 0
    for token in guess:
        if token in left:
            left.remove(token)
            shared += 1
    if not shared:
        return 0.0
    precision, recall = shared / len(guess), shared / len(gold)
    return 2 * precision * recall / (precision + recall)


def reference(cases: list[Case]) -> dict[str, float]:
    exact, overlap = [], []
    for guess, golds in cases:
        mine = segmented(guess)
        right = [tokens for tokens in map(segmented, golds) if tokens] or [[]]
        exact.append(max(float(" ".join(mine) == " ".join(gold)) for gold in right))
        overlap.append(max(f1(mine, gold) for gold in right))
    return {
        "exact_match": sum(exact) / len(exact),
        "token_f1": sum(overlap) / len(overlap),
    }


# The package: it is given spans of a text.


def measured(cases: list[Case]) -> dict[str, float]:
    predicted, true, texts = [], [], []
    for guess, golds in cases:
        text, spans = "", list[Span]()
        for part in (guess, *golds):
            spans.append((len(text), len(text) + len(part)))
            text += part + "\n"
        predicted.append(spans[:1] if guess else [])
        true.append(spans[1:])
        texts.append(text)
    return span_metrics(predicted, true, texts)


words = st.sampled_from([
    "a", "A", "x", "y", "an", "The", "the", "theory", "banana", "Café", "straße", "İstanbul",
    "x_y", "U.S.", "the-", "'a'", "—", "“quoted”", "naïve", "Привет", "سلام", "1,000", "²",
    "한국어", "🙂", "...",
])  # fmt: skip
spaces = st.sampled_from([" ", "", "  ", "\n", "\u00a0", "\u3000", "-", ","])
phrases = st.lists(st.tuples(words, spaces), max_size=6).map(
    lambda parts: "".join(word + space for word, space in parts)
)
spaceless = st.text("東京都は。、「」ひらカーｶﾀไทยລາວខ្មែរမြန်မာ aAtheX1-.·", max_size=12)
# The reference knows the script of a character by its name, which Unicode of later date may add.
known = st.characters(exclude_categories=("Cs", "Cn"))
anything = st.text(known, max_size=12).filter(lambda text: not any(map(is_spaceless, text)))


def cases(answers: st.SearchStrategy[str]) -> st.SearchStrategy[list[Case]]:
    return st.lists(st.tuples(answers, st.lists(answers, max_size=3)), min_size=1, max_size=5)


@settings(max_examples=300, deadline=None)
@given(cases(phrases | anything))
@example([("the", [])])  # nothing is left of it: SQuAD takes it as no answer
@example([("", ["the"])])  # no gold answer is left
@example([("a b", ["...", "b"])])
@example([("x x y", ["x y y"])])
@example([("", [""]), ("x", [""])])
def test_texts_with_spaces_are_scored_as_in_squad(found: list[Case]) -> None:
    ours, theirs = measured(found), reference(found)
    assert ours["token_f1"] == pytest.approx(theirs["token_f1"])
    assert ours["exact_match"] == pytest.approx(theirs["exact_match"])


@settings(max_examples=100, deadline=None)
@given(st.lists(phrases, min_size=1, max_size=4), st.lists(phrases, max_size=2))
def test_predictions_that_decoding_compares_are_scored_as_in_squad(
    guesses: list[str], golds: list[str]
) -> None:
    spans, text = list[Span](), ""
    for part in (*guesses, *golds):
        spans.append((len(text), len(text) + len(part)))
        text += part + "\n"
    predictions = [(span,) for span in spans[: len(guesses)]]
    for metric in ("exact_match", "token_f1"):
        ours = answer_values(metric, predictions, spans[len(guesses) :], text)
        assert ours == pytest.approx([reference([(guess, golds)])[metric] for guess in guesses])


@settings(max_examples=300, deadline=None)
@given(cases(spaceless | phrases))
@example([("彼は「Apple」を", ["彼は Apple を"])])
def test_scripts_without_spaces_are_scored_by_characters(found: list[Case]) -> None:
    ours, theirs = measured(found), reference(found)
    assert ours["token_f1"] == pytest.approx(theirs["token_f1"])
    assert ours["exact_match"] == pytest.approx(theirs["exact_match"])


@settings(max_examples=200, deadline=None)
@given(cases(phrases | spaceless))
def test_has_answer_f1_is_over_the_questions_with_an_answer(found: list[Case]) -> None:
    asked = [case for case in found if case[1]]
    if asked:
        expected = reference(asked)["token_f1"]
        assert measured(found)["has_answer_f1"] == pytest.approx(expected)
    right = [bool(guess) == bool(golds) for guess, golds in found]
    assert measured(found)["null_accuracy"] == pytest.approx(sum(right) / len(right))


def test_by_hand() -> None:
    """Checked by hand, so that both are right, and not only equal."""
    found = [
        ("the Denver Broncos!", ["Broncos", "Denver Broncos"]),  # 1, 1
        ("in Santa Clara, California", ["Santa Clara"]),  # 0, and 2 * (1/2 * 1) / (1/2 + 1)
        ("", []),  # 1, 1
        ("something", []),  # 0, 0
    ]
    for values in (reference(found), measured(found)):
        assert values["exact_match"] == pytest.approx(2 / 4)
        assert values["token_f1"] == pytest.approx((1 + 2 / 3 + 1 + 0) / 4)
