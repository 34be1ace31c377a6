"""Attention's kernels: none that are made for one dropout and width, wherever a model runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.backends import cuda

from supermax.training.loop import train
from supermax.training.memory_probe import probe_memory
from supermax.training.models.attention import without_cudnn_attention
from supermax.training.models.encoders import layer_list
from supermax.training.steps.execution import Execution
from tests.training.corpora import Quiet, config, ready
from tests.training.steps.test_cuda_graphs import captured_steps

BERT = {"name": "tiny-bert", "attention_dropout": 0.2}


@pytest.fixture
def planned() -> Iterator[list[bool]]:
    """Return a list: for each call of attention, whether planned kernels were allowed."""
    from torch.nn import functional

    seen: list[bool] = []
    attend = functional.scaled_dot_product_attention

    def noted(*args: Any, **named: Any) -> Any:
        seen.append(cuda.cudnn_sdp_enabled())  # type: ignore[no-untyped-call]
        return attend(*args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functional, "scaled_dot_product_attention", noted)
        yield seen


@pytest.mark.parametrize("again", [False, True])
def test_eager_steps_do_not_use_cudnn_attention(
    tmp_path: Path, planned: list[bool], again: bool
) -> None:
    """Nor with activation checkpointing: other kernels would draw other dropout masks."""
    wanted = config(encoder=BERT, train={"epochs": 1})
    prepared = ready(tmp_path, wanted, checkpoint_activations=again)
    layers = len(layer_list(prepared.model.encoders[0].model)[1])  # type: ignore[arg-type]
    updates = -(-30 // wanted.train.effective_batch)
    train(prepared, Quiet())
    looks = len(planned) - layers * updates * (2 if again else 1)
    assert looks > 0
    assert not any(planned)


def test_captured_steps_and_inference_do_not_use_cudnn_attention(
    tmp_path: Path, planned: list[bool]
) -> None:
    prepared = captured_steps(ready(tmp_path, config(encoder=BERT, train={"epochs": 3})))
    train(prepared, Quiet())
    assert planned
    assert not any(planned)


def test_memory_probe_does_not_use_cudnn_attention(planned: list[bool]) -> None:
    probe_memory(config(encoder=BERT), Execution(micro_batch=2), 16, updates=1)
    assert planned
    assert not any(planned)


@pytest.mark.parametrize("before", [True, False])
def test_the_setting_is_restored_even_after_an_error(before: bool) -> None:
    cuda.enable_cudnn_sdp(before)
    try:
        with pytest.raises(ValueError), without_cudnn_attention():
            raise ValueError
        assert cuda.cudnn_sdp_enabled() == before  # type: ignore[no-untyped-call]
    finally:
        cuda.enable_cudnn_sdp(True)


def test_a_setting_that_was_off_stays_off() -> None:
    cuda.enable_flash_sdp(False)
    try:
        with without_cudnn_attention():
            assert not cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]
    finally:
        cuda.enable_flash_sdp(True)
