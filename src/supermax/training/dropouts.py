"""Layers whose dropouts can be of any rate without being compiled anew.

    layers ──loosened()──▶ rates in tensors, attention left as it is ──restore()──▶ as they were

What is compiled holds good for the numbers it has seen, and a search tries a dropout that was
never seen before in every trial. In a tensor it is one input among others. Attention asks for a
number, so it stays outside of what is compiled: it is one operation, with nothing to gain.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

_LOOSE = -1.0
"""Stands for a rate where a layer would read a number. No dropout takes it: who reads it and does
not know what it stands for fails at once."""
_OF_ATTENTION = ("attention_dropout", "dropout")
"""Where a module of attention keeps its rate, as a number or a module."""
_RATES: WeakKeyDictionary[nn.Module, float] = WeakKeyDictionary()
"""What `_LOOSE` stands for in a module of attention."""
Restore = Callable[[], None]


class LooseDropout(nn.Module):
    """Dropout whose rate is no part of what is compiled."""

    rate: Tensor
    scale: Tensor

    def __init__(self, rate: float, device: torch.device) -> None:
        super().__init__()
        self.p = _LOOSE
        scale = 1 / (1 - rate) if rate < 1 else 0.0
        self.register_buffer("rate", torch.tensor(rate, device=device), persistent=False)
        self.register_buffer("scale", torch.tensor(scale, device=device), persistent=False)

    def forward(self, states: Tensor) -> Tensor:
        if not self.training:
            return states
        kept = torch.rand_like(states, dtype=torch.float32) >= self.rate
        return torch.where(kept, states * self.scale, 0.0)


def loosened(layers: Iterable[nn.Module]) -> Restore:
    """Loosen the dropouts of these layers, until what is returned is called."""
    _know_loose_rates()
    undo = []
    for layer in layers:
        device = next(layer.parameters()).device
        undo += [_loosen(module, device) for module in list(layer.modules())]

    def restore() -> None:
        for one in undo:
            one()

    return restore


def _loosen(module: nn.Module, device: torch.device) -> Restore:
    """Its own dropouts, not those of what is in it."""
    modules = {n: c for n, c in module.named_children() if type(c) is nn.Dropout and not c.inplace}
    numbers = {n: v for n, v in vars(module).items() if n == _OF_ATTENTION[0] and v is not None}
    rates = {**{name: dropout.p for name, dropout in modules.items()}, **numbers}
    for name, dropout in modules.items():
        setattr(module, name, LooseDropout(dropout.p, device).train(dropout.training))
    for name in numbers:
        setattr(module, name, _LOOSE)
    for name in _OF_ATTENTION:
        if name in rates:
            _RATES.setdefault(module, rates[name])

    def restore() -> None:
        for name, dropout in modules.items():
            setattr(module, name, dropout.train(module.training))
        for name, number in numbers.items():
            setattr(module, name, number)
        _RATES.pop(module, None)

    return restore


@functools.cache
def _know_loose_rates() -> None:
    """From now on attention knows them, in every model of this process."""
    attend = AttentionInterface()["sdpa"]

    def attention(module: nn.Module, *args: Any, dropout: float = 0.0, **named: Any) -> Any:
        rate = _RATES[module] if dropout == _LOOSE else dropout
        return attend(module, *args, dropout=rate, **named)

    AttentionInterface.register("sdpa", torch.compiler.disable(attention))  # type: ignore[no-untyped-call]
