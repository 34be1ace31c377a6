"""Check of matrix products: it accepts right ones and finds wrong ones."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from supermax.training.steps import matrix_products
from supermax.training.steps.matrix_products import ProductCheck, check_products


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_right_products_are_accepted(dtype: torch.dtype) -> None:
    assert check_products("cpu", dtype, sizes=(32,), rows=(1, 16)) == ProductCheck(32, 0)


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, 1e18])
def test_wrong_products_are_found(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """A quarter of the columns of one kind of product is wrong, as with a faulty kernel."""

    def linear(states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        product = states @ weight.t() + bias
        product[:, : len(weight) // 4] = value
        return product

    monkeypatch.setattr(matrix_products, "linear", linear)
    found = check_products("cpu", torch.float32, sizes=(32,), rows=(1, 16))
    assert found == ProductCheck(32, 8, "output of 1 × 32 × 32")


def test_program_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(SystemExit, match="torch sees no GPU"):
        matrix_products.main()
