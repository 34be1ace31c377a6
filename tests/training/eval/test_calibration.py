"""Threshold of the policy "calibrated", evaluated on rows that it was not fitted on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from supermax.training.config import Config, NoAnswerConfig
from supermax.training.data.examples import Corpus, Example
from supermax.training.data.tokenized_split import TokenizedSplit
from supermax.training.eval.choose_decoding import Candidates, cross_fit
from supermax.training.eval.decode import Answers, SpanLimits
from supermax.training.eval.evaluate import Evaluation, evaluation_of
from supermax.training.models.assembly import Outputs
from supermax.training.prepare import Prepared, prepare
from tests.training.corpora import config


def calibrated(cache: Path, groups: list[str]) -> Prepared:
    """Return a span model for texts of one word, one for each row."""
    rows = tuple(
        Example(f"row{i}", group, f"word{i}", "which?", spans=()) for i, group in enumerate(groups)
    )
    both = Corpus("words", (), (), rows)
    return prepare(config("evidence", no_answer={"policy": "calibrated"}), both, both, cache=cache)


def evaluated(config: Config, data: TokenizedSplit, margins: Any, answered: Any) -> Evaluation:
    """Return the evaluation of a model whose best span is each row's word, with these margins over
    no answer. The word is the answer if `answered` is true; otherwise there is none."""
    view = data.views[-1]
    looks = []
    for i in range(len(view)):
        offsets = view.offsets[view.begin[i] : view.begin[i + 1]]
        context = np.flatnonzero(offsets[:, 0] >= 0)
        starts, ends = torch.full((2, 1, len(offsets)), -1e4)
        starts[0, 0] = ends[0, 0] = ends[0, context[-1]] = 0
        starts[0, context[0]] = float(margins[view.example[i]])
        looks.append((np.array([i]), Outputs(None, starts, ends)))
    examples = tuple(
        replace(e, spans=((0, len(e.text)),) if some else ())
        for e, some in zip(data.examples, answered, strict=True)
    )
    return evaluation_of(looks, config, replace(data, examples=examples), "token_f1")


@pytest.mark.slow
@pytest.mark.parametrize("copies", [1, 3])
def test_on_noise_it_gains_nothing_over_answering_nothing(tmp_path: Path, copies: int) -> None:
    """Answers are random and independent of the margin, so answering gains as much as it loses.
    Rows of one group are copies of each other."""
    count, rounds = 30, 400
    prepared = calibrated(tmp_path, [f"group {i // copies}" for i in range(count * copies)])
    rng = np.random.default_rng(0)
    gains = []
    for _ in range(rounds):
        margins = np.repeat(rng.normal(size=count), copies)
        answered = np.repeat(rng.random(count) < 0.5, copies)
        found = evaluated(prepared.config, prepared.validation, margins, answered)
        gains.append(found.metrics["token_f1"] - (~answered).mean())
    error = np.std(gains) / np.sqrt(rounds)
    assert error < 0.01
    assert abs(np.mean(gains)) < 3 * error


def test_the_threshold_that_is_delivered_is_fitted_on_all_rows(tmp_path: Path) -> None:
    """Answers are right above 1.5 and wrong below: the rows next to it decide the exact value."""
    prepared = calibrated(tmp_path, [f"group {i}" for i in range(20)])
    margins = np.arange(20) / 4
    found = evaluated(prepared.config, prepared.validation, margins, margins > 1.5)
    assert found.threshold == pytest.approx(1.625)
    assert {name for name, spans in found.spans.items() if spans} >= {
        f"row{i}" for i in range(8, 20)
    }


def thresholds(groups: Sequence[str], margins: Sequence[float], gain: Sequence[float]) -> Any:
    count = len(groups)
    ids, spans = tuple(map(str, range(count))), np.array([[0, 1]] * count).reshape(-1, 2)
    answers = Answers(ids, spans, np.array(margins, float), np.zeros(count))
    policy = NoAnswerConfig(policy="calibrated")
    found = Candidates([SpanLimits()], [answers], np.array([gain], float), policy)
    return cross_fit(found, groups)[1]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(-3, 3), st.integers(-2, 2))),
    st.sampled_from("abcdefgh"),
    st.randoms(use_true_random=False),
)
def test_no_row_has_a_part_in_its_own_threshold(
    rows: list[tuple[str, int, int]], own: str, random: Any
) -> None:
    def fitted(rows: list[tuple[str, int, int]]) -> Any:
        groups, margins, gain = zip(*rows, strict=True) if rows else ((), (), ())
        return thresholds(groups, margins, gain)

    before = fitted(rows)
    turned = [(g, m, -n if g == own else n) for g, m, n in rows]
    mine = [i for i, (group, _, _) in enumerate(rows) if group == own]
    assert fitted(turned)[mine].tolist() == before[mine].tolist()
    order = list(range(len(rows)))
    random.shuffle(order)  # nor has the order of the rows
    assert fitted([rows[i] for i in order]).tolist() == before[order].tolist()


def test_a_single_group_is_not_calibrated_on_itself() -> None:
    found = thresholds(["same", "same"], [3.0, 4.0], [-1.0, -1.0])
    assert found.tolist() == [0, 0]
