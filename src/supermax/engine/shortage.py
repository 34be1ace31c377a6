"""When memory ran out: how much there was, how much was taken, how much was asked for.

Looked at before the failed attempt's memory is given back.
"""

from __future__ import annotations

import re
import resource
import sys
from dataclasses import dataclass
from typing import Any

from supermax.engine import kernel

_ASKED = re.compile(r"[Tt]ried to allocate ([0-9.]+) ?(bytes|KiB|MiB|GiB|TiB)\b")
_LONGEST = 10_000
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass(frozen=True)
class Shortage:
    """Bytes."""

    requested: int
    allocated: int
    """In use by tensors; without a GPU, by the process's data."""
    reserved: int
    """What the process had of the device, used or not."""
    limit: int | None
    """What it was allowed."""

    @property
    def fragmented(self) -> bool:
        """Enough was free within what the process had, and could not be used."""
        free = self.reserved - self.allocated
        return free >= self.requested and free > self.reserved / 10

    @property
    def needed(self) -> int:
        return self.allocated + self.requested


def shortage(error: BaseException) -> Shortage | None:
    """What there was, if the error is one of torch's about memory."""
    try:
        message = str(error)[:_LONGEST]
        asked = _ASKED.search(message)
        return None if asked is None else _looked(message, asked)
    except Exception:  # an exception that cannot be printed, or no memory to look with
        return None


def _looked(message: str, asked: re.Match[str]) -> Shortage | None:
    requested = int(float(asked[1].rstrip(".")) * _UNITS[asked[2]])
    torch = sys.modules.get("torch")
    if torch is not None and "CPU" not in message:
        return _of_device(torch, requested)
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    data = kernel.data_size() or 0
    return Shortage(requested, data, data, limit if limit != resource.RLIM_INFINITY else None)


def _of_device(torch: Any, requested: int) -> Shortage | None:
    try:
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        share = torch.cuda.get_per_process_memory_fraction()
        return Shortage(
            requested,
            int(torch.cuda.memory_allocated()),
            int(torch.cuda.memory_reserved()),
            int(share * total),
        )
    except Exception:  # a context that answers nothing any more
        return None
