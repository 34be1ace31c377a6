"""What recorded steps take, about: to choose how many widths to record, and whether to record or
compile at all. Fitted to one H200 (docs/speed.md); only which choice is quicker depends on it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from supermax.training.encoders import layer_list

_STEP = 2.7e-4  # seconds a layer, however little there is to compute
_RATE = 3.3e14  # operations a second
_RECORDING = 5e-3  # seconds a layer
_LOOK = 1.4e-4  # seconds a layer, of a pass forward
_LOOKING = 1 / 3  # of the operations of a step: there is no way back
_ASKING = 1.2e-3  # seconds a layer, for a pass forward that is not recorded


@dataclass(frozen=True)
class Cost:
    """Of an encoder."""

    layers: int
    numbers: int
    """Of its layers' matrices."""

    def step(self, rows: int, width: int) -> float:
        """Seconds of a recorded step."""
        return _STEP * self.layers + self._computing(rows, width)

    def _computing(self, rows: int, width: int) -> float:
        return 6 * self.numbers * rows * width / _RATE

    def look(self, rows: int, width: int) -> float:
        """Seconds of a recorded pass forward."""
        return _LOOK * self.layers + _LOOKING * self._computing(rows, width)

    @property
    def recording(self) -> float:
        """Seconds that it takes to record a step."""
        return _RECORDING * self.layers

    @property
    def recording_looks(self) -> float:
        return _LOOKING * self.recording

    @property
    def asking(self) -> float:
        """Seconds that a pass forward takes at least where it is not recorded."""
        return _ASKING * self.layers


def cost_of(encoder: nn.Module) -> Cost:
    layers = layer_list(encoder)[1]
    return Cost(len(layers), sum(p.numel() for p in layers.parameters() if p.ndim == 2))
