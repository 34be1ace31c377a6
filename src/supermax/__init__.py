"""Supermax: hyperparameter search that runs for days without a person.

Layers, each importing only what stands below it:

    cli ─▶ tuning ─▶ agents ─▶ training ─▶ errors, naming, words
      │      └─────▶ run ───▶ display ─▶ engine ─▶ errors, naming, words
      └────────────▶ study ─▶ space, engine ─────▶ errors, naming, words

`import supermax` and the engine never import torch; the space is imported when it is asked for.
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

from supermax.engine.remote_trial import RemoteTrial as Trial
from supermax.engine.remote_trial import TrialInterrupted
from supermax.engine.repeat import retry
from supermax.engine.summary import Summary
from supermax.errors import (
    EnvironmentFault,
    Infeasible,
    RunHalted,
    SupermaxError,
    UserError,
)
from supermax.run import optimize

if TYPE_CHECKING:
    from supermax import space
    from supermax.api import Study
    from supermax.space import Space
    from supermax.study import open_study

__version__ = "0.1.0"
__all__ = [
    "EnvironmentFault",
    "Infeasible",
    "RunHalted",
    "Space",
    "Study",
    "Summary",
    "SupermaxError",
    "Trial",
    "TrialInterrupted",
    "UserError",
    "open_study",
    "optimize",
    "retry",
    "space",
]
_LATER = {
    "Space": "supermax.space",
    "Study": "supermax.api",
    "open_study": "supermax.study",
}


def __getattr__(name: str) -> Any:
    if name == "space":
        return importlib.import_module("supermax.space")
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module 'supermax' has no attribute {name!r}")
