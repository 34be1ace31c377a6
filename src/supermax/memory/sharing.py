"""How many trials at a time pay, where memory allows more."""

from __future__ import annotations

AUTO = "auto"
EACH_GPU = 8
"""Trials on a GPU from which on more of them did not train more in an hour: docs/memory.md."""


def cells_that_pay(workers: int | str, *, gpus: int, cores: int) -> int:
    """What `workers` comes to. On a GPU each cell keeps a core busy; without one, cells that
    compute with one core each train more than fewer of them with several."""
    if isinstance(workers, int):
        return workers
    return max(1, min(EACH_GPU * gpus, cores) if gpus else cores)
