"""Labels, losses and metrics that the peers in speed.py have for each agent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from supermax.training.data.examples import Example
from supermax.training.models.assembly import Outputs
from supermax.training.models.sources import find
from supermax.training.models.tokenizers import tokenizer_for
from supermax.training.optim.losses import IGNORED
from tests import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import speed_agents as agents  # isort: skip

SENTENCE = "I sleep badly."
TEXT = f"{SENTENCE} It rained."
PAIRS = [
    agents.Pair(Example("a", "a", TEXT, "Sleep?", 1), len(SENTENCE), 2),
    agents.Pair(Example("b", "b", "It rained.", "Fatigue?", 0), 10, 1),
]


def encoded(tmp_path: Path, *texts: str) -> Any:
    tokenizer = tokenizer_for(find("tiny-bert"), [TEXT, "Sleep?"] * 20, tmp_path)
    return tokenizer(*[[text] for text in texts], return_offsets_mapping=True)


def examples(agent: str) -> tuple[Example, ...]:
    return agents.labelled(agent, PAIRS, ("no", "yes")).examples


def test_every_agent_has_its_examples() -> None:
    assert [e.label for e in examples("criteria")] == [1, 0]
    assert [e.spans for e in examples("evidence")] == [((0, len(SENTENCE)),), ()]
    assert [e.value for e in examples("regression")] == [2.0, 1.0]
    assert [e.labels for e in examples("multilabel")] == [(1,), ()]
    tagged = examples("token-classification")
    assert [len(e.entities or ()) for e in tagged] == [1, 0]
    assert [e.question for e in tagged] == ["", ""]
    both = examples("share")
    assert [e.label for e in both] == [1, 0, None, None]
    assert len({e.id for e in both}) == 4


def test_span_of_a_row_has_the_tokens_of_the_sentence(tmp_path: Path) -> None:
    inputs = encoded(tmp_path, "Sleep?", TEXT)
    positive, negative = examples("evidence")
    first, last = agents.label_of("evidence", positive, inputs, 2)
    offsets = inputs["offset_mapping"][0]
    assert TEXT[offsets[first][0] : offsets[last][1]] == SENTENCE
    assert agents.label_of("evidence", negative, inputs, 2) == [0, 0]
    classes, spans = examples("share")[0], examples("share")[2]
    assert agents.label_of("share", classes, inputs, 2) == [1, IGNORED, IGNORED]
    assert agents.label_of("share", spans, inputs, 2) == [IGNORED, first, last]


def test_tags_of_a_row_are_at_the_first_tokens_of_words(tmp_path: Path) -> None:
    inputs = encoded(tmp_path, TEXT)
    tags = agents.label_of("token-classification", examples("token-classification")[0], inputs, 2)
    words = [tag for tag in tags if tag != IGNORED]
    assert words == [1, 2, 2, 2, 0, 0, 0]  # I sleep badly . It rained .
    assert len(tags) == len(inputs["input_ids"][0])


def test_rows_without_a_target_do_not_change_the_loss() -> None:
    torch.manual_seed(0)
    outputs = Outputs(torch.randn(3, 2), torch.randn(3, 5), torch.randn(3, 5))
    labels = torch.tensor([[1, IGNORED, IGNORED], [IGNORED, 2, 3], [IGNORED, 0, 0]])
    loss = agents.loss_of("share", outputs, labels)
    parts = [Outputs(*(x[i : i + 1] for x in vars(outputs).values())) for i in range(3)]
    of_class = torch.nn.functional.cross_entropy(parts[0].classes, torch.tensor([1]))  # type: ignore[arg-type]
    of_spans = [agents.loss_of("evidence", parts[i], labels[i : i + 1, 1:]) for i in (1, 2)]
    assert loss.item() == pytest.approx(((of_class + sum(of_spans) / 2) / 2).item())


def test_metrics_by_hand() -> None:
    labels = np.array([[1, 2], [0, 0]])
    starts, ends = np.eye(4)[[1, 0]], np.eye(4)[[2, 3]]
    assert agents.metric_of("evidence")((starts, ends), labels) == 0.5
    tags = np.array([[0, IGNORED, 1]])
    assert agents.metric_of("token-classification")(np.eye(3)[[[0, 2, 1]]], tags) == 1
    numbers = np.array([[0.1], [0.3], [0.2]])
    assert agents.metric_of("regression")(numbers, np.array([1, 2, 4])) == pytest.approx(0.5)
