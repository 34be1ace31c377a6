"""Supermax: hyperparameter search that runs for days without a person.

Layers, each importing only what stands below it:

    run ─▶ display, engine ─▶ errors

`import supermax` and the engine never import torch.
"""

from __future__ import annotations

import sys

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
    RunHalted,
    SupermaxError,
    UserError,
)
from supermax.run import optimize

__version__ = "0.1.0"
__all__ = [
    "EnvironmentFault",
    "RunHalted",
    "Summary",
    "SupermaxError",
    "Trial",
    "TrialInterrupted",
    "UserError",
    "optimize",
    "retry",
]
