"""Attention by its kernel: what it takes when it is replayed, and the first time with a dropout
that was not seen before, alone and beside others that share the GPU.

    attention() ──▶ here: by width, replayed
                └─▶ cells ──all at once──▶ the first time with each new dropout, and what it keeps
"""

from __future__ import annotations

import multiprocessing
import random
import statistics
import time
from collections.abc import Callable
from threading import Barrier
from typing import Any

import psutil
import torch
from speed_tasks import TASKS, Cells, Keep, Line, Task, in_words, settled
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from supermax.training.sources import find

KERNELS = {
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
}
WIDTHS = (32, 64, 128, 256, 512)
SEEN_AT = 64
TOGETHER = (1, 8)
LAYERS = 12
NEW = 8
"""Dropouts that a process sees first. Drawn, since what is made for one is kept on disk too."""
_REPLAYS = 50


def attention(name: str, keep: Keep) -> None:
    line = {"part": "attention", "run": f"{time.time():.0f}", "task": name}
    for contender in KERNELS:
        try:
            found = {"replayed_ms": {w: _replayed(TASKS[name], contender, w) for w in WIDTHS}}
            for many in TOGETHER:
                found[f"of {many}"] = _all_at_once(name, contender, many)
        except Exception as error:
            found = {"failed": in_words(error)}
        keep(line | {"contender": contender} | found)


def _both_ways(what: Task, contender: str, width: int) -> Callable[[float], None]:
    """Forward and backward, with a mask of padding, given a dropout."""
    config: Any = find(what.encoder).config
    heads = config.num_attention_heads
    size = (what.batch, heads, width, config.hidden_size // heads)
    asked, known, held = (
        torch.randn(size, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    )
    mask = torch.ones(what.batch, 1, 1, width, dtype=torch.bool, device="cuda")
    mask[::2, ..., width // 2 :] = False
    mask = mask.expand(-1, 1, width, -1)

    def run(dropout: float) -> None:
        with sdpa_kernel(KERNELS[contender]):
            found = scaled_dot_product_attention(asked, known, held, mask, dropout_p=dropout)
        found.sum().backward()  # type: ignore[no-untyped-call]

    return run


def _replayed(what: Task, contender: str, width: int) -> float:
    """Milliseconds of an encoder's layers, with a sum of what comes out of each."""
    run = _both_ways(what, contender, width)
    run(0.1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAYERS):
            run(0.1)
    graph.replay()
    settled()
    started = time.perf_counter()
    for _ in range(_REPLAYS):
        graph.replay()
    settled()
    return 1000 * (time.perf_counter() - started) / _REPLAYS


# The first time with a dropout.


def _all_at_once(name: str, contender: str, many: int) -> Line:
    """The median of all of them."""
    cells, context = Cells(many, mps=many > 1), multiprocessing.get_context("spawn")
    together = context.Barrier(many)
    with cells.shared(), context.Pool(many, _one_of, (together,)) as pool:
        found = pool.starmap(_first_times, [(name, contender)] * many, chunksize=1)
    line = {key: statistics.median(one[key] for one in found) for key in found[0]}
    return line | {"device_bytes": line["device_bytes"] / many}  # each sees what all of them take


_together: list[Barrier] = []


def _one_of(several: Barrier) -> None:
    """A process begins, which will wait for the others."""
    _together.append(several)


def _first_times(name: str, contender: str) -> Line:
    run, process = _both_ways(TASKS[name], contender, SEEN_AT), psutil.Process()
    run(0.5)
    rates = [random.uniform(0.05, 0.3) for _ in range(NEW)]
    took = []
    _together[0].wait(120)
    for number, rate in enumerate(rates):
        started = time.perf_counter()
        run(rate)
        settled()
        took.append(time.perf_counter() - started)
        if number == 0:
            host, device = process.memory_info().rss, _in_use()
    return {
        "new_ms": 1000 * statistics.median(took),
        "again_ms": 1000 * _again(run, rates),
        "host_bytes": (process.memory_info().rss - host) / (NEW - 1),
        "device_bytes": (_in_use() - device) / (NEW - 1),
    }


def _again(run: Callable[[float], None], rates: list[float]) -> float:
    started = time.perf_counter()
    for rate in rates:
        run(rate)
    settled()
    return (time.perf_counter() - started) / len(rates)


def _in_use() -> int:
    free, whole = torch.cuda.mem_get_info()
    return whole - free


if __name__ == "__main__":
    raise SystemExit("This is a part of speed.py: python benchmarks/speed.py attention")
