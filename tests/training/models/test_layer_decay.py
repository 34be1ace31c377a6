"""Layer-wise learning-rate decay: each encoder counts its own layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import AutoConfig

from supermax._util.attributes import STATE
from supermax.training.checkpoint import Saver
from supermax.training.loop import train
from supermax.training.models import architectures
from supermax.training.models.assembly import Model
from supermax.training.models.encoders import untrained
from supermax.training.optim.optimizers import make_optimizer, parameter_groups
from supermax.training.prepare import Prepared
from supermax.training.steps.step import TrainingStep
from tests.training.corpora import Quiet, Stopped, config, ready

DECAY = 0.8


def encoder(layers: int) -> nn.Module:
    family, facts = architectures.TINY["tiny-bert"]
    small = {"vocab_size": 16, "hidden_size": 4, "num_hidden_layers": layers}
    model: nn.Module = untrained(AutoConfig.for_model(family, **facts | small))
    return model


def rates(model: Model, decay: float) -> dict[str, float]:
    optim = config(optim={"layer_decay": decay}).optim
    groups = parameter_groups(model, optim, model.layers_above())
    of = {id(p): group["lr"] / optim.lr for group in groups for p in group["params"]}
    return {name: of[id(p)] for name, p in model.named_parameters() if id(p) in of}


@pytest.mark.slow
@settings(max_examples=25)
@given(
    depths=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    decay=st.sampled_from([0.7, 0.9, 1.0]),
    frozen=st.integers(0, 1),
)
def test_an_encoder_of_a_pair_has_the_rates_it_has_alone(
    depths: tuple[int, int], decay: float, frozen: int
) -> None:
    parts = {"encoder": {"frozen_layers": frozen}}
    pair = rates(Model(config("joint", **parts), [encoder(n) for n in depths], 2), decay)
    for i, layers in enumerate(depths):
        alone = rates(Model(config(**parts), [encoder(layers)], 2), decay)
        theirs = {
            n.removeprefix("encoders.0."): r for n, r in alone.items() if n.startswith("encoders.")
        }
        mine = {
            n.removeprefix(f"encoders.{i}."): r
            for n, r in pair.items()
            if n.startswith(f"encoders.{i}.")
        }
        assert mine == theirs
        top = [r for n, r in mine.items() if f"layer.{layers - 1}." in n]
        assert set(top) <= {1.0}
    assert {r for n, r in pair.items() if not n.startswith("encoders.")} == {1.0}


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A configuration with encoders of four layers and of two."""
    family, facts = architectures.TINY["tiny-bert"]
    deep = (family, facts | {"num_hidden_layers": 4})
    monkeypatch.setitem(architectures.TINY, "tiny-deep", deep)
    return {
        "encoder": {"name": "tiny-deep"},
        "evidence_encoder": {"name": "tiny-bert"},
        "optim": {"layer_decay": DECAY},
    }


def counted_from_the_deeper(prepared: Prepared) -> None:
    """Give the trial the groups of parameters that earlier versions made."""
    model, optim = prepared.model, prepared.config.optim
    below = {n: a + 2 * n.startswith("encoders.1.") for n, a in model.layers_above().items()}
    optimizer = make_optimizer(parameter_groups(model, optim, below), optim, "cpu")
    step = TrainingStep(
        model, optimizer, prepared.config, prepared.step.weights, prepared.execution
    )
    prepared.step = prepared.executor.step = step  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_state_with_other_groups_of_parameters_counts_as_none(
    tmp_path: Path, pair: dict[str, Any]
) -> None:
    wanted = config("joint", **pair)
    before = ready(tmp_path, wanted)
    counted_from_the_deeper(before)
    with pytest.raises(Stopped):
        train(before, Quiet(stop_at=2), tmp_path, save_every=0)
    assert (tmp_path / STATE).exists()
    result = train(ready(tmp_path, wanted), Quiet(), tmp_path, save_every=0)
    anew = train(ready(tmp_path, wanted), Quiet())
    assert result.curve == anew.curve
    saved = Saver(tmp_path).load()
    assert saved is not None
    assert ready(tmp_path, wanted).step.can_load(saved["step"])
