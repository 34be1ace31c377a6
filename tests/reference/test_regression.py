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
from transformers import BertModel, get_linear_schedule_with_warmup

from supermax.training.loop import train
from supermax.training.prepare import Prepared, prepare
from supermax.training.steps.batches import order
from supermax.training.steps.execution import Execution
from tests.reference.test_agents import Watching
from tests.training.corpora import config, numeric

TRAIN, HELD_OUT = numeric(30, 1), numeric(15, 2)
BATCH, EPOCHS, RATE, DECAY, CLIP, WARMUP, LENGTH, DELTA = 11, 2, 1e-3, 0.05, 0.5, 0.1, 16, 0.4
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
    wanted = config(
        "regression",
        encoder={"name": "tiny-bert"},
        text={"max_length": LENGTH},
        train={"effective_batch": BATCH, "epochs": EPOCHS, "clip": CLIP},
        optim={"lr": RATE, "weight_decay": DECAY},
        schedule={"name": "linear", "warmup": WARMUP},
        loss={"name": loss, "delta": DELTA},
    )
    made = prepare(
        wanted, TRAIN, HELD_OUT, cache=cache, execution=Execution(micro_batch=micro_batch)
    )
    made.model.double()
    return made


def twin(prepared: Prepared, folder: Path) -> Plain:
    """Return the plain model, with copies of the weights of ours."""
    encoder: Any = prepared.model.encoders[0].model
    encoder.save_pretrained(folder)
    made = Plain(str(folder)).double()
    for module in made.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    made.encoder.load_state_dict(encoder.state_dict(), strict=False)  # ours has no pooler
    number: Any = prepared.model.number_head
    made.number.load_state_dict(number[-1].state_dict())
    return made


def encoded(tokenizer: Any, examples: Any) -> Any:
    return tokenizer(
        [e.question for e in examples],
        [e.text for e in examples],
        truncation="only_second",
        max_length=LENGTH,
        padding=True,
        return_tensors="pt",
    )


def train_plainly(model: Plain, prepared: Prepared, targets: Tensor, loss: str) -> list[float]:
    """Return the loss of every update."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE)
    lengths = prepared.train.lengths
    batches = [b for e in range(EPOCHS) for b in order(lengths, BATCH, prepared.seed, e)]
    schedule = get_linear_schedule_with_warmup(
        optimizer, round(WARMUP * len(batches)), len(batches)
    )
    model.train()
    taken = []
    for indices in batches:
        examples = [TRAIN.numbers[i] for i in indices]
        outputs = model(encoded(prepared.tokenizers[0], examples))
        value = LOSSES[loss](outputs, targets[torch.from_numpy(indices)])
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        taken.append(value.item())
    return taken


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
    theirs = train_plainly(model, prepared, standardised, loss)
    assert len(theirs) > EPOCHS
    assert ours.losses == pytest.approx(theirs, abs=1e-7)

    model.eval()
    with torch.inference_mode():
        outputs = model(encoded(prepared.tokenizers[0], HELD_OUT.numbers)).numpy()
    found = [ours.predictions[-1].numbers[e.id] for e in HELD_OUT.numbers]
    np.testing.assert_allclose(found, mean + deviation * outputs, rtol=1e-6)
