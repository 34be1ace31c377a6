"""Environment in which waiting threads of OpenMP spin for microseconds only, then sleep."""

from __future__ import annotations

from collections.abc import Mapping

# GNU's runtime, in torch for Linux, reads both, and the count wins: 1,000 rounds, a few
# microseconds, bridge the gap between two operations. Other runtimes read the policy alone.
_BRIEF = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000"}
_OTHERS = (*_BRIEF, "KMP_BLOCKTIME")


def brief_spinning(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that have waiting threads sleep soon, unless the user has
    set how they wait. They are read when torch is imported.

    By default threads spin for up to a second. On a machine that does anything else, they take
    the cores from the very threads that they wait for.
    """
    return {} if any(name in environment for name in _OTHERS) else dict(_BRIEF)
