"""How many trials at a time pay, where memory allows more."""

from __future__ import annotations

AUTO = "auto"
EACH_GPU = 8
"""The most that were tried, when each more still trained more in an hour: docs/memory.md."""


def cells_that_pay(workers: int | str, *, gpus: int, cores: int) -> int:
    """What `workers` comes to. On a GPU each cell keeps a core busy; without one, each computes
    with a core of its own."""
    if isinstance(workers, int):
        return workers
    return max(1, min(EACH_GPU * gpus, cores) if gpus else cores)
