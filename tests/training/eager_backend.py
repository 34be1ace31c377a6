"""Capture backend without CUDA graphs: what is built on graphs can be tested without a GPU."""

from __future__ import annotations

import torch

from supermax.training.steps.graph_capture import Work


class EagerBackend:
    """Calls the function itself instead of a graph, with the same warm-ups."""

    def __init__(self) -> None:
        self._warmed_up: set[str] = set()

    def synchronize(self) -> None: ...

    def limit_run_ahead(self) -> None: ...

    def capture(self, run: Work, warm_up: Work, kind: str) -> Work:
        if kind not in self._warmed_up:
            rng_state = torch.get_rng_state()
            warm_up()
            torch.set_rng_state(rng_state)
            self._warmed_up.add(kind)
        return run
