"""Memory state at an out-of-memory error: requested, allocated, reserved and permitted bytes.

Read it before the memory of the failed attempt is freed.
"""

from __future__ import annotations

import re
import resource
import sys
from dataclasses import dataclass
from types import ModuleType

from supermax._util import system

_REQUESTED = re.compile(r"[Tt]ried to allocate ([0-9.]+) ?(bytes|KiB|MiB|GiB|TiB)\b")
_MAX_MESSAGE = 10_000  # characters
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass(frozen=True)
class OomDetails:
    """Memory in bytes when an allocation failed."""

    requested: int
    allocated: int
    """Bytes in use by tensors; without a GPU, size of the process's data segment."""
    reserved: int
    """Bytes that the caching allocator held, used or not."""
    limit: int | None
    """Bytes that the process was permitted; None: no limit."""

    @property
    def fragmented(self) -> bool:
        """True if the allocator held enough free memory, but in pieces too small to use."""
        free = self.reserved - self.allocated
        return free >= self.requested and free > self.reserved / 10

    @property
    def needed(self) -> int:
        """Bytes that would have been allocated after the request."""
        return self.allocated + self.requested


def oom_details(error: BaseException) -> OomDetails | None:
    """Return the memory state if `error` is an out-of-memory error of torch; None otherwise."""
    try:
        message = str(error)[:_MAX_MESSAGE]
        match = _REQUESTED.search(message)
        return None if match is None else _memory_state(message, match)
    except Exception:  # an exception that cannot be printed, or no memory left for this
        return None


def _memory_state(message: str, match: re.Match[str]) -> OomDetails | None:
    requested = int(float(match[1].rstrip(".")) * _UNITS[match[2]])
    torch = sys.modules.get("torch")
    if torch is not None and "CPU" not in message:
        return _device_state(torch, requested)
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    data = system.data_size() or 0
    return OomDetails(requested, data, data, limit if limit != resource.RLIM_INFINITY else None)


def _device_state(torch: ModuleType, requested: int) -> OomDetails | None:
    try:
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        share = torch.cuda.get_per_process_memory_fraction()
        return OomDetails(
            requested,
            int(torch.cuda.memory_allocated()),
            int(torch.cuda.memory_reserved()),
            int(share * total),
        )
    except Exception:  # the CUDA context is unusable
        return None
