"""Layers whose dropouts can be of any rate without being compiled anew.

    layers ──loosened()──▶ rates in tensors, attention left as it is ──restore()──▶ as they were

What is compiled holds good for the numbers it has seen, and a search tries a dropout that was
never seen before in every trial. In a tensor it is one input among others. Attention asks for a
number, so it stays outside of what is compiled: it is one operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

_SDPA = "sdpa"
_LOOSE = -1.0
"""Stands for a rate where a layer would read a number. No dropout takes it: who reads it and does
not know what it stands for fails at once."""
_RATE = "loose_rate"
"""Of a module of attention: what `_LOOSE` stands for in it."""
_NUMBER = "attention_dropout"
_OF_ATTENTION = (_NUMBER, "attn_dropout", "dropout")
"""Where a module of attention keeps its rate: the first as a number or a module, the others as a
module."""
Restore = Callable[[], None]


class LooseDropout(nn.Module):
    """Dropout whose rate is no part of what is compiled."""

    rate: Tensor
    scale: Tensor

    def __init__(self, rate: float, device: torch.device) -> None:
        super().__init__()
        self.p = _LOOSE
        for name, value in (("rate", rate), ("scale", 1 / (1 - rate) if rate < 1 else 0.0)):
            filled = torch.full((), value, device=device)  # a copy would wait for the device
            self.register_buffer(name, filled, persistent=False)

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


def tight(layer: nn.Module) -> list[float]:
    """The rates that stay what they are, so that others are compiled anew."""
    return [
        value
        for module in layer.modules()
        for name, value in vars(module).items()
        if isinstance(value, float) and "drop" in name and name not in (_NUMBER, _RATE)
    ]


def _loosen(module: nn.Module, device: torch.device) -> Restore:
    """Its own dropouts, not those of what is in it, nor those that are loose already."""
    modules = {n: c for n, c in module.named_children() if type(c) is nn.Dropout and not c.inplace}
    numbers = {n: v for n, v in vars(module).items() if n == _NUMBER and v not in (None, _LOOSE)}
    rates = {**{name: dropout.p for name, dropout in modules.items()}, **numbers}
    for name in numbers:
        setattr(module, name, _LOOSE)
    for name, dropout in modules.items():
        setattr(module, name, LooseDropout(dropout.p, device).train(dropout.training))
    attention = next((name for name in _OF_ATTENTION if name in rates), None)
    if attention is not None:
        setattr(module, _RATE, rates[attention])

    def restore() -> None:
        for name, dropout in modules.items():
            setattr(module, name, dropout.train(module.training))
        for name, number in numbers.items():
            setattr(module, name, number)
        if attention is not None:
            delattr(module, _RATE)

    return restore


def _know_loose_rates() -> None:
    """From now on attention knows them. Modules that have none are attended to as before."""
    from transformers import AttentionInterface  # seconds, for programs that train nothing

    attend = AttentionInterface()[_SDPA]
    if getattr(attend, "knows_loose_rates", False):
        return

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def outside(
        module: nn.Module, states: list[Tensor], *args: Any, dropout: float = 0.0, **named: Any
    ) -> Any:
        rate = getattr(module, _RATE) if dropout == _LOOSE else dropout
        return attend(module, *_turned(states), *args, dropout=rate, **named)

    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **named: Any
    ) -> Any:
        states = [query, key, value]
        if not hasattr(module, _RATE):
            return attend(module, *states, *args, **named)
        # In the order that they have in memory: else their gradients would be copied on the way.
        return outside(module, _turned(states), *args, **named)

    attention.knows_loose_rates = True  # type: ignore[attr-defined]
    AttentionInterface.register(_SDPA, attention)


def _turned(states: list[Tensor]) -> list[Tensor]:
    """Heads before tokens, or tokens before heads."""
    return [one.transpose(1, 2) for one in states]
