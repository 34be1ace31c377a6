"""Metrics: computed by hand, with their bounds, and independent of the order of examples."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from supermax import UserError
from supermax.agents.agent import CLASSES, SPANS
from supermax.training.eval.metrics import METRICS, check_metric, class_metrics, span_metrics
from supermax.training.eval.squad import tokens
from tests.reference.test_class_metrics import judged


@settings(max_examples=100, deadline=None)
@given(judged(), st.randoms(use_true_random=False))
def test_bounds_and_order(case: tuple[Any, Any], random: Any) -> None:
    labels, p = case
    values = class_metrics(labels, p)
    for name, value in values.items():
        low = -1 if name == "mcc" else 0
        assert math.isnan(value) or low - 1e-9 <= value <= 1 + 1e-9
        check_metric(name, "criteria")
    order = list(range(len(labels)))
    random.shuffle(order)
    assert class_metrics(labels[order], p[order]) == pytest.approx(values, nan_ok=True)


def test_areas_that_are_not_defined_are_nan() -> None:
    values = class_metrics([0, 0], [[0.9, 0.1], [0.2, 0.8]])
    assert math.isnan(values["auroc"])
    assert math.isnan(values["auprc"])
    assert values["accuracy"] == 0.5
    assert values["mcc"] == 0


def test_calibration_error_by_hand() -> None:
    p = [[0.9, 0.1]] * 10 + [[0.3, 0.7]] * 10
    labels = [0] * 9 + [1] + [1] * 4 + [0] * 6  # right 9 of 10 at 0.9, 4 of 10 at 0.7
    assert class_metrics(labels, p)["ece"] == pytest.approx((0.0 + 0.3) / 2)
    # Too sure at 0.9 (8 of 10), not sure enough at 0.7 (8 of 10): this does not cancel out.
    labels = [0] * 8 + [1] * 2 + [1] * 8 + [0] * 2
    assert class_metrics(labels, p)["ece"] == pytest.approx(0.1)


def test_a_model_that_diverged_has_no_score() -> None:
    values = class_metrics([0, 1], [[0.5, 0.5], [math.nan, math.nan]])
    assert values
    assert all(math.isnan(value) for value in values.values())


def test_nothing_to_measure_on() -> None:
    with pytest.raises(UserError, match="no labelled examples"):
        class_metrics([], np.zeros((0, 2)))
    with pytest.raises(UserError, match="no examples"):
        span_metrics([], [], [])


# Spans.

TEXT = "I sleep badly.  No appetite, and so on."


def at(part: str, text: str = TEXT) -> tuple[int, int]:
    return text.index(part), text.index(part) + len(part)


def test_spans_by_hand() -> None:
    predicted = [[at("sleep badly")], [at("sleep badly.  No")], [], [at("so on.")], []]
    true = [[at("sleep badly.")], [at("badly.")], [], [], [at("No appetite,")]]
    values = span_metrics(predicted, true, [TEXT] * 5)
    assert values["exact_match"] == pytest.approx(2 / 5)  # full stops do not matter
    assert values["token_f1"] == pytest.approx((1 + 0.5 + 1 + 0 + 0) / 5)
    assert values["char_f1"] == pytest.approx((1 + 2 * 5 / (12 + 5) + 1 + 0 + 0) / 5)
    assert values["span_exact"] == pytest.approx(1 / 5)
    assert values["span_f1"] == pytest.approx((2 * 10 / 21 + 2 * 6 / (13 + 6) + 1 + 0 + 0) / 5)
    assert values["null_accuracy"] == pytest.approx(3 / 5)
    assert values["has_answer_f1"] == pytest.approx((1 + 0.5 + 0) / 3)
    assert math.isnan(span_metrics([[]], [[]], [TEXT])["has_answer_f1"])


def test_every_true_span_is_a_right_answer() -> None:
    true = [at("sleep badly."), at("No appetite,")]
    for span in true:
        values = span_metrics([[span]], [true], [TEXT])
        assert set(values.values()) == {1.0}
    both = span_metrics([true], [true], [TEXT])  # neither, but words of one
    assert both["exact_match"] == both["span_exact"] == 0
    assert both["token_f1"] == pytest.approx(2 * 2 / (4 + 2))


def test_the_same_words_elsewhere_are_the_same_text_in_another_place() -> None:
    text = "Tired. Very tired, and tired again."
    guess, truth = [(0, 5)], [at("tired,", text)]
    values = span_metrics([guess], [truth], [text])
    assert values["exact_match"] == values["token_f1"] == values["char_f1"] == 1
    assert values["span_exact"] == values["span_f1"] == 0
    assert values["null_accuracy"] == 1


def test_white_space_at_the_ends_is_no_part_of_a_place() -> None:
    values = span_metrics([[(15, 27)]], [[(16, 28)]], [TEXT])  # " No appetite" for "No appetite,"
    assert values["span_exact"] == 0
    values = span_metrics([[(14, 27)]], [[(16, 27)]], [TEXT])
    assert values["span_exact"] == values["span_f1"] == 1


@pytest.mark.parametrize(
    ("text", "one", "other"),
    [
        ("昨日は眠れなかった。食欲もあまりない。", "昨日は眠れなかった", "食欲もあまりない"),
        ("我昨晚没有睡着。胃口也很差。", "我昨晚没有睡着", "胃口也很差"),
        ("เมื่อคืนนอนไม่หลับ", "เมื่อคืน", "นอนไม่หลับ"),
    ],
)
def test_disjoint_spans_of_a_script_without_spaces_are_not_the_same(
    text: str, one: str, other: str
) -> None:
    values = span_metrics([[at(one, text)]], [[at(other, text)]], [text])
    assert values["exact_match"] == values["span_exact"] == values["span_f1"] == 0
    assert values["token_f1"] < 0.5
    assert values["char_f1"] < 0.5
    part = span_metrics([[at(one, text)]], [[at(one[:-2], text)]], [text])
    size = len(one)
    assert part["token_f1"] == part["char_f1"] == pytest.approx(2 * (size - 2) / (2 * size - 2))


def test_characters_that_are_tokens_are_those_of_scripts_without_spaces() -> None:
    """Scripts are known by the Unicode names of their characters."""
    scripts = ("CJK UNIFIED", "CJK COMPATIBILITY IDEOGRAPH", "HIRAGANA", "KATAKANA")
    scripts += ("HALFWIDTH KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")
    others = ("LATIN", "CYRILLIC", "GREEK", "ARABIC", "HEBREW", "HANGUL", "DEVANAGARI", "DIGIT")
    for code in range(0x80, 0x32000):
        character = chr(code)
        name, kind = unicodedata.name(character, ""), unicodedata.category(character)
        if kind[0] == "P" or not name.startswith(scripts + others):
            continue
        split = tokens(f"x{character}y") == ["x", character, "y"]
        assert split == name.startswith(scripts), name


some_spans = st.lists(
    st.tuples(st.integers(0, 38), st.integers(1, 12)).map(lambda x: (x[0], min(sum(x), 39))),
    max_size=2,
)


@pytest.mark.slow
@given(st.lists(st.tuples(some_spans, some_spans), min_size=1, max_size=8), st.data())
def test_places_as_in_scikit_learn(cases: Sequence[Any], data: st.DataObject) -> None:
    def values(chosen: Sequence[Any]) -> dict[str, float]:
        return span_metrics([a for a, _ in chosen], [b for _, b in chosen], [TEXT] * len(chosen))

    def marks(spans: Sequence[Any]) -> list[bool]:
        held = {i for start, end in spans for i in range(start, end)}
        return [i in held for i, character in enumerate(TEXT) if character != " "]

    ours = values(cases)
    expected = []
    for guess, truths in cases:
        golds = [gold for gold in (marks([span]) for span in truths) if any(gold)]
        golds = golds or [marks([])]
        found = marks(guess)
        expected.append(max(
            sk.f1_score(gold, found, zero_division=0) if any(gold) else float(not any(found))
            for gold in golds
        ))  # fmt: skip
    assert ours["span_f1"] == pytest.approx(np.mean(expected))
    null = sk.accuracy_score([bool(b) for _, b in cases], [bool(a) for a, _ in cases])
    assert ours["null_accuracy"] == pytest.approx(null)
    assert ours["exact_match"] <= ours["token_f1"]
    assert ours["span_exact"] <= ours["span_f1"]
    assert values(data.draw(st.permutations(cases))) == pytest.approx(ours, nan_ok=True)


# Names.


def test_names_directions_and_agents() -> None:
    assert check_metric("macro_f1", "share").higher
    assert not check_metric("ece").higher
    assert check_metric("f1_11", "criteria").higher
    assert [m.name for m in METRICS.values() if not m.higher] == ["ece", "rmse"]
    assert set(class_metrics([0, 1], np.eye(2))) - {"f1_0", "f1_1"} == {
        name for name, metric in METRICS.items() if metric.target == CLASSES
    }
    assert set(span_metrics([[]], [[]], [TEXT])) == {
        name for name, metric in METRICS.items() if metric.target == SPANS
    }


@pytest.mark.parametrize("name", ["makro_f1", "macro-f1", "MACRO_F1"])
def test_a_wrong_name_is_met_with_the_right_one(name: str) -> None:
    with pytest.raises(UserError, match="did you mean 'macro_f1'"):
        check_metric(name)


def test_a_metric_of_another_agent() -> None:
    with pytest.raises(UserError, match="The agent criteria has no metric 'token_f1'"):
        check_metric("token_f1", "criteria")
    with pytest.raises(UserError, match="no metric 'latncy'; did you mean 'latency'"):
        check_metric("latncy", "criteria")
    with pytest.raises(UserError, match=r"no metric 'zzz'; there are .*null_accuracy"):
        check_metric("zzz")
    with pytest.raises(UserError):
        check_metric("f1_x")
