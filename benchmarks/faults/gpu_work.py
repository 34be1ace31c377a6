"""Work of a trial on a GPU, and the faults that need one."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass

import torch

NEED = 4 << 30
"""Bytes that a trial takes."""
LEAK = 0.1
"""Share of the GPU's memory that a leaking trial never frees."""
_kept: list[torch.Tensor] = []


def step(seconds: float) -> None:
    """Multiply matrices in new memory for a while."""
    end = time.monotonic() + seconds
    memory = torch.empty(NEED, dtype=torch.uint8, device="cuda")
    matrix = memory[: 1 << 24].view(torch.bfloat16).view(2048, 4096).zero_()
    while time.monotonic() < end:
        matrix @ matrix.T
        torch.cuda.synchronize()


def provoke(fault: str) -> None:
    if fault == "GPU out of memory":
        blocks = []
        while True:
            blocks.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
    elif fault == "GPU memory leak":
        _kept.append(_empty(round(LEAK * torch.cuda.mem_get_info()[1])))
    elif fault == "GPU fragmentation":
        _fragment(round(LEAK * torch.cuda.mem_get_info()[1]))
    elif fault == "device-side assert":
        torch.zeros(1, device="cuda")[torch.tensor([5], device="cuda")].item()
    elif fault == "illegal access":
        source = "template <typename T> T wild(T x) { return x + *reinterpret_cast<T*>(8); }"
        torch.cuda.jiterator._create_jit_fn(source)(torch.zeros(8, device="cuda"))
        torch.cuda.synchronize()


def _fragment(size: int) -> None:
    """Keep a part of each block of memory, so that the allocator can return none.

    Tensors of up to 1 MiB come from blocks of their own, and would split none of these. Each part
    is taken while its block is the only free one: its rest is in use until the end."""
    block, part = 64 << 20, 2 << 20
    rests = []
    for _ in range(size // block):
        whole = _empty(block)
        del whole
        _kept.append(_empty(part))
        rests.append(_empty(block - part))


def _empty(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


@dataclass
class OccupiedGpu:
    """Another process that holds nearly all of the GPU's memory."""

    _process: subprocess.Popen[str] | None = None

    def begin(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError("The process that takes the GPU's memory has died.")

    def end(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()


def _occupy() -> None:
    """Take what is free, and what becomes free, until this process is killed."""
    while True:
        free = torch.cuda.mem_get_info()[0]
        try:
            if free > 1 << 30:
                _kept.append(_empty(free - (1 << 29)))
        except torch.OutOfMemoryError:
            continue
        print(len(_kept), flush=True)
        time.sleep(0.1)


if __name__ == "__main__":
    _occupy()
