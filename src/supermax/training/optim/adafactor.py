"""Adafactor without CPU-GPU synchronisations.

torch.optim.Adafactor reads step, RMS of the parameter and RMS of the update of each parameter on
the CPU, which waits for the device each time. Here they stay on the device, so an update can be
captured as a CUDA graph. Updates and states are the same, and states can be exchanged between the
two. With `absolute`, updates are not scaled by the RMS of the parameter.

    steps, rate, RMS ──▶ beta2, learning rate            all parameters at once
    vectors          ──▶ variance ──▶ update             all at once: they are small
    matrices         ──▶ rows, columns ──▶ update        one at a time, to save memory
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT, StateDict


@dataclass(frozen=True)
class _ParameterUpdate:
    """Inputs of the update of one parameter."""

    parameter: Tensor
    gradient: Tensor
    state: dict[str, Tensor]
    new_weight: Tensor
    """Weight of this gradient in the running means of squares: 1 - beta2."""
    signed_rate: Tensor
    """Learning rate with the sign of the direction, before the update is clipped."""
    max_norm: float
    """Norm to which the update is clipped."""
    eps: float


class DeviceAdafactor(torch.optim.Adafactor):
    """Adafactor of torch on the device. The parameters of a group are on one device and of one
    dtype; its learning rate is a float, or a tensor there."""

    def __init__(self, params: ParamsT, *, absolute: bool = False, **more: Any) -> None:
        """`absolute`: the learning rate bounds the RMS of an update, as with
        `scale_parameter=False, relative_step=False` in transformers."""
        super().__init__(params, **more)
        self._absolute = absolute

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                if any(parameter.grad is not None for parameter in group["params"]):
                    self._update(group)
        return loss

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a state and move step counts to the device, which torch does not."""
        super().load_state_dict(state_dict)
        for parameter, state in self.state.items():
            if state:
                state["step"] = state["step"].to(parameter.device, torch.float32, copy=True)

    def _update(self, group: dict[str, Any]) -> None:
        parameters = [p for p in group["params"] if p.grad is not None]
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter] = _first_state(parameter)
        states = [self.state[parameter] for parameter in parameters]
        updates = _begin_step(group, parameters, states, self._absolute)
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        vectors = [update for update in updates if update.parameter.ndim < 2]
        if vectors:
            _update_vectors(vectors)
        for update in updates:
            if update.parameter.ndim > 1:
                _update_matrix(update)


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


def _relative_rates(group: dict[str, Any], parameters: list[Tensor], counts: Tensor) -> Tensor:
    """Return learning rates in proportion to the RMS of each parameter, before weight decay."""
    roots = [math.sqrt(parameter.numel()) for parameter in parameters]
    sizes = torch.stack(torch._foreach_div(torch._foreach_norm(parameters), roots))
    return sizes.clamp(min=group["eps"][1]) * counts.rsqrt().clamp(max=group["lr"])


def _begin_step(
    group: dict[str, Any],
    parameters: list[Tensor],
    states: list[dict[str, Tensor]],
    absolute: bool,
) -> list[_ParameterUpdate]:
    """Advance the step counts and return the inputs of all updates."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    steps = [state["step"] for state in states]
    torch._foreach_add_(steps, 1.0)
    counts = torch.stack(steps)
    if absolute:
        rates = torch.ones_like(counts) * group["lr"]
    else:
        rates = _relative_rates(group, parameters, counts)
    rates = rates if group["maximize"] else -rates
    dtype, eps = parameters[0].dtype, group["eps"][0]
    new_weights = counts.pow(group["beta2_decay"]).to(dtype).unbind()
    return [
        _ParameterUpdate(
            parameter=parameter,
            gradient=gradient,
            state=state,
            new_weight=new_weight,
            signed_rate=rate,
            max_norm=math.sqrt(parameter.numel()) * group["d"],
            eps=torch.finfo(dtype).eps if eps is None else eps,
        )
        for parameter, gradient, state, new_weight, rate in zip(
            parameters, gradients, states, new_weights, rates.to(dtype).unbind(), strict=True
        )
    ]


def _update_vectors(vectors: list[_ParameterUpdate]) -> None:
    gradients = [vector.gradient for vector in vectors]
    squares = torch._foreach_mul(gradients, gradients)
    for vector, square in zip(vectors, squares, strict=True):
        vector.state["variance"].lerp_(square, vector.new_weight)
    updates = torch._foreach_clamp_min(
        [vector.state["variance"] for vector in vectors], [vector.eps**2 for vector in vectors]
    )
    torch._foreach_rsqrt_(updates)
    torch._foreach_mul_(updates, gradients)
    excess = torch._foreach_div(
        torch._foreach_norm(updates), [vector.max_norm for vector in vectors]
    )
    torch._foreach_clamp_min_(excess, 1.0)
    scales = torch._foreach_div([vector.signed_rate for vector in vectors], excess)
    for vector, update, scale in zip(vectors, updates, scales, strict=True):
        vector.parameter.addcmul_(update, scale)


def _update_matrix(matrix: _ParameterUpdate) -> None:
    """Update a matrix. The only temporary tensor of its size is the update itself."""
    rows, columns = matrix.state["row_var"], matrix.state["col_var"]
    rows.lerp_(_mean_square(matrix.gradient, -1), matrix.new_weight)
    columns.lerp_(_mean_square(matrix.gradient, -2), matrix.new_weight)
    row_mean = rows.mean(dim=-2, keepdim=True).clamp_(min=matrix.eps)
    update = (rows / row_mean) * columns
    update.clamp_(min=matrix.eps**2).rsqrt_().mul_(matrix.gradient)
    excess = torch.linalg.vector_norm(update).div_(matrix.max_norm).clamp_(min=1.0)
    matrix.parameter.addcmul_(update, matrix.signed_rate / excess)


def _mean_square(gradient: Tensor, dim: int) -> Tensor:
    """Return the mean of squares along `dim` without a temporary tensor of the gradient's size."""
    norm: Tensor = torch.linalg.vector_norm(gradient, dim=dim, keepdim=True)
    return norm.square_().div_(gradient.shape[dim])
