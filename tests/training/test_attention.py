"""Attention's kernels: those that take any dropout, where there is one and a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from supermax.training import steps
from supermax.training.architectures import TINY, configuration
from supermax.training.attention import kernels
from supermax.training.encoders import DROPOUTS, layer_list, untrained
from supermax.training.loop import train_blind
from tests.training.corpora import config, ready

FAMILIES = sorted(set(TINY) - {"tiny"})


def encoder(family: str, dropout: float) -> Any:
    """With dropout in its attention alone."""
    config = configuration(family)
    for key in DROPOUTS:
        if hasattr(config, key):
            setattr(config, key, dropout if "attention" in key else 0.1)
    return untrained(config)


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_in_attention_keeps_planned_kernels_out_while_it_runs(family: str) -> None:
    with kernels([encoder(family, 0.0), encoder(family, 0.2)], "cuda:0"):
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert torch.backends.cuda.mem_efficient_sdp_enabled()
        assert torch.backends.cuda.math_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize(("dropout", "device"), [(0.0, "cuda"), (0.2, "cpu")])
def test_otherwise_torch_chooses(dropout: float, device: str) -> None:
    with kernels([encoder("tiny-bert", dropout)], device):
        assert torch.backends.cuda.cudnn_sdp_enabled()


def test_activations_that_are_computed_again_have_the_same_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others would draw other dropouts, and the gradients would be wrong."""
    inside = False

    @contextmanager
    def chosen(*_: Any) -> Iterator[None]:
        nonlocal inside
        inside = True
        yield
        inside = False

    monkeypatch.setattr(steps, "kernels", chosen)
    wanted = config(encoder={"name": "tiny-bert", "attention_dropout": 0.2}, train={"epochs": 1})
    prepared = ready(tmp_path, wanted, checkpoint_activations=True)
    seen: list[bool] = []
    (encoder,) = prepared.model.encoders
    layer = layer_list(encoder.model)[1][0]
    attention = next(part for part in layer.modules() if hasattr(part, "query"))
    attention.register_forward_pre_hook(lambda *_: seen.append(inside))
    train_blind(prepared, 1)
    updates = -(-30 // wanted.train.effective_batch)
    assert seen == [True] * 2 * updates


def test_what_was_set_before_is_set_again_even_after_an_error() -> None:
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        with pytest.raises(ValueError), kernels([encoder("tiny-bert", 0.2)], "cuda"):
            raise ValueError
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)
