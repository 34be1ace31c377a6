"""Attention's kernels: those that take any dropout, where there is one and a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from supermax.training.architectures import TINY, configuration
from supermax.training.attention import kernels
from supermax.training.encoders import DROPOUTS, untrained

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


def test_what_was_set_before_is_set_again_even_after_an_error() -> None:
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        with pytest.raises(ValueError), kernels([encoder("tiny-bert", 0.2)], "cuda"):
            raise ValueError
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)
