"""Cost model of captured steps: decides how many shapes to capture, and whether capturing or
compiling saves time. Fitted to one H200 (docs/speed.md). Only these choices depend on it, never a
result."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from supermax.training.models.encoders import layer_list

_STEP = 2.7e-4  # seconds per layer of a step, independent of its size
_RATE = 3.3e14  # floating-point operations per second
_CAPTURE = 5e-3  # seconds per layer to capture a step
_FORWARD = 1.4e-4  # seconds per layer of a forward pass, independent of its size
_FORWARD_SHARE = 1 / 3  # of a step's operations: a backward pass has twice those of the forward
_EAGER_FORWARD = 1.2e-3  # seconds per layer to launch an eager forward pass


@dataclass(frozen=True)
class StepCost:
    """Estimated times of steps and captures of one encoder, by its size."""

    layers: int
    parameters: int
    """Elements of the weight matrices of its layers."""

    def step(self, rows: int, length: int) -> float:
        """Return the seconds of a captured step with `rows` rows of `length` tokens."""
        return _STEP * self.layers + self._computing(rows, length)

    def _computing(self, rows: int, length: int) -> float:
        # 6 operations per parameter and token: 2 in the forward pass, 4 in the backward pass.
        return 6 * self.parameters * rows * length / _RATE

    def forward(self, rows: int, length: int) -> float:
        """Return the seconds of a captured forward pass."""
        return _FORWARD * self.layers + _FORWARD_SHARE * self._computing(rows, length)

    @property
    def capture(self) -> float:
        """Seconds to capture a step."""
        return _CAPTURE * self.layers

    @property
    def forward_capture(self) -> float:
        """Seconds to capture a forward pass."""
        return _FORWARD_SHARE * self.capture

    @property
    def eager_forward(self) -> float:
        """Seconds that an eager forward pass takes at least, to launch its kernels."""
        return _EAGER_FORWARD * self.layers


def cost_of(encoder: nn.Module) -> StepCost:
    layers = layer_list(encoder)[1]
    return StepCost(len(layers), sum(p.numel() for p in layers.parameters() if p.ndim == 2))
