"""bf16 copies (shadow weights) of linear layers for captured steps, in place of autocast's casts.

    fp32 weights ──refresh()──▶ bf16 copies ──in_use(): forward, backward──▶ bf16 gradients
                 ◀───────────────────────add_gradients()────────────────────────┘

Autocast casts every weight to bf16 in every step and every gradient back to fp32, each in a small
launch-bound kernel. Here one multi-tensor kernel casts all of them, after the weights change. The
products are those of autocast: it too computes linear layers with weights and inputs rounded to
bf16, and the optimizer updates the fp32 weights. Query, key and value projections, which have the
same input, are one matrix product: concatenated rows of the weights give concatenated columns of
the output. Results differ from autocast only in the order in which some sums are added up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn.functional import linear

_QKV = ("query", "key", "value")
"""Projections of one attention module with the same input, in model types that name them so."""
ALIGNMENT = 16
"""Bytes to which tensors are aligned for vectorised loads."""


@dataclass(frozen=True)
class Bf16Copy:
    """bf16 copy of a weight or bias: rows of a parameter that may be fused with others."""

    whole: nn.Parameter
    begin: int
    size: int

    @property
    def value(self) -> Tensor:
        """Rows of the copy, as a view."""
        return self.whole.detach()[self.begin : self.begin + self.size]

    @property
    def gradient(self) -> Tensor | None:
        """Rows of the bf16 gradient, as a view; None: there is none."""
        if self.whole.grad is None:
            return None
        return self.whole.grad[self.begin : self.begin + self.size]


class Bf16Copies:
    """bf16 copies of the linear layers that are trained.

    All other modules keep their fp32 weights and run under autocast as before.
    """

    def __init__(self, model: nn.Module, rows: int) -> None:
        """`rows`: expected maximum of input rows of a layer. More work too, more slowly."""
        self.of: dict[Tensor, Bf16Copy] = {}
        """Copies by their fp32 weight or bias."""
        self._uses: list[tuple[nn.Linear, FusedLinear, int]] = []
        """Layers with the fused layer that computes them, and their part of it."""
        self._groups: list[FusedLinear] = []
        device = next(model.parameters()).device
        ones = torch.ones((1, rows), dtype=torch.bfloat16, device=device)
        for layers in _layer_groups(model):
            group = FusedLinear(layers, ones)
            self._groups.append(group)
            begin = 0
            for part, layer in enumerate(layers):
                self._uses.append((layer, group, part))
                size = layer.out_features
                self.of[layer.weight] = Bf16Copy(group.weight, begin, size)
                if group.bias is not None:
                    self.of[layer.bias] = Bf16Copy(group.bias, begin, size)
                begin += size

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let the layers compute with their bf16 copies within the block.

        Swapping `__class__` replaces `forward` and leaves everything else as it is: the module
        tree, parameter names, hooks, and attributes that the model reads (`layer.weight`). It is
        valid because `Bf16Linear` subclasses `nn.Linear` without adding slots, and only layers
        whose type is exactly `nn.Linear` are chosen. A parametrization or a new submodule would
        change the state dict.
        """
        for layer, group, part in self._uses:
            layer.__class__ = Bf16Linear
            vars(layer).update(group=group, part=part)
        try:
            yield
        finally:
            for layer, group, _ in self._uses:
                layer.__class__ = nn.Linear
                del vars(layer)["group"], vars(layer)["part"]
                group.clear()

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the fp32 weights to their bf16 copies; to be called after weights changed."""
        if self.of:
            torch._foreach_copy_([copy.value for copy in self.of.values()], [*self.of])

    @torch.no_grad()
    def add_gradients(self) -> None:
        """Add the bf16 gradients to the gradients of the weights in fp32, and clear them."""
        pairs = [(w, g) for w, copy in self.of.items() if (g := copy.gradient) is not None]
        first = [(w, torch.empty_like(w), g) for w, g in pairs if w.grad is None]
        more = [(w.grad, g) for w, g in pairs if w.grad is not None]
        if first:
            torch._foreach_copy_([fp32 for _, fp32, _ in first], [g for _, _, g in first])
        if more:
            torch._foreach_add_([total for total, _ in more], [g for _, g in more])
        for weight, fp32, _ in first:
            weight.grad = fp32
        self.clear_gradients()

    def clear_gradients(self) -> None:
        for group in self._groups:
            group.weight.grad = None
            if group.bias is not None:
                group.bias.grad = None


def _layer_groups(model: nn.Module) -> Iterator[list[nn.Linear]]:
    """Yield the layers that get bf16 copies, each once: QKV projections together, others alone."""
    modules = list(model.modules())
    used = Counter(p for module in modules for p in module.parameters(recurse=False))
    done: set[nn.Module] = set()

    def eligible(layer: object) -> TypeGuard[nn.Linear]:
        """Return whether a layer is a plain trained one. Tied weights are excluded: the other
        module would not use the copy."""
        return (
            type(layer) is nn.Linear
            and layer not in done
            and all(used[p] == 1 and p.requires_grad for p in layer.parameters())
        )

    for module in modules:  # parents come before their children
        projections = [getattr(module, name, None) for name in _QKV]
        for candidates in (projections, [module]):
            layers = [layer for layer in candidates if eligible(layer)]
            if len(layers) == len(candidates) and _can_fuse(layers):
                done.update(layers)
                yield layers


def _can_fuse(layers: Sequence[nn.Linear]) -> bool:
    """Return whether layers can be one: alone, or distinct with equal inputs and aligned parts."""
    kinds = {(layer.in_features, layer.bias is None) for layer in layers}
    aligned = all(2 * layer.out_features % ALIGNMENT == 0 for layer in layers)  # bf16: 2 bytes
    return len(layers) == 1 or (len({*layers}) == len(layers) and len(kinds) == 1 and aligned)


class FusedLinear:
    """One bf16 matrix product for layers with the same input, or for a single layer.

    The layers are still called one by one, as the model is written. The call of the first computes
    all outputs, and the others take theirs. "Same input" means the same tensor object, not equal
    values: a module that gives query, key and value different inputs is computed correctly, only
    without the gain.
    """

    def __init__(self, layers: Sequence[nn.Linear], ones: Tensor) -> None:
        self.sizes = [layer.out_features for layer in layers]
        self.weight = _bf16_parameter([layer.weight for layer in layers])
        has_bias = layers[0].bias is not None
        self.bias = _bf16_parameter([layer.bias for layer in layers]) if has_bias else None
        self._ones = ones
        self._input: Tensor | None = None
        self._outputs: Sequence[Tensor] = ()

    def __call__(self, part: int, states: Tensor) -> Tensor:
        """Return the output of layer `part` for `states`."""
        if states is not self._input:
            cast = states.to(self.weight.dtype)
            outputs = _Linear.apply(cast, self.weight, self.bias, self._ones, self.sizes)  # type: ignore[no-untyped-call]
            if len(self.sizes) == 1:
                only: Tensor = outputs[0]
                return only
            self._input, self._outputs = states, outputs
        output = self._outputs[part]
        if part == len(self.sizes) - 1:  # kept longer, they would hold activations
            self.clear()
        return output

    def clear(self) -> None:
        """Drop the outputs that are kept for other layers."""
        self._input, self._outputs = None, ()


def _bf16_parameter(weights: Sequence[Tensor]) -> nn.Parameter:
    return nn.Parameter(torch.cat([weight.detach().to(torch.bfloat16) for weight in weights]))


class Bf16Linear(nn.Linear):
    """Class of a linear layer while its bf16 copy is in use."""

    group: FusedLinear
    part: int

    def forward(self, states: Tensor) -> Tensor:
        return self.group(self.part, states)


class _Linear(torch.autograd.Function):
    """Linear layer whose bias gradient is a matrix product with ones: that takes a quarter of the
    time of torch's sum over rows."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        ones: Tensor,
        sizes: Sequence[int],
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(states, weight, ones)
        output = linear(states, weight, bias)
        return torch.split(output, [*sizes], dim=-1) if len(sizes) > 1 else (output,)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, ones = ctx.saved_tensors
        gradient = torch.cat(gradients, dim=-1) if len(gradients) > 1 else gradients[0]
        rows = gradient.reshape(-1, gradient.shape[-1])
        grad_states = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_states = (rows @ weight).view(states.shape)
        grad_weight = rows.t() @ states.reshape(-1, states.shape[-1])
        if ctx.needs_input_grad[2]:
            enough = len(rows) <= ones.shape[1]
            grad_bias = (ones[:, : len(rows)] @ rows)[0] if enough else rows.sum(0)
        return grad_states, grad_weight, grad_bias, None, None
