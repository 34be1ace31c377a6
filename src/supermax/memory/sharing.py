"""Number of parallel trials that increases throughput, and the share of a GPU for each."""

from __future__ import annotations

import math
from typing import Final, Literal

AUTO: Final = "auto"
CELLS_PER_GPU = 8
"""Largest number of parallel trials on a GPU that was measured; throughput still grew with each:
docs/memory.md."""
_TRIAL_MEMORY = 12 << 30
"""Bytes assumed for a trial, as those of a large encoder need."""
_SHARES = (25, 50, 100)
"""Shares of a GPU's multiprocessors for a cell, in percent. With most others, matrix products of
cuBLAS are wrong on an H200 (docs/design.md)."""


def resolve_workers(workers: int | Literal["auto"], *, gpus: int, cores: int) -> int:
    """Return `workers`, or the number of parallel trials for "auto". Each cell keeps a core busy,
    with or without a GPU."""
    if workers != AUTO:
        return workers
    return max(1, min(CELLS_PER_GPU * gpus, cores) if gpus else cores)


def share_of_each(cells: int, memory: int) -> int:
    """Return the share of a GPU's multiprocessors for each cell under MPS, in percent: about twice
    an equal share. With 100 %, large kernels of one cell block the others (docs/speed.md). Only as
    many cells are counted as fit into `memory` bytes at once."""
    concurrent = max(1, min(cells, memory // _TRIAL_MEMORY))
    return min(_SHARES, key=lambda share: abs(math.log(share * concurrent / 200)))
