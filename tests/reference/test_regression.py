"""The agent regression compared with a plain loop of PyTorch and transformers, in float64.

Both start with the same weights and see the same examples in the same order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss, l1_loss, mse_loss
from transformers import BertModel

from supermax.training.loop import train
from supermax.training.prepare import Prepared
from supermax.training.steps.batches import Indices
from tests.reference.plain_loop import (
    encoded,
    prepared_in_float64,
    train_plainly,
    without_dropout,
)
from tests.reference.test_agents import Watching
from tests.training.corpora import numeric

TRAIN, HELD_OUT = numeric(30, 1), numeric(15, 2)
LENGTH, DELTA = 16, 0.4
LOSSES: dict[str, Any] = {
    "mse": mse_loss,
    "mae": l1_loss,
    "huber": lambda *pair: huber_loss(*pair, delta=DELTA),
}


class Plain(nn.Module):
    """A linear map of the first token's state."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.encoder = BertModel.from_pretrained(folder, add_pooling_layer=False)
        self.number = nn.Linear(self.encoder.config.hidden_size, 1)

    def forward(self, inputs: Any) -> Tensor:
        return self.number(self.encoder(**inputs).last_hidden_state[:, 0])[:, 0]


def prepared_for(loss: str, cache: Path, micro_batch: int | None) -> Prepared:
    parts = {"text": {"max_length": LENGTH}, "loss": {"name": loss, "delta": DELTA}}
    return prepared_in_float64("regression", (TRAIN, HELD_OUT), cache, micro_batch, **parts)


def twin(prepared: Prepared, folder: Path) -> Plain:
    """Return the plain model, with copies of the weights of ours."""
    encoder: Any = prepared.model.encoders[0].model
    encoder.save_pretrained(folder)
    made = Plain(str(folder)).double()
    without_dropout(made)
    made.encoder.load_state_dict(encoder.state_dict(), strict=False)  # ours has no pooler
    number: Any = prepared.model.number_head
    made.number.load_state_dict(number[-1].state_dict())
    return made


@pytest.mark.parametrize(("loss", "micro_batch"), [("mse", None), ("mae", None), ("huber", 4)])
def test_training_and_predictions_as_in_a_plain_loop(
    tmp_path: Path, loss: str, micro_batch: int | None
) -> None:
    prepared = prepared_for(loss, tmp_path, micro_batch)
    model = twin(prepared, tmp_path / "plain")
    ours = Watching(prepared)
    train(prepared, ours)

    numbers = np.array([e.value for e in TRAIN.numbers])
    mean, deviation = numbers.mean(), numbers.std()
    assert prepared.model.unit is not None
    assert prepared.model.unit.mean == pytest.approx(mean)
    standardised = torch.tensor((numbers - mean) / deviation).float().double()

    def loss_of(indices: Indices) -> Tensor:
        outputs = model(encoded(prepared, [TRAIN.numbers[i] for i in indices], LENGTH))
        value: Tensor = LOSSES[loss](outputs, standardised[torch.from_numpy(indices)])
        return value

    theirs = train_plainly(model, prepared, loss_of)
    assert ours.losses == pytest.approx(theirs, abs=1e-7)

    model.eval()
    with torch.inference_mode():
        outputs = model(encoded(prepared, HELD_OUT.numbers, LENGTH)).numpy()
    found = [ours.predictions[-1].numbers[e.id] for e in HELD_OUT.numbers]
    np.testing.assert_allclose(found, mean + deviation * outputs, rtol=1e-6)
