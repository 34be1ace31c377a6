"""The agent multilabel compared with AutoModelForSequenceClassification and scikit-learn.

With a head of two layers, tanh and the first token, both are the same function: BERT's pooler is
the first layer. Both start with the same weights and see the same examples in the same order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, average_precision_score, f1_score
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from supermax.training.data.label_sets import indicators
from supermax.training.loop import train
from supermax.training.prepare import Prepared
from supermax.training.steps.batches import Indices, collate
from supermax.training.steps.step import loss_denominators, loss_of
from tests.reference.plain_loop import (
    encoded,
    prepared_in_float64,
    train_plainly,
    without_dropout,
)
from tests.reference.test_agents import Watching
from tests.training.corpora import labelled

TRAIN, HELD_OUT = labelled(30, 1), labelled(25, 2)
LABELS = len(TRAIN.label_names)
LENGTH = 16
HEAD = {"pooling": "cls", "depth": 2, "width": 64, "activation": "tanh"}


def prepared_for(cache: Path, micro_batch: int | None, **parts: Any) -> Prepared:
    parts |= {"text": {"max_length": LENGTH}, "head": HEAD}
    return prepared_in_float64("multilabel", (TRAIN, HELD_OUT), cache, micro_batch, **parts)


def twin(prepared: Prepared, folder: Path) -> Any:
    """Return the classifier of transformers, with copies of the weights of ours."""
    encoder: Any = prepared.model.encoders[0].model
    encoder.save_pretrained(folder)
    made: Any = AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=LABELS, problem_type="multi_label_classification"
    ).double()
    without_dropout(made)
    made.bert.load_state_dict(encoder.state_dict(), strict=False)  # ours has no pooler
    first, last = layers(prepared)
    made.bert.pooler.dense.load_state_dict(first.state_dict())
    made.classifier.load_state_dict(last.state_dict())
    return made


def layers(prepared: Prepared) -> list[nn.Linear]:
    head: Any = prepared.model.class_head
    return [layer for layer in head if isinstance(layer, nn.Linear)]


def targets(examples: Any) -> Tensor:
    return torch.from_numpy(indicators(examples, LABELS)).double()


def test_loss_and_gradients_are_those_of_transformers(tmp_path: Path) -> None:
    prepared = prepared_for(tmp_path / "cache", None)
    model = twin(prepared, tmp_path / "plain")
    rows = np.arange(9)
    examples = [prepared.train.examples[i] for i in rows]
    theirs = model(**encoded(prepared, examples, LENGTH), labels=targets(examples)).loss
    theirs.backward()

    batch = collate(prepared.train.views, prepared.pads, rows)
    denominators = loss_denominators(batch.labels, batch.starts, None)
    outputs = prepared.model(*batch.inputs)
    ours = loss_of(outputs, batch, denominators, prepared.config, None)
    ours.backward()
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-7)
    pairs = [*zip(layers(prepared), (model.bert.pooler.dense, model.classifier), strict=True)]
    own = dict(prepared.model.encoders[0].model.named_parameters())
    gradients = [(mine.weight.grad, other.weight.grad) for mine, other in pairs]
    gradients += [(mine.bias.grad, other.bias.grad) for mine, other in pairs]
    gradients += [(p.grad, model.bert.get_parameter(name).grad) for name, p in own.items()]
    assert len(gradients) > 30
    for mine, other in gradients:
        assert mine is not None
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("micro_batch", [None, 4])
def test_training_probabilities_and_metrics_as_with_transformers_and_scikit_learn(
    tmp_path: Path, micro_batch: int | None
) -> None:
    prepared = prepared_for(tmp_path / "cache", micro_batch, labels={"threshold": 0.4})
    model = twin(prepared, tmp_path / "plain")
    ours = Watching(prepared)
    train(prepared, ours)

    def loss_of(indices: Indices) -> Tensor:
        examples = [prepared.train.examples[i] for i in indices]
        loss: Tensor = model(**encoded(prepared, examples, LENGTH), labels=targets(examples)).loss
        return loss

    theirs = train_plainly(model, prepared, loss_of)
    assert ours.losses == pytest.approx(theirs, abs=1e-7)

    model.eval()
    held_out = prepared.validation.examples
    with torch.inference_mode():
        likely = model(**encoded(prepared, held_out, LENGTH)).logits.sigmoid().numpy()
    evaluation = ours.predictions[-1]
    found = np.array([evaluation.probabilities[e.id] for e in held_out])
    np.testing.assert_allclose(found, likely, rtol=1e-5)

    truth, predicted = targets(held_out).numpy(), likely > 0.4
    assert [evaluation.label_sets[e.id] for e in held_out] == [
        tuple(np.flatnonzero(row)) for row in predicted
    ]
    metrics = evaluation.metrics
    assert metrics["macro_f1"] == pytest.approx(
        f1_score(truth, predicted, average="macro", zero_division=0)
    )
    assert metrics["micro_f1"] == pytest.approx(
        f1_score(truth, predicted, average="micro", zero_division=0)
    )
    assert metrics["accuracy"] == pytest.approx(accuracy_score(truth, predicted))
    assert metrics["auprc"] == pytest.approx(average_precision_score(truth, likely))
