"""Dropout rates as tensors, so that compiled layers serve every rate without recompilation.

    layers ──use_tensor_rates()──▶ rates in tensors, eager attention ──restore()──▶ as before

torch.compile specialises on Python floats, and a search tries a new dropout rate in every trial. A
rate in a tensor is an input of the compiled code instead. SDPA takes its dropout rate as a float
only, so attention stays outside of the compiled code, at a graph break: it is a single operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

_SDPA = "sdpa"
_PLACEHOLDER = -1.0
"""Value in place of a rate where a layer would read a float. It is no valid rate, so code that
reads it without knowing its meaning fails at once."""
_RATE = "placeholder_rate"
"""Attribute of an attention module: the rate that `_PLACEHOLDER` stands for."""
_FLOAT = "attention_dropout"
_ATTENTION_RATES = (_FLOAT, "attn_dropout", "dropout")
"""Attributes in which attention modules keep their rate: the first as a float or a module, the
others as a module."""
Restore = Callable[[], None]


class TensorRateDropout(nn.Module):
    """Dropout with its rate in a tensor, which is no constant of compiled code."""

    rate: Tensor
    scale: Tensor

    def __init__(self, rate: float, device: torch.device) -> None:
        super().__init__()
        self.p = _PLACEHOLDER
        for name, value in (("rate", rate), ("scale", 1 / (1 - rate) if rate < 1 else 0.0)):
            # `full`, not `tensor`: no copy from the CPU, which would block.
            self.register_buffer(name, torch.full((), value, device=device), persistent=False)

    def forward(self, states: Tensor) -> Tensor:
        if not self.training:
            return states
        kept = torch.rand_like(states, dtype=torch.float32) >= self.rate
        return torch.where(kept, states * self.scale, 0.0)


def use_tensor_rates(layers: Iterable[nn.Module]) -> Restore:
    """Replace the dropouts of these layers; return a function that restores them."""
    _register_attention()
    undo = []
    for layer in layers:
        device = next(layer.parameters()).device
        undo += [_replace_dropouts(module, device) for module in list(layer.modules())]

    def restore() -> None:
        for restore_module in undo:
            restore_module()

    return restore


def constant_rates(layer: nn.Module) -> list[float]:
    """Return the rates that remain Python floats: another value of them is compiled again."""
    return [
        value
        for module in layer.modules()
        for name, value in vars(module).items()
        if isinstance(value, float) and "drop" in name and name not in (_FLOAT, _RATE)
    ]


def _replace_dropouts(module: nn.Module, device: torch.device) -> Restore:
    """Replace the dropouts of a module itself, not of its submodules; return how to undo it.
    Dropouts that were replaced before stay as they are."""
    modules = {n: c for n, c in module.named_children() if type(c) is nn.Dropout and not c.inplace}
    floats = {
        n: v for n, v in vars(module).items() if n == _FLOAT and v not in (None, _PLACEHOLDER)
    }
    rates = {**{name: dropout.p for name, dropout in modules.items()}, **floats}
    for name in floats:
        setattr(module, name, _PLACEHOLDER)
    for name, dropout in modules.items():
        setattr(module, name, TensorRateDropout(dropout.p, device).train(dropout.training))
    attention = next((name for name in _ATTENTION_RATES if name in rates), None)
    if attention is not None:
        setattr(module, _RATE, rates[attention])

    def restore() -> None:
        for name, dropout in modules.items():
            setattr(module, name, dropout.train(module.training))
        for name, rate in floats.items():
            setattr(module, name, rate)
        if attention is not None:
            delattr(module, _RATE)

    return restore


def _register_attention() -> None:
    """Register an SDPA attention with transformers that replaces `_PLACEHOLDER` by the rate of the
    module. Modules without one are treated as before."""
    from transformers import AttentionInterface  # imported late: takes seconds

    attend = AttentionInterface()[_SDPA]
    if getattr(attend, "knows_placeholder", False):
        return

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def eager_attention(
        module: nn.Module,
        states: list[Tensor],
        *args: object,
        dropout: float = 0.0,
        **named: object,
    ) -> object:
        rate = getattr(module, _RATE) if dropout == _PLACEHOLDER else dropout
        return attend(module, *_transposed(states), *args, dropout=rate, **named)

    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *args: object,
        **named: object,
    ) -> object:
        states = [query, key, value]
        if not hasattr(module, _RATE):
            return attend(module, *states, *args, **named)
        # Transposed back to the order that they have in memory. At a graph break compiled code
        # gets contiguous gradients: in any other order each would be copied.
        return eager_attention(module, _transposed(states), *args, **named)

    attention.knows_placeholder = True  # type: ignore[attr-defined]
    AttentionInterface.register(_SDPA, attention)


def _transposed(states: list[Tensor]) -> list[Tensor]:
    """Exchange the dimensions of heads and tokens."""
    return [state.transpose(1, 2) for state in states]
