"""Attention's kernels: none that are made for one dropout and width, wherever a model runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.backends import cuda

from supermax.training.attention import unplanned
from supermax.training.encoders import layer_list
from supermax.training.loop import train
from supermax.training.probing import probe
from supermax.training.steps import Execution
from tests.training.corpora import Quiet, config, ready
from tests.training.test_captured import captured

BERT = {"name": "tiny-bert", "attention_dropout": 0.2}


@pytest.fixture
def planned() -> Iterator[list[bool]]:
    """Whether kernels that are planned were allowed, for each time attention was asked for."""
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
def test_none_is_planned_one_by_one(tmp_path: Path, planned: list[bool], again: bool) -> None:
    """Nor where activations are computed again: others would draw other dropouts."""
    wanted = config(encoder=BERT, train={"epochs": 1})
    prepared = ready(tmp_path, wanted, checkpoint_activations=again)
    layers = len(layer_list(prepared.model.encoders[0].model)[1])  # type: ignore[arg-type]
    updates = -(-30 // wanted.train.effective_batch)
    train(prepared, Quiet())
    looks = len(planned) - layers * updates * (2 if again else 1)
    assert looks > 0
    assert not any(planned)


def test_none_is_planned_in_recorded_steps_and_looks(tmp_path: Path, planned: list[bool]) -> None:
    prepared = captured(ready(tmp_path, config(encoder=BERT, train={"epochs": 3})))
    train(prepared, Quiet())
    assert planned
    assert not any(planned)


def test_none_is_planned_in_a_probe(planned: list[bool]) -> None:
    probe(config(encoder=BERT), Execution(micro_batch=2), 16, updates=1)
    assert planned
    assert not any(planned)


@pytest.mark.parametrize("before", [True, False])
def test_what_was_set_before_is_set_again_even_after_an_error(before: bool) -> None:
    cuda.enable_cudnn_sdp(before)
    try:
        with pytest.raises(ValueError), unplanned():
            raise ValueError
        assert cuda.cudnn_sdp_enabled() == before  # type: ignore[no-untyped-call]
    finally:
        cuda.enable_cudnn_sdp(True)


def test_what_somebody_switched_off_stays_off() -> None:
    cuda.enable_flash_sdp(False)
    try:
        with unplanned():
            assert not cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]
    finally:
        cuda.enable_flash_sdp(True)
