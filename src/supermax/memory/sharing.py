"""How many trials at a time pay, where memory allows more, and how much of a GPU each may have."""

from __future__ import annotations

AUTO = "auto"
EACH_GPU = 8
"""The most that were tried, when each more still trained more in an hour: docs/memory.md."""
_ROOM = 12 << 30
"""Bytes that are reckoned for each trial, as one of a large encoder takes."""


def cells_that_pay(workers: int | str, *, gpus: int, cores: int) -> int:
    """What `workers` comes to. On a GPU each cell keeps a core busy; without one, each computes
    with a core of its own."""
    if isinstance(workers, int):
        return workers
    return max(1, min(EACH_GPU * gpus, cores) if gpus else cores)


def share_of_each(cells: int, memory: int) -> int:
    """Of a GPU's processors, in percent, for each of its cells where they share it: twice an equal
    part. With all of them a cell's large kernels keep the others waiting (docs/speed.md). Where
    memory lets only a few be there at a time, each has more."""
    together = max(1, min(cells, memory // _ROOM))
    return min(100, -(-200 // together))
