"""Environment in which waiting threads of OpenMP sleep."""

from __future__ import annotations

from collections.abc import Mapping

_PASSIVE = {"OMP_WAIT_POLICY": "passive"}
_OTHERS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def waiting_asleep(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variable that has waiting threads sleep, unless the user has set how
    they wait. It is read when torch is imported.

    By default they spin. On a machine that does anything else, they take the cores from the very
    threads that they wait for.
    """
    return {} if any(name in environment for name in _OTHERS) else dict(_PASSIVE)
