"""Fork server of a search, started before this process imports torch."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

from supermax._util import system
from supermax.engine.processes import descriptors, prestart
from supermax.memory.budgets import ON_CPU
from supermax.memory.devices import named_gpus
from supermax.memory.sharing import resolve_workers
from supermax.search.settings import Settings
from supermax.search.spaces import space_for
from supermax.space.presets import encoders_in


def started_early(settings: Settings) -> AbstractContextManager[None]:
    """Start the fork server while this process still imports torch and transformers, because
    both need the same imports. Does nothing on a single core, where they would compete, or if the
    trials run on a cluster."""
    visible = bool(system.count_gpus()) and os.environ.get("CUDA_VISIBLE_DEVICES") != ""
    cores, gpus = system.cores(), max(1, len(named_gpus(settings.gpus))) if visible else 0
    if cores == 1 or settings.executor != "local":
        return nullcontext()
    workers = resolve_workers(settings.workers, gpus=gpus, cores=cores)
    descriptors.allow(descriptors.needed_by(workers))  # inherited by the fork server
    expected = {**({} if gpus else ON_CPU), **os.environ}
    expected |= prestart.thread_limits(workers, os.environ)
    return prestart.ahead("supermax.tasks.objective", encoders_in(space_for(settings)), expected)
