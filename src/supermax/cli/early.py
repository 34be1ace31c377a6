"""A search's fork server, started before this process loads torch."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

from supermax.engine import descriptors, kernel, standby
from supermax.memory.budgets import ON_CPU
from supermax.memory.sharing import cells_that_pay
from supermax.settings import Settings
from supermax.space.presets import encoders_in
from supermax.spaces import space_of


def started_early(settings: Settings) -> AbstractContextManager[None]:
    """Start the process that cells are forked from, while this one still loads what a search
    needs: both import the same. On one core that gains nothing."""
    visible = bool(kernel.gpus()) and os.environ.get("CUDA_VISIBLE_DEVICES") != ""
    cores, gpus = kernel.cores(), max(1, len(settings.gpus)) if visible else 0
    if cores == 1:
        return nullcontext()
    workers = cells_that_pay(settings.workers, gpus=gpus, cores=cores)
    descriptors.allow(descriptors.needed_by(workers))  # which the process inherits
    expected = {**({} if gpus else ON_CPU), **os.environ}
    expected |= standby.thread_limits(workers, os.environ)
    return standby.ahead("supermax.agents.objective", encoders_in(space_of(settings)), expected)
