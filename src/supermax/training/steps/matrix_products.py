"""Check of matrix products on a GPU against float64, in the shapes of encoders.

    python -m supermax.training.steps.matrix_products ──▶ {"checked": 612, "wrong": 0, …}

With some shares of the multiprocessors under CUDA MPS, cuBLAS of CUDA 13 returns wrong products on
an H200, without an error (docs/design.md). Run as a program, because a process keeps its share.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

SIZES = (256, 384, 768, 1024, 3072)
ROWS = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096)
_WIDEST = 4096
_TOLERANCE = {torch.bfloat16: 0.02, torch.float16: 0.01, torch.float32: 1e-3}
"""Relative errors beyond those of rounding. Wrong products differ by a tenth and more."""


@dataclass(frozen=True)
class ProductCheck:
    """Result of a check."""

    checked: int
    wrong: int
    example: str | None = None
    """Operation and shape of the first wrong product."""


def check_products(
    device: str,
    dtype: torch.dtype,
    *,
    sizes: Sequence[int] = SIZES,
    rows: Sequence[int] = ROWS,
) -> ProductCheck:
    """Compute the products of linear layers, forward and backward, and compare each with its
    float64 value."""
    generator = torch.Generator(device).manual_seed(0)
    checked, wrong = 0, []
    for size, count in itertools.product(sizes, rows):
        for inner, outer in ((size, size), (size, 3 * size), (size, 4 * size), (4 * size, size)):
            if max(inner, outer) > _WIDEST:
                continue
            for name, got, exact in _products(device, dtype, (count, inner, outer), generator):
                checked += 1
                if not _close(got, exact, _TOLERANCE[dtype]):
                    wrong.append(f"{name} of {count} × {inner} × {outer}")
    return ProductCheck(checked, len(wrong), next(iter(wrong), None))


def _products(
    device: str, dtype: torch.dtype, shape: tuple[int, int, int], generator: torch.Generator
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the name, value and float64 value of the products of one layer."""
    count, inner, outer = shape

    def drawn(*size: int) -> Tensor:
        return torch.randn(size, device=device, generator=generator).to(dtype)

    states, gradients = drawn(count, inner), drawn(count, outer)
    weight, bias, ones = drawn(outer, inner), drawn(outer), torch.ones_like(gradients[:, :1].t())
    exact = {tensor: tensor.double() for tensor in (states, gradients, weight, bias, ones)}
    yield (
        "output",
        linear(states, weight, bias),
        exact[states] @ exact[weight].t() + exact[bias],
    )
    yield "gradient of the input", gradients @ weight, exact[gradients] @ exact[weight]
    yield "gradient of the weight", gradients.t() @ states, exact[gradients].t() @ exact[states]
    yield "gradient of the bias", ones @ gradients, exact[ones] @ exact[gradients]


def _close(got: Tensor, exact: Tensor, tolerance: float) -> bool:
    return bool((got.double() - exact).norm() <= tolerance * exact.norm())  # false for NaN


def main() -> None:
    """Check every visible GPU in the precision that trainings use; print the sum."""
    found = [
        check_products(
            f"cuda:{index}",
            torch.bfloat16 if torch.cuda.get_device_capability(index) >= (8, 0) else torch.float16,
        )
        for index in range(torch.cuda.device_count())
    ]
    if not found:
        raise SystemExit("torch sees no GPU")
    example = next((one.example for one in found if one.example), None)
    whole = ProductCheck(
        sum(one.checked for one in found), sum(one.wrong for one in found), example
    )
    print(json.dumps(asdict(whole)), flush=True)


if __name__ == "__main__":
    main()
