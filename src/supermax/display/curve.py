"""A trial's reported values, as many as a screen can show."""

from __future__ import annotations

from collections.abc import Sequence


class Curve:
    """Values in the order in which they came; a long curve is thinned out evenly."""

    MOST = 256

    def __init__(self, points: Sequence[float] = (), stride: int = 1) -> None:
        self.points = list(points)
        self.stride = stride  # every how manieth value is kept
        self._skipped = 0

    def thinned(self, most: int) -> tuple[float, ...]:
        """At most so many of the points, evenly, the last one among them."""
        step = max(1, -(-len(self.points) // most))
        return tuple(self.points[::-step][::-1])

    def add(self, value: float) -> None:
        self._skipped += 1
        if self._skipped < self.stride and self.points:
            return
        self._skipped = 0
        self.points.append(value)
        if len(self.points) > self.MOST:
            self.points = self.points[::2]
            self.stride *= 2
