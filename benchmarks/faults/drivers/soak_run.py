"""`supermax`, with faults in the trials of its searches."""

from __future__ import annotations

import sys

from soak_objective import FaultyObjective

from supermax.__main__ import main
from supermax.search import search

search.AgentObjective = FaultyObjective  # type: ignore[misc]
sys.exit(main())
