"""Work that is recorded once and then run again as a whole, without asking Python for each part.

run ──record()──▶ replay

On a GPU that is a CUDA graph. Anywhere else the work itself is its recording, so that all that
is built on recordings can be tried without a GPU.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import torch

Work = Callable[[], None]
_AHEAD = 32
"""Updates that the host may be ahead of the device."""


class Recorder(Protocol):
    def record(self, run: Work, rehearse: Work, kind: str) -> Work:
        """What does `run` when it is called. The first of a kind is rehearsed before: the same
        operations, with no effect that lasts. Neither draws random numbers that anybody else
        would miss."""

    def settle(self) -> None:
        """Wait until all is done that was asked for."""

    def keep_up(self) -> None:
        """Wait until the device is only so far behind that it still has enough to do: who looks
        how far it is, or stops it, should not be minutes ahead."""


class Graphs:
    """CUDA graphs, which share the memory for what comes and goes: they never run together."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = _stream(self._device)
        self._rehearsed: set[str] = set()
        self._behind: deque[torch.cuda.Event] = deque()

    def settle(self) -> None:
        torch.cuda.synchronize(self._device)

    def keep_up(self) -> None:
        mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
        mark.record(torch.cuda.current_stream(self._device))
        self._behind.append(mark)
        if len(self._behind) > _AHEAD:
            self._behind.popleft().synchronize()

    def record(self, run: Work, rehearse: Work, kind: str) -> Work:
        """A rehearsal loads what is needed. It takes memory of its own, beside what recordings
        have, so others are only rehearsed where they must be."""
        if kind in self._rehearsed:
            try:
                return self._recorded(run)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:  # it needs what was not loaded yet
                torch.cuda.synchronize(self._device)
        self._rehearse(rehearse)
        self._rehearsed.add(kind)
        return self._recorded(run)

    def _rehearse(self, rehearse: Work) -> None:
        here = torch.cuda.current_stream(self._device)
        random = torch.cuda.get_rng_state(self._device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            rehearse()
        here.wait_stream(self._stream)
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()  # what the rehearsal took is the recording's now
        torch.cuda.set_rng_state(random, self._device)

    def _recorded(self, run: Work) -> Work:
        graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        cause: Exception | None = None
        try:
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                try:
                    run()
                except Exception as error:
                    cause = error
                    raise
        except Exception:
            self._put_right(here)
            if cause is not None:
                raise cause from None
            raise
        return graph.replay

    def _put_right(self, here: torch.cuda.Stream) -> None:
        """To end a recording that failed is an error of its own. It may leave the recording's
        stream the current one, its memory as if it still went on, and the random numbers too
        (pytorch issue 171263): for those, the next recording that ends puts an end to it."""
        torch.cuda.set_stream(here)
        with suppress(RuntimeError):  # of a broken device, the error that is raised next tells
            torch.cuda.synchronize(self._device)
            nothing = torch.zeros((), device=self._device)
            with torch.cuda.graph(
                torch.cuda.CUDAGraph(), stream=self._stream, capture_error_mode="thread_local"
            ):
                nothing.zero_()
        torch.cuda.set_stream(here)
        self._pool = torch.cuda.graph_pool_handle()


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for all recordings of a process: libraries keep room for each stream they have seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class Unrecorded:
    """The work itself, done anew each time; rehearsed as graphs are."""

    def __init__(self) -> None:
        self._rehearsed: set[str] = set()

    def settle(self) -> None: ...

    def keep_up(self) -> None: ...

    def record(self, run: Work, rehearse: Work, kind: str) -> Work:
        if kind not in self._rehearsed:
            random = torch.get_rng_state()
            rehearse()
            torch.set_rng_state(random)
            self._rehearsed.add(kind)
        return run
