"""Attention kernels: time of a replay, and cost of the first call with a new dropout, alone and
with other processes on the same GPU.

    attention() ──▶ here: replay, by sequence length
                └─▶ cells ──all at once──▶ first call with each new dropout, and memory it keeps
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
from speed_tasks import TASKS, Cells, Keep, Line, Task, error_text, synchronize
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from supermax.training.models.sources import find

KERNELS = {
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
}
LENGTHS = (32, 64, 128, 256, 512)
FIRST_CALL_LENGTH = 64
TOGETHER = (1, 8)
LAYERS = 12
NEW = 8
"""New dropouts per process. Random, since kernels are cached on disk too."""
_REPLAYS = 50


def attention(name: str, keep: Keep) -> None:
    line = {"part": "attention", "run": f"{time.time():.0f}", "task": name}
    for contender in KERNELS:
        try:
            found = {"replayed_ms": {w: _replayed(TASKS[name], contender, w) for w in LENGTHS}}
            for many in TOGETHER:
                found[f"of {many}"] = _all_at_once(name, contender, many)
        except Exception as error:
            found = {"failed": error_text(error)}
        keep(line | {"contender": contender} | found)


def _forward_backward(what: Task, contender: str, length: int) -> Callable[[float], None]:
    """Return a function of the dropout that runs forward and backward, with a padding mask."""
    config: Any = find(what.encoder).config
    heads = config.num_attention_heads
    size = (what.batch, heads, length, config.hidden_size // heads)
    query, key, value = (
        torch.randn(size, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    )
    mask = torch.ones(what.batch, 1, 1, length, dtype=torch.bool, device="cuda")
    mask[::2, ..., length // 2 :] = False
    mask = mask.expand(-1, 1, length, -1)

    def run(dropout: float) -> None:
        with sdpa_kernel(KERNELS[contender]):
            found = scaled_dot_product_attention(query, key, value, mask, dropout_p=dropout)
        found.sum().backward()  # type: ignore[no-untyped-call]

    return run


def _replayed(what: Task, contender: str, length: int) -> float:
    """Return milliseconds for the layers of an encoder, replayed."""
    run = _forward_backward(what, contender, length)
    run(0.1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAYERS):
            run(0.1)
    graph.replay()
    synchronize()
    started = time.perf_counter()
    for _ in range(_REPLAYS):
        graph.replay()
    synchronize()
    return 1000 * (time.perf_counter() - started) / _REPLAYS


# First calls with a dropout.


def _all_at_once(name: str, contender: str, many: int) -> Line:
    """Return medians over processes that run at the same time."""
    cells, context = Cells(many, mps=many > 1), multiprocessing.get_context("spawn")
    together = context.Barrier(many)
    with cells.shared(), context.Pool(many, _one_of, (together,)) as pool:
        found = pool.starmap(_first_calls, [(name, contender)] * many, chunksize=1)
    line = {key: statistics.median(one[key] for one in found) for key in found[0]}
    return line | {"device_bytes": line["device_bytes"] / many}  # each process sees the sum


_together: list[Barrier] = []


def _one_of(several: Barrier) -> None:
    """Give a new process the barrier at which it waits for the others."""
    _together.append(several)


def _first_calls(name: str, contender: str) -> Line:
    run, process = _forward_backward(TASKS[name], contender, FIRST_CALL_LENGTH), psutil.Process()
    run(0.5)
    rates = [random.uniform(0.05, 0.3) for _ in range(NEW)]
    took = []
    _together[0].wait(120)
    for number, rate in enumerate(rates):
        started = time.perf_counter()
        run(rate)
        synchronize()
        took.append(time.perf_counter() - started)
        if number == 0:
            host, device = process.memory_info().rss, _in_use()
    return {
        "new_ms": 1000 * statistics.median(took),
        "again_ms": 1000 * _second_calls(run, rates),
        "host_bytes": (process.memory_info().rss - host) / (NEW - 1),
        "device_bytes": (_in_use() - device) / (NEW - 1),
    }


def _second_calls(run: Callable[[float], None], rates: list[float]) -> float:
    started = time.perf_counter()
    for rate in rates:
        run(rate)
    synchronize()
    return (time.perf_counter() - started) / len(rates)


def _in_use() -> int:
    free, whole = torch.cuda.mem_get_info()
    return whole - free


if __name__ == "__main__":
    raise SystemExit("Run it as: python benchmarks/speed.py attention")
