"""Interface between `hosts.HostProcesses` and the cluster that starts its agents."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from supermax.engine.processes.host_agent import Assignment


@dataclass(frozen=True)
class EndedAgent:
    host: int
    """Number of its host."""
    why: str
    out_of_memory: bool = False
    """True: it was killed because its machine ran out of memory."""


class Launcher(Protocol):
    """Starts agents on machines."""

    address: str
    """Address of this machine, as the others reach it."""
    hosts: int
    """Number of hosts to keep."""
    threads: int
    """Number of threads that a cell may use."""

    def start(self, assignment: Assignment, objective: bytes) -> None:
        """Have an agent started with `serve(assignment, objective)`, when there is room for it."""

    def ended(self) -> list[EndedAgent]:
        """Return the agents that have ended since the last call."""

    def waiting(self) -> str:
        """Return a notice that no host has started yet."""

    def avoid(self, machine: str) -> None:
        """Start no more agents on a machine."""

    def end(self, host: int) -> None:
        """End an agent that is lost, or that was not started yet."""

    def close(self, connected: Collection[int], timeout: float) -> None:
        """End all agents; first give the `connected` ones `timeout` seconds to end themselves."""
