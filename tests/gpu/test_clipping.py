"""Clipping inside the optimizer's step beside `clip_grad_norm_` and a plain AdamW, on a real GPU.

Both steps divide gradients while they read them: torch's fused AdamW by its `grad_scale`, the
Triton kernel by its scale. A hundred steps, with gradients that jump by powers of ten.
"""

from __future__ import annotations

import math

import pytest
import torch

from supermax.training.config import OptimConfig
from supermax.training.optim.bf16_weights import Bf16Copies
from supermax.training.optim.fused_adamw import fused
from supermax.training.optim.optimizers import make_optimizer
from supermax.training.steps.execution import Execution
from supermax.training.steps.step import TrainingStep
from tests.training.corpora import config
from tests.training.optim.test_fused_adamw import Net, optimizer_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
STEPS, CLIP = 100, 1.0
SPIKES = {10: 1e4, 40: 1e8, 41: 1e-8, 70: 1e18}
"""Beyond 1e19 the square of a norm overflows, for torch as for us."""


def gradients(net: Net, step: int, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(step)
    size = SPIKES.get(step, 10 ** math.sin(step))
    return [(size * torch.randn(p.shape)).to(p.device, dtype) for p in net.parameters()]


def plain_adamw(net: Net) -> torch.optim.AdamW:
    """Return AdamW without multi-tensor kernels and without grad_scale."""
    twin = optimizer_of(net)
    groups = [
        {**group, "lr": float(group["lr"]), "capturable": False} for group in twin.param_groups
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-6, foreach=False, fused=False)


def compare(theirs: Net, ours: Net, step: int) -> None:
    for one, other in zip(theirs.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(other, one, rtol=2e-5, atol=2e-6, msg=f"step {step}")


def test_the_kernel_clips_as_torch_does() -> None:
    theirs, ours = Net(), Net()
    ours.load_state_dict(theirs.state_dict())
    reference, by_us = plain_adamw(theirs), optimizer_of(ours)
    copies = Bf16Copies(ours, 1)
    copies.refresh()
    made = fused(by_us, copies)
    assert made is not None
    made.allocate_buffers()
    for step in range(STEPS):
        found = gradients(theirs, step, torch.bfloat16)
        for one, other, gradient in zip(
            theirs.parameters(), ours.parameters(), found, strict=True
        ):
            one.grad = gradient.float()
            half = copies.of.get(other)
            if half is not None:
                half.whole.grad = gradient
            else:
                other.grad = gradient.float()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), CLIP)
        reference.step()
        made(CLIP)
        by_us.zero_grad()
        copies.clear_gradients()
        compare(theirs, ours, step)


def test_fused_adamw_clips_as_torch_does() -> None:
    theirs, ours = Net(), Net()
    ours.load_state_dict(theirs.state_dict())
    settings = OptimConfig(lr=1e-2, weight_decay=0.1, beta2=0.98, eps=1e-6)
    groups = [{"params": list(ours.parameters()), "lr": 1e-2, "weight_decay": 0.1}]
    optimizer = make_optimizer(groups, settings, "cuda")
    step_of = TrainingStep(
        ours,  # type: ignore[arg-type]
        optimizer,
        config(train={"clip": CLIP}),
        None,
        Execution(device="cuda", precision="bf16"),
    )
    assert step_of._scales_gradients
    reference = torch.optim.AdamW(
        theirs.parameters(), lr=1e-2, weight_decay=0.1, betas=(0.9, 0.98), eps=1e-6,
        foreach=False, fused=False,
    )  # fmt: skip
    for step in range(STEPS):
        found = gradients(theirs, step, torch.float32)
        for one, other, gradient in zip(
            theirs.parameters(), ours.parameters(), found, strict=True
        ):
            one.grad, other.grad = gradient.clone(), gradient.clone()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), CLIP)
        reference.step()
        step_of.update()
        compare(theirs, ours, step)
