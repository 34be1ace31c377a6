"""Weights in half precision beside those that are trained, for steps that are recorded.

    weights ──refresh()──▶ halves ──in_use(): forward, backward──▶ their gradients
            ◀────────────────────────────give()────────────────────┘

Autocast makes a half of every weight in every step, and turns its gradient back, each in a kernel
of its own that takes longer to begin than to work. Here all of them are turned at once; the
numbers are the same.

Where layers are compiled they are so with their halves, whose class says that they are in use.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


class Halves:
    """Of the linear layers that are trained: all else computes in what it has."""

    def __init__(self, model: nn.Module, rows: int, kind: torch.dtype = torch.bfloat16) -> None:
        """`rows`: that a layer sees at a time, at most. If it sees more, it takes longer."""
        self.of: dict[Tensor, nn.Parameter] = {}
        """By the weight they stand for."""
        self._uses: list[tuple[nn.Linear, str, nn.Parameter]] = []
        for module in model.modules():
            if type(module) is nn.Linear and module.weight.requires_grad:
                for name, weight in module.named_parameters():
                    if weight not in self.of:
                        self.of[weight] = nn.Parameter(weight.detach().to(kind))
                    self._uses.append((module, name, weight))
        device = next(model.parameters()).device
        self._ones = torch.ones((1, rows), dtype=kind, device=device)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """In the place of their weights."""
        for module, name, weight in self._uses:
            module._parameters[name] = self.of[weight]
            module.__class__, module.ones = HalfLinear, self._ones
        try:
            yield
        finally:
            for module, name, weight in self._uses:
                module._parameters[name] = weight
                module.__class__ = nn.Linear
                vars(module).pop("ones", None)

    @torch.no_grad()
    def refresh(self) -> None:
        """After the weights have changed."""
        torch._foreach_copy_([*self.of.values()], [*self.of])

    @torch.no_grad()
    def give(self) -> None:
        """Add their gradients to those of the weights, which are as precise as these."""
        found = [(w, half.grad) for w, half in self.of.items() if half.grad is not None]
        first = [(w, torch.empty_like(w), g) for w, g in found if w.grad is None]
        more = [(w.grad, g) for w, g in found if w.grad is not None]
        if first:
            torch._foreach_copy_([made for _, made, _ in first], [g for _, _, g in first])
        if more:
            torch._foreach_add_([so_far for so_far, _ in more], [g for _, g in more])
        for weight, made, _ in first:
            weight.grad = made
        self.forget()

    def forget(self) -> None:
        for half in self.of.values():
            half.grad = None


class HalfLinear(nn.Linear):
    """A layer while its halves are in use."""

    ones: Tensor

    def forward(self, states: Tensor) -> Tensor:
        states = states.to(self.weight.dtype)
        found: Tensor = _Linear.apply(states, self.weight, self.bias, self.ones)  # type: ignore[no-untyped-call]
        return found


class _Linear(torch.autograd.Function):
    """A bias gets its gradient as a product, which takes a quarter of the time that torch takes to
    sum it up."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, ones: Tensor
    ) -> Tensor:
        ctx.save_for_backward(states, weight, ones)
        return linear(states, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, ones = ctx.saved_tensors
        needs_states, needs_weight, needs_bias, _ = ctx.needs_input_grad
        rows = gradient.reshape(-1, gradient.shape[-1])
        of_states = of_weight = of_bias = None
        if needs_states:
            of_states = (rows @ weight).view(states.shape)
        if needs_weight:
            of_weight = rows.t() @ states.reshape(-1, states.shape[-1])
        if needs_bias:
            known = len(rows) <= ones.shape[1]
            of_bias = (ones[:, : len(rows)] @ rows)[0] if known else rows.sum(0)
        return of_states, of_weight, of_bias, None
