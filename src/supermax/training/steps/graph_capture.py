"""CUDA graph capture: run a function once, then replay its kernels without Python.

run ──capture()──▶ replay

A replay launches the captured kernels with the captured addresses. A function can therefore be
captured only if its shapes are fixed, it does not synchronise with the CPU, and everything it
reads or writes stays at the same address for as long as the graph is used.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import torch

Work = Callable[[], None]
_MAX_AHEAD = 32
"""Updates that the CPU may have enqueued before it waits for the GPU."""


class CaptureBackend(Protocol):
    """Captures functions for replay: `CudaGraphBackend`, or a substitute in tests on a CPU."""

    def capture(self, run: Work, warm_up: Work, kind: str) -> Work:
        """Return a function that replays `run`, which is not run by this call.

        Before the first capture of a `kind`, `warm_up` runs: the same operations without lasting
        effects. Neither changes the state of the random number generator.
        """

    def synchronize(self) -> None:
        """Wait until the device has finished all enqueued work."""

    def limit_run_ahead(self) -> None:
        """Call before each update: wait while the device is too many updates behind.

        Replays are asynchronous, and an epoch without synchronisation could be enqueued at once:
        progress would be reported, and a pruned trial stopped, minutes too early or too late.
        """


class CudaGraphBackend:
    """Captures CUDA graphs that share one memory pool.

    Intermediate tensors of a graph are free when its capture ends, and the next capture may use
    their addresses again. That is valid because replays run one after the other on one stream, and
    nothing that a later replay needs is an intermediate tensor of another graph: weights,
    optimizer state, accumulated gradients and tables are allocated outside of captures. Outputs
    that are still referenced keep their memory. So the pool is about as large as the largest graph
    needs, instead of the sum over all shapes.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = _stream(self._device)
        self._warmed_up: set[str] = set()
        self._enqueued: deque[torch.cuda.Event] = deque()
        """One event for each update that may not be finished, oldest first."""

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)

    def limit_run_ahead(self) -> None:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        self._enqueued.append(event)
        # Waits for the oldest only: the others stay enqueued, and the GPU does not run idle.
        if len(self._enqueued) > _MAX_AHEAD:
            self._enqueued.popleft().synchronize()

    def capture(self, run: Work, warm_up: Work, kind: str) -> Work:
        """Capture, with a warm-up for the first graph of a kind and where capture fails without.

        The first run of an operation may load a module, create a cuBLAS handle or tune a kernel,
        none of which is allowed during capture. Later graphs of a kind use the same kernels as a
        rule. They are not warmed up, because a warm-up needs the memory of a whole step in
        addition to the pool, which it cannot use.
        """
        if kind in self._warmed_up:
            try:
                return self._captured(run)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:  # probably an operation that is new for this shape
                torch.cuda.synchronize(self._device)
        self._warm_up(warm_up)
        self._warmed_up.add(kind)
        return self._captured(run)

    def _warm_up(self, warm_up: Work) -> None:
        """Run `warm_up` on the stream of the captures, since some resources belong to a stream.

        Its dropout masks advance the generator, so its state is restored: training then draws the
        same numbers with any number of warm-ups. Capture itself does not advance it. A replay
        reads seed and offset from device memory, where torch writes them before each launch, and
        advances the generator by what the graph draws: every replay has new dropout masks.
        """
        current = torch.cuda.current_stream(self._device)
        rng_state = torch.cuda.get_rng_state(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            warm_up()
        current.wait_stream(self._stream)
        torch.cuda.synchronize(self._device)
        # The pool of the captures cannot use memory that is cached for other allocations.
        torch.cuda.empty_cache()
        torch.cuda.set_rng_state(rng_state, self._device)

    def _captured(self, run: Work) -> Work:
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        cause: Exception | None = None
        try:
            # thread_local: calls of other threads that capture does not allow do not end it.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                try:
                    run()
                except Exception as error:
                    cause = error
                    raise
        except Exception:
            self._recover(current)
            if cause is not None:  # the error that ended the capture, not the one of ending it
                raise cause from None
            raise
        return graph.replay

    def _recover(self, current: torch.cuda.Stream) -> None:
        """Make the process usable after a failed capture.

        Ending an invalidated capture raises an error itself. It can leave the capture stream
        current, and the allocator and the random number generator in capture mode (pytorch issue
        171263). A capture that ends normally resets the latter, so a trivial one is made here.
        Later captures use a new pool: the state of the old one is not known.
        """
        torch.cuda.set_stream(current)
        with suppress(RuntimeError):  # on a broken device the next call reports the error
            torch.cuda.synchronize(self._device)
            scalar = torch.zeros((), device=self._device)
            with torch.cuda.graph(
                torch.cuda.CUDAGraph(), stream=self._stream, capture_error_mode="thread_local"
            ):
                scalar.zero_()
        torch.cuda.set_stream(current)
        self._pool = torch.cuda.graph_pool_handle()


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return the one stream for all captures of a process: cuBLAS keeps a workspace for each
    stream that it has seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
