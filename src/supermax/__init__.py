"""Supermax: hyperparameter search that runs for days without a person.

Layers, each importing only what stands below it:

    cli ─▶ tuning ─▶ agents ─▶ training ─▶ errors, naming, words
      │      └─────▶ run ───▶ display ─▶ engine ─▶ errors, naming, words
      └────────────▶ study ─▶ space, engine ─────▶ errors, naming, words

The engine never imports torch. Everything is imported when it is asked for: a keeper and its cells
load what a trial needs, and nothing of what a coordinator does.
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

from supermax.errors import (
    EnvironmentFault,
    Infeasible,
    RunHalted,
    SupermaxError,
    UserError,
)

if TYPE_CHECKING:
    from supermax import space
    from supermax.api import Study
    from supermax.engine.remote_trial import RemoteTrial as Trial
    from supermax.engine.remote_trial import TrialInterrupted
    from supermax.engine.repeat import retry
    from supermax.engine.summary import Summary
    from supermax.run import optimize
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
    "Space": "supermax.space:Space",
    "Study": "supermax.api:Study",
    "Summary": "supermax.engine.summary:Summary",
    "Trial": "supermax.engine.remote_trial:RemoteTrial",
    "TrialInterrupted": "supermax.engine.remote_trial:TrialInterrupted",
    "open_study": "supermax.study:open_study",
    "optimize": "supermax.run:optimize",
    "retry": "supermax.engine.repeat:retry",
}


def __getattr__(name: str) -> Any:
    if name == "space":
        return importlib.import_module("supermax.space")
    if name in _LATER:
        module, attribute = _LATER[name].split(":")
        found = globals()[name] = getattr(importlib.import_module(module), attribute)
        return found
    raise AttributeError(f"module 'supermax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
