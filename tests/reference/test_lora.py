"""LoRA compared with a plain loop of PyTorch, transformers and peft, in float64.

Both start with the same weights and see the same examples in the same order. The plain side names
the adapted layers in peft's own terms and takes every effective batch at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from torch import nn

from supermax.training.loop import train
from supermax.training.models.adapters import adapted
from supermax.training.models.assembly import Model
from supermax.training.prepare import Prepared, prepare
from supermax.training.steps.batches import order
from supermax.training.steps.execution import Execution
from tests.reference import test_agents as agents
from tests.reference.test_agents import Watching, on_the_cpu
from tests.training.corpora import config

__all__ = ["on_the_cpu"]  # a fixture
RANK, RATIO, RATE = 4, 1.5, 1e-2
PLAIN_TARGETS = {
    "attention": r".*\.attention\.(self\.(query|key|value)|output\.dense)",
    "all-linear": "all-linear",
}


def prepared_for(kind: str, cache: Path, micro_batch: int | None) -> Prepared:
    wanted = config(
        encoder={"name": "tiny-bert"},
        adapter={"name": "lora", "rank": RANK, "ratio": RATIO, "target_modules": kind},
        text={"max_length": agents.LENGTH, "doc_stride": agents.STRIDE},
        train={"effective_batch": agents.BATCH, "epochs": agents.EPOCHS, "clip": agents.CLIP},
        optim={"lr": RATE, "weight_decay": agents.DECAY},
        schedule={"name": "linear", "warmup": agents.WARMUP},
    )
    execution = Execution(micro_batch=micro_batch)
    corpora = agents.TRAINED_ON, agents.HELD_OUT
    made = prepare(wanted, *corpora, cache=cache, execution=execution)
    made.model.double()
    return made


def twin(kind: str, model: Model, folder: Path) -> Any:
    """Return the plain model, with copies of the weights of ours."""
    ours: Any = model.encoders[0].model
    parts = list(adapted(ours))
    state = {
        name.replace(".base_layer.", "."): weight
        for name, weight in ours.state_dict().items()
        if ".lora_" not in name
    }
    ours.save_pretrained(folder, state_dict=state)
    made: Any = agents.Classifier(str(folder), 2)
    lora = peft.LoraConfig(
        r=RANK, lora_alpha=RATIO * RANK, target_modules=PLAIN_TARGETS[kind], lora_dropout=0.0
    )
    made.encoder = peft.get_peft_model(made.encoder, lora)
    made.double()
    for module in made.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    made.classes.load_state_dict(model.class_head[-1].state_dict())  # type: ignore[index]
    theirs = dict(adapted(made.encoder.base_model.model))
    assert theirs.keys() == {name for name, _ in parts}
    for name, layer in parts:
        theirs[name].load_state_dict(layer.state_dict())
    return made


@pytest.mark.parametrize("kind", PLAIN_TARGETS)
def test_training_as_in_a_plain_loop_with_peft(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "RATE", RATE)
    trials = [prepared_for(kind, tmp_path, micro) for micro in (None, agents.MICRO)]
    model = twin(kind, trials[0].model, tmp_path / "base")
    base = {n: w.clone() for n, w in trials[0].model.state_dict().items() if "base_layer" in n}
    watching = [Watching(one) for one in trials]
    for one, seen in zip(trials, watching, strict=True):
        train(one, seen)

    tokenizer = trials[0].tokenizers[0]
    features = agents.features_of("criteria", agents.TRAINED_ON, tokenizer)[0]
    lengths = np.array([len(feature.ids) for feature in features])
    epochs = [order(lengths, agents.BATCH, 1, epoch) for epoch in range(agents.EPOCHS)]
    taken: list[tuple[float, float]] = []
    for epoch, some in enumerate(agents.train_plainly(model, features, epochs, None)):
        taken += some
        evaluations = [seen.predictions[epoch] for seen in watching]
        agents.assert_alike(evaluations, model, "criteria", tokenizer)
    assert taken[-1][0] < taken[0][0]
    theirs = dict(adapted(model.encoder.base_model.model))
    for one, seen in zip(trials, watching, strict=True):
        assert seen.losses == pytest.approx([loss for loss, _ in taken], abs=1e-7)
        one.model.load_state_dict(seen.weights[-1])
        encoder: Any = one.model.encoders[0].model
        for name, layer in adapted(encoder):
            for part, weight in layer.state_dict().items():
                other = theirs[name].state_dict()[part]
                torch.testing.assert_close(weight, other, rtol=0, atol=1e-7)
        now = one.model.state_dict()
        assert all(torch.equal(now[name], weight) for name, weight in base.items())
