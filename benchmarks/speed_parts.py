"""Profile a captured step by kind of kernel, against the best rates of this GPU."""

from __future__ import annotations

import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from speed_tasks import (
    TASKS,
    Keep,
    Line,
    NotAvailable,
    Task,
    check_compiled,
    config_of,
    corpus_of,
    error_text,
    execution,
)
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from supermax.training.loop import train_without_validation
from supermax.training.models.assembly import Inputs
from supermax.training.prepare import Prepared, prepare
from supermax.training.steps.batches import Batch, Indices, collate, order
from supermax.training.steps.cuda_graphs import CudaGraphExecutor
from supermax.training.steps.execution import Execution
from supermax.training.steps.executors import EpochUpdates
from supermax.training.steps.step import loss_denominators

MATRIX, ATTENTION, OPTIMIZER = "matrix products", "attention", "optimizer"
CLIPPING, COPIES, REDUCTIONS = "clipping", "casts and copies", "reductions (bias gradients)"
ELEMENTS, EMBEDDING, REST = "norms, activations, dropout", "embedding", "rest"
PARTS = (
    MATRIX, ATTENTION, OPTIMIZER, CLIPPING, COPIES, REDUCTIONS, ELEMENTS, EMBEDDING, REST,
)  # fmt: skip
_NAMES = [
    (COPIES, r"copyfunctor"),
    (OPTIMIZER, r"adam|fusedoptimizer"),
    (CLIPPING, r"multi_tensor|foreach|lpnorm|normtwoops|clip"),
    (ATTENTION, r"fmha|flash|attention|sdpa|softmax"),
    (MATRIX, r"gemm|gemv|cutlass|nvjet|xmma|splitk|cublas|triton_tem|_bmm|_addmm"),
    (EMBEDDING, r"embedding|index|gather|scatter|segment|radix|sort|unique"),
    (ELEMENTS, r"layer_?norm|gammabeta|gradinput|gelu|dropout|tanh|erf|philox"),
    (REDUCTIONS, r"reduce|triton_(red|per)_|cunn_.*sum"),
    (COPIES, r"copy|memcpy|memset|fill|catarray|transpose"),
    (ELEMENTS, r"elementwise|triton_|_kernel_cuda"),
]
"""Kinds by pattern: the first that matches the lower-case name of a kernel."""
STEPS = 20
IDLE = "idle between kernels"
_SIDE = 8192
_COPIED = 1 << 31  # bytes
_ROUNDS = 5
_TIMES = 20


def parts(name: str, keep: Keep) -> None:
    """Profile captured steps, and compiled ones if they are available."""
    run = f"{time.time():.0f}"
    best = {"matrix_rate": matrix_rate(), "bandwidth": bandwidth()}
    for contender, compiled in (("captured", False), ("compiled", True)):
        line = {"part": "parts", "run": run, "task": name, "contender": contender}
        try:
            how = execution(captured=True, compiled=compiled)
            with tempfile.TemporaryDirectory() as folder:
                found = _profiled(TASKS[name], Path(folder), how, best)
            keep(line | best | found)
        except Exception as error:
            keep(line | {"failed": error_text(error)})


# Peak rates of the GPU.


def matrix_rate() -> float:
    """Return operations per second of a large matrix product in bf16."""
    one, other = (torch.randn(_SIDE, _SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * _SIDE**3 / _best_seconds(lambda: one @ other)


def bandwidth() -> float:
    """Return bytes per second that a large copy reads and writes."""
    source = torch.empty(_COPIED, device="cuda", dtype=torch.uint8)
    there = torch.empty_like(source)
    return 2 * _COPIED / _best_seconds(lambda: there.copy_(source))


def _best_seconds(work: Callable[[], object]) -> float:
    """Return the seconds of one call, in the best of several rounds."""
    work()
    rounds = []
    for _ in range(_ROUNDS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(_TIMES):
            work()
        torch.cuda.synchronize()
        rounds.append((time.perf_counter() - started) / _TIMES)
    return min(rounds)


# Profile of a step.


def _profiled(what: Task, folder: Path, how: Execution, best: dict[str, float]) -> Line:
    corpus = corpus_of(what)
    prepared = prepare(config_of(what), corpus, corpus, cache=folder, execution=how)
    train_without_validation(prepared, 1)
    if prepared.executor.why_eager is not None:
        raise NotAvailable(prepared.executor.how)
    check_compiled(prepared)
    batches = order(prepared.train.lengths, what.batch, prepared.seed, 0)
    steps, epoch = min(STEPS, len(batches)), EpochUpdates(batches, [1.0] * len(batches))
    eager = prepare(
        config_of(what), corpus, corpus, cache=folder, execution=execution(captured=False)
    )
    seconds = statistics.median(_steps(prepared, epoch, steps) for _ in range(_ROUNDS))
    kernels = _kernels(prepared, epoch, steps)
    done, needed = _operations(prepared, eager, epoch, steps)
    floors = _floors(prepared, done, best)
    idle = max(0.0, seconds - busy((start, end) for _, start, end in kernels) / steps)
    rows = [{"part": part, "ms": 1000 * s} for part, s in _by_part(kernels, steps).items()]
    return {
        "step_ms": 1000 * seconds,
        "rows": [row | {"floor_ms": floors.get(str(row["part"]))} for row in rows]
        + [{"part": IDLE, "ms": 1000 * idle, "floor_ms": 0.0}],
        "kernels": len(kernels) / steps,
        "operations_done": done.all,
        "operations_useful": needed.all,
        "share_done": done.all / seconds / best["matrix_rate"],
        "share_useful": needed.all / seconds / best["matrix_rate"],
    }


def _steps(prepared: Prepared, epoch: EpochUpdates, steps: int) -> float:
    """Return the mean seconds of the first steps of an epoch."""
    prepared.model.train()
    prepared.executor.begin(epoch, 0)
    torch.cuda.synchronize()
    started = time.perf_counter()
    for update in range(steps):
        prepared.executor.take(update)
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / steps


def _kernels(
    prepared: Prepared, epoch: EpochUpdates, steps: int
) -> list[tuple[str, float, float]]:
    """Return name, start and end of each kernel, in seconds."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        _steps(prepared, epoch, steps)
    return [
        (event.name, event.time_range.start / 1e6, event.time_range.end / 1e6)
        for event in seen.events()
        if event.device_type.name == "CUDA"
    ]


def _by_part(kernels: list[tuple[str, float, float]], steps: int) -> dict[str, float]:
    """Return seconds per step by kind of kernel."""
    found = dict.fromkeys(PARTS, 0.0)
    for name, start, end in kernels:
        found[part_of(name)] += (end - start) / steps
    return found


def _operations(
    prepared: Prepared, eager: Prepared, epoch: EpochUpdates, steps: int
) -> tuple[Operations, Operations]:
    """Return the operations of a step: with padding as captured, and of the tokens alone."""
    all_done = all_needed = Operations(0, 0)
    by_shape: dict[tuple[int, int], Operations] = {}
    for update, batch in enumerate(epoch.batches[:steps]):
        lengths = prepared.train.lengths[batch]
        rows, length = shape = _shape(prepared, update, len(batch), int(lengths.max()))
        if shape not in by_shape:
            by_shape[shape] = counted(eager, batch[:rows], rows, length)
        all_done += by_shape[shape]
        all_needed += useful(by_shape[shape], list(lengths), rows, length)
    return all_done.over(steps), all_needed.over(steps)


def _shape(prepared: Prepared, update: int, size: int, longest: int) -> tuple[int, int]:
    """Return rows and padded length of the captured step; of the padded batch if it is eager."""
    if not isinstance(prepared.executor, CudaGraphExecutor):
        return size, longest
    executor = prepared.executor
    found, row_length = next(iter(executor._shapes_of(update)))[-1], executor._packed[-1]
    return (size, found) if row_length is None else (found, row_length)


def _floors(prepared: Prepared, done: Operations, best: dict[str, float]) -> dict[str, float]:
    """Return lower bounds in milliseconds: bytes / bandwidth, or operations / matrix rate."""
    trained = [p for p in prepared.model.parameters() if p.requires_grad]
    numbers = sum(p.numel() for p in trained)
    tables = sum(
        m.weight.numel() for m in prepared.model.modules() if isinstance(m, torch.nn.Embedding)
    )
    in_products = sum(p.numel() for p in trained if p.ndim == 2) - tables
    moved = {
        # Reads weight, gradient and both moments; writes all but the gradient. The gradient of a
        # matrix is bf16, and so is the copy written beside the weight: as many bytes.
        OPTIMIZER: 28 * numbers,
        CLIPPING: 4 * numbers - 2 * in_products,  # reads gradients for their norm
    }
    floors = {part: 1000 * size / best["bandwidth"] for part, size in moved.items()}
    floors[MATRIX] = 1000 * done.products / best["matrix_rate"]
    floors[ATTENTION] = 1000 * done.attention / best["matrix_rate"]
    return floors


# Kinds of kernels, and operations of a step.


def part_of(kernel: str) -> str:
    name = kernel.lower()
    return next((part for part, found in _NAMES if re.search(found, name)), REST)


def busy(spans: Iterable[tuple[float, float]]) -> float:
    """Return the time during which at least one of the spans is active."""
    total, until = 0.0, -np.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return float(total)


@dataclass(frozen=True)
class Operations:
    """Floating point operations of one step."""

    products: float
    attention: float

    @property
    def all(self) -> float:
        return self.products + self.attention

    def __add__(self, other: Operations) -> Operations:
        return Operations(self.products + other.products, self.attention + other.attention)

    def over(self, steps: int) -> Operations:
        return Operations(self.products / steps, self.attention / steps)


def counted(eager: Prepared, indices: Indices, rows: int, length: int) -> Operations:
    """Count the operations of one eager step on `rows` rows of the padded length."""
    data = eager.train
    batch = resized(collate(data.views, eager.pads, data.rows(indices)), rows, length)
    denominators = loss_denominators(*data.targets(indices), eager.step.weights)
    moved = batch.to(eager.execution.device)
    eager.model.train()
    with FlopCounterMode(display=False) as counter:
        eager.step.micro(moved, denominators)
    eager.step.optimizer.zero_grad(set_to_none=True)
    by_name = {str(op): n for op, n in counter.get_flop_counts()["Global"].items()}
    attention = sum(n for op, n in by_name.items() if "attention" in op or "bmm" in op)
    return Operations(sum(by_name.values()) - attention, attention)


def resized(batch: Batch, size: int, length: int) -> Batch:
    """Return a batch of the shape of a captured step; its contents do not matter."""

    def padded(part: torch.Tensor) -> torch.Tensor:
        rows = part[torch.arange(size) % len(part)]
        return torch.nn.functional.pad(rows, (0, length - part.shape[1]), value=0)

    inputs = tuple(
        Inputs(padded(one.ids), padded(one.mask), padded(one.types)) for one in batch.inputs
    )
    places = torch.arange(size) % len(batch.labels)
    return Batch(inputs, batch.labels[places], batch.starts[places], batch.ends[places])


def useful(done: Operations, lengths: Sequence[int], size: int, length: int) -> Operations:
    """Return operations without padding: products scale with tokens, attention with squares."""
    tokens = np.asarray(lengths, dtype=np.float64)
    return Operations(
        done.products * float(tokens.sum()) / (size * length),
        done.attention * float((tokens**2).sum()) / (size * length**2),
    )
