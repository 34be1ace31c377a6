"""Supermax: fault-tolerant hyperparameter search that runs unattended for days.

Packages, each importing only those to its right:

    ui.cli ─▶ search ─▶ tasks ─▶ training, memory, space ─▶ errors, _util
        │        └────▶ run ──▶ ui.display ─▶ engine ─────▶ errors, _util
        └─────────────▶ results ─▶ studies ─▶ engine, space

The engine never imports torch. The names of this package are imported on first use, so that the
fork server and its cells load what a trial needs, but not the coordinator.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError(
        "Supermax runs on Linux and macOS. On Windows, use it inside WSL: it needs process groups "
        "and signals that Windows does not have."
    )

from supermax._util import moved
from supermax.errors import (
    EnvironmentFault,
    Infeasible,
    RunHalted,
    SupermaxError,
    UserError,
)

moved.install()

if TYPE_CHECKING:
    from supermax import space
    from supermax.engine.processes.ray_cluster import RayExecutor
    from supermax.engine.processes.remote_trial import RemoteTrial as Trial
    from supermax.engine.processes.remote_trial import TrialInterrupted
    from supermax.engine.promotion.ladder import Promotion
    from supermax.engine.run.no_gain import WhenNoGain
    from supermax.engine.run.requeue import retry
    from supermax.engine.summary import Summary
    from supermax.run import optimize
    from supermax.space import Space
    from supermax.space.prior_sampler import PriorSampler
    from supermax.studies import open_study
    from supermax.study import Study
    from supermax.trainer.search import hyperparameter_search

__version__ = "0.1.0"
__all__ = [
    "EnvironmentFault",
    "Infeasible",
    "PriorSampler",
    "Promotion",
    "RayExecutor",
    "RunHalted",
    "Space",
    "Study",
    "Summary",
    "SupermaxError",
    "Trial",
    "TrialInterrupted",
    "UserError",
    "WhenNoGain",
    "hyperparameter_search",
    "open_study",
    "optimize",
    "retry",
    "space",
]
_LAZY_IMPORTS = {
    "PriorSampler": "supermax.space.prior_sampler:PriorSampler",
    "Promotion": "supermax.engine.promotion.ladder:Promotion",
    "RayExecutor": "supermax.engine.processes.ray_cluster:RayExecutor",
    "Space": "supermax.space:Space",
    "Study": "supermax.study:Study",
    "Summary": "supermax.engine.summary:Summary",
    "Trial": "supermax.engine.processes.remote_trial:RemoteTrial",
    "TrialInterrupted": "supermax.engine.processes.remote_trial:TrialInterrupted",
    "WhenNoGain": "supermax.engine.run.no_gain:WhenNoGain",
    "hyperparameter_search": "supermax.trainer.search:hyperparameter_search",
    "open_study": "supermax.studies:open_study",
    "optimize": "supermax.run:optimize",
    "retry": "supermax.engine.run.requeue:retry",
}


def __getattr__(name: str) -> Any:
    if name == "space":
        return importlib.import_module("supermax.space")
    if name in _LAZY_IMPORTS:
        module, attribute = _LAZY_IMPORTS[name].split(":")
        found = globals()[name] = getattr(importlib.import_module(module), attribute)
        return found
    raise AttributeError(f"module 'supermax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
