"""Learning curve of a trial, downsampled to what a screen can show."""

from __future__ import annotations

from collections.abc import Sequence


class Curve:
    """Reported values in their order; a long curve is downsampled evenly."""

    MAX_POINTS = 256

    def __init__(self, points: Sequence[float] = (), stride: int = 1) -> None:
        self.points = list(points)
        self.stride = stride  # one of every `stride` values is kept
        self._skipped = 0

    def thinned(self, most: int) -> tuple[float, ...]:
        """Return at most `most` points, evenly spaced and ending with the last one."""
        step = max(1, -(-len(self.points) // most))
        return tuple(self.points[::-step][::-1])

    def add(self, value: float) -> None:
        """Append a value; at `MAX_POINTS`, drop every second point and double the stride."""
        self._skipped += 1
        if self._skipped < self.stride and self.points:
            return
        self._skipped = 0
        self.points.append(value)
        if len(self.points) > self.MAX_POINTS:
            self.points = self.points[::2]
            self.stride *= 2
