"""Adafactor that never waits for the device.

torch.optim.Adafactor fetches a parameter's step, its size and the size of its update as numbers
of the host, which waits for the device each time. Here they stay where the parameter is, so an
update can be recorded. What is learned is the same, and so are the states, which go over from
either to the other. With `absolute`, updates are not scaled by the size of the parameter.

    steps, rate, sizes ──▶ how much is new, how far to go      all parameters at once
    vectors            ──▶ variance ──▶ update                 all at once: they are small
    matrices           ──▶ rows, columns ──▶ update            one at a time: it takes its room
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class _One:
    """A parameter and what its update is made of."""

    parameter: Tensor
    gradient: Tensor
    state: dict[str, Tensor]
    new: Tensor
    """The share of this update in the means of squares."""
    reach: Tensor
    """How far to go, and which way, before an update that is too large is cut."""
    cut: float
    """The norm beyond which it is."""
    eps: float


class DeviceAdafactor(torch.optim.Adafactor):
    """A group's parameters are on one device and of one kind; its learning rate is a number, or a
    tensor there."""

    def __init__(self, params: Any, *, absolute: bool = False, **more: Any) -> None:
        """`absolute`: the learning rate is the root mean square of an update at most, as with
        `scale_parameter=False, relative_step=False` in transformers."""
        super().__init__(params, **more)
        self._absolute = absolute

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                if any(parameter.grad is not None for parameter in group["params"]):
                    self._update(group)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Torch leaves steps where they were saved."""
        super().load_state_dict(state_dict)
        for parameter, state in self.state.items():
            if state:
                state["step"] = state["step"].to(parameter.device, torch.float32, copy=True)

    def _update(self, group: dict[str, Any]) -> None:
        parameters = [p for p in group["params"] if p.grad is not None]
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter] = _first_state(parameter)
        every = _counted(group, parameters, [self.state[p] for p in parameters], self._absolute)
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        vectors = [one for one in every if one.parameter.ndim < 2]
        if vectors:
            _move_vectors(vectors)
        for one in every:
            if one.parameter.ndim > 1:
                _move_matrix(one)


def _first_state(parameter: Tensor) -> dict[str, Tensor]:
    step = torch.zeros((), device=parameter.device)
    if parameter.ndim < 2:
        return {"step": step, "variance": torch.zeros_like(parameter)}
    *before, rows, columns = parameter.shape
    return {
        "step": step,
        "row_var": parameter.new_zeros((*before, rows, 1)),
        "col_var": parameter.new_zeros((*before, 1, columns)),
    }


def _relative(group: dict[str, Any], parameters: list[Tensor], counts: Tensor) -> Tensor:
    """In proportion to the size of each parameter, before any decay."""
    roots = [math.sqrt(parameter.numel()) for parameter in parameters]
    sizes = torch.stack(torch._foreach_div(torch._foreach_norm(parameters), roots))
    return sizes.clamp(min=group["eps"][1]) * counts.rsqrt().clamp(max=group["lr"])


def _counted(
    group: dict[str, Any],
    parameters: list[Tensor],
    states: list[dict[str, Tensor]],
    absolute: bool,
) -> list[_One]:
    """One step more for each, and what follows from that."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    steps = [state["step"] for state in states]
    torch._foreach_add_(steps, 1.0)
    counts = torch.stack(steps)
    if absolute:
        reaches = torch.ones_like(counts) * group["lr"]
    else:
        reaches = _relative(group, parameters, counts)
    reaches = reaches if group["maximize"] else -reaches
    kind, eps = parameters[0].dtype, group["eps"][0]
    news = counts.pow(group["beta2_decay"]).to(kind).unbind()
    return [
        _One(
            parameter=parameter,
            gradient=gradient,
            state=state,
            new=new,
            reach=reach,
            cut=math.sqrt(parameter.numel()) * group["d"],
            eps=torch.finfo(kind).eps if eps is None else eps,
        )
        for parameter, gradient, state, new, reach in zip(
            parameters, gradients, states, news, reaches.to(kind).unbind(), strict=True
        )
    ]


def _move_vectors(some: list[_One]) -> None:
    gradients = [one.gradient for one in some]
    squares = torch._foreach_mul(gradients, gradients)
    for one, square in zip(some, squares, strict=True):
        one.state["variance"].lerp_(square, one.new)
    updates = torch._foreach_clamp_min(
        [one.state["variance"] for one in some], [one.eps**2 for one in some]
    )
    torch._foreach_rsqrt_(updates)
    torch._foreach_mul_(updates, gradients)
    sizes = torch._foreach_div(torch._foreach_norm(updates), [one.cut for one in some])
    torch._foreach_clamp_min_(sizes, 1.0)
    scales = torch._foreach_div([one.reach for one in some], sizes)
    for one, update, scale in zip(some, updates, scales, strict=True):
        one.parameter.addcmul_(update, scale)


def _move_matrix(one: _One) -> None:
    """All that is as large as the matrix is its update."""
    rows, columns = one.state["row_var"], one.state["col_var"]
    rows.lerp_(_mean_square(one.gradient, -1), one.new)
    columns.lerp_(_mean_square(one.gradient, -2), one.new)
    usual = rows.mean(dim=-2, keepdim=True).clamp_(min=one.eps)
    update = (rows / usual) * columns
    update.clamp_(min=one.eps**2).rsqrt_().mul_(one.gradient)
    size = torch.linalg.vector_norm(update).div_(one.cut).clamp_(min=1.0)
    one.parameter.addcmul_(update, one.reach / size)


def _mean_square(gradient: Tensor, dim: int) -> Tensor:
    """Without as much room as the gradient takes."""
    norm: Tensor = torch.linalg.vector_norm(gradient, dim=dim, keepdim=True)
    return norm.square_().div_(gradient.shape[dim])
