"""Weights in half precision beside those that are trained, for steps that are recorded.

    weights ──refresh()──▶ halves ──in_use(): forward, backward──▶ their gradients
            ◀────────────────────────────give()────────────────────┘

Autocast makes a half of every weight in every step, and turns its gradient back, each in a kernel
of its own that takes longer to begin than to work. Here all of them are turned at once. Query, key
and value are three layers that see the same states; here they are one product. The numbers are
autocast's, but for the order in which some are added up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

_TOGETHER = ("query", "key", "value")
"""Layers of one module that see the same states, in families that name them so."""
EVEN = 16
"""Bytes of which a multiple is an address that many numbers can be read from at once."""


@dataclass(frozen=True)
class Half:
    """Of a weight: some rows of what is computed with."""

    whole: nn.Parameter
    begin: int
    size: int

    @property
    def value(self) -> Tensor:
        return self.whole.detach()[self.begin : self.begin + self.size]

    @property
    def gradient(self) -> Tensor | None:
        if self.whole.grad is None:
            return None
        return self.whole.grad[self.begin : self.begin + self.size]


class Halves:
    """Of the linear layers that are trained: all else computes in what it has."""

    def __init__(self, model: nn.Module, rows: int) -> None:
        """`rows`: that a layer sees at a time, at most. If it sees more, it takes longer."""
        self.of: dict[Tensor, Half] = {}
        """By the weight they stand for."""
        self._uses: list[tuple[nn.Linear, Together, int]] = []
        self._all: list[Together] = []
        device = next(model.parameters()).device
        ones = torch.ones((1, rows), dtype=torch.bfloat16, device=device)
        for layers in _grouped(model):
            together = Together(layers, ones)
            self._all.append(together)
            begin = 0
            for part, layer in enumerate(layers):
                self._uses.append((layer, together, part))
                size = layer.out_features
                self.of[layer.weight] = Half(together.weight, begin, size)
                if together.bias is not None:
                    self.of[layer.bias] = Half(together.bias, begin, size)
                begin += size

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """In the place of their weights."""
        for layer, together, part in self._uses:
            layer.__class__ = HalfLinear
            vars(layer).update(together=together, part=part)
        try:
            yield
        finally:
            for layer, together, _ in self._uses:
                layer.__class__ = nn.Linear
                del vars(layer)["together"], vars(layer)["part"]
                together.forget()

    @torch.no_grad()
    def refresh(self) -> None:
        """After the weights have changed."""
        if self.of:
            torch._foreach_copy_([half.value for half in self.of.values()], [*self.of])

    @torch.no_grad()
    def give(self) -> None:
        """Add their gradients to those of the weights, in full precision."""
        found = [(w, g) for w, half in self.of.items() if (g := half.gradient) is not None]
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
        """Their gradients."""
        for together in self._all:
            together.weight.grad = None
            if together.bias is not None:
                together.bias.grad = None


def _grouped(model: nn.Module) -> Iterator[list[nn.Linear]]:
    """The layers that have halves, each once; together those that see the same states."""
    modules = list(model.modules())
    used = Counter(p for module in modules for p in module.parameters(recurse=False))
    done: set[nn.Module] = set()

    def own(layer: Any) -> bool:
        """Not so where a weight is another's as well: both would have to know."""
        return (
            type(layer) is nn.Linear
            and layer not in done
            and all(used[p] == 1 and p.requires_grad for p in layer.parameters())
        )

    for module in modules:  # with what is in it after it
        several = [getattr(module, name, None) for name in _TOGETHER]
        either: list[list[Any]] = [several, [module]]
        for layers in either:
            if all(map(own, layers)) and _alike(layers):
                done.update(layers)
                yield layers


def _alike(layers: Sequence[Any]) -> bool:
    kinds = {(layer.in_features, layer.bias is None) for layer in layers}
    even = all(2 * layer.out_features % EVEN == 0 for layer in layers)  # of halves
    return len(layers) == 1 or (len({*layers}) == len(layers) and len(kinds) == 1 and even)


class Together:
    """Linear layers that see the same states, as one; most are alone."""

    def __init__(self, layers: Sequence[nn.Linear], ones: Tensor) -> None:
        self.sizes = [layer.out_features for layer in layers]
        self.weight = _half([layer.weight for layer in layers])
        has_bias = layers[0].bias is not None
        self.bias = _half([layer.bias for layer in layers]) if has_bias else None
        self._ones = ones
        self._states: Tensor | None = None
        self._found: Sequence[Tensor] = ()

    def __call__(self, part: int, states: Tensor) -> Tensor:
        """Of one of them. The first that is asked works for all."""
        if states is not self._states:
            half = states.to(self.weight.dtype)
            found = _Linear.apply(half, self.weight, self.bias, self._ones, self.sizes)  # type: ignore[no-untyped-call]
            if len(self.sizes) == 1:
                only: Tensor = found[0]
                return only
            self._states, self._found = states, found
        mine = self._found[part]
        if part == len(self.sizes) - 1:
            self.forget()
        return mine

    def forget(self) -> None:
        """What was found for the others."""
        self._states, self._found = None, ()


def _half(weights: Sequence[Tensor]) -> nn.Parameter:
    return nn.Parameter(torch.cat([weight.detach().to(torch.bfloat16) for weight in weights]))


class HalfLinear(nn.Linear):
    """A layer while its halves are in use."""

    together: Together
    part: int

    def forward(self, states: Tensor) -> Tensor:
        return self.together(self.part, states)


class _Linear(torch.autograd.Function):
    """A bias gets its gradient as a product, which takes a quarter of the time that torch takes to
    sum it up."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        ones: Tensor,
        sizes: Sequence[int],
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(states, weight, ones)
        found = linear(states, weight, bias)
        return torch.split(found, [*sizes], dim=-1) if len(sizes) > 1 else (found,)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, ones = ctx.saved_tensors
        gradient = torch.cat(gradients, dim=-1) if len(gradients) > 1 else gradients[0]
        rows = gradient.reshape(-1, gradient.shape[-1])
        of_states = of_bias = None
        if ctx.needs_input_grad[0]:
            of_states = (rows @ weight).view(states.shape)
        of_weight = rows.t() @ states.reshape(-1, states.shape[-1])
        if ctx.needs_input_grad[2]:
            known = len(rows) <= ones.shape[1]
            of_bias = (ones[:, : len(rows)] @ rows)[0] if known else rows.sum(0)
        return of_states, of_weight, of_bias, None, None
