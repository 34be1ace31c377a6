"""Other executors for the tests of the engine: SUPERMAX_TEST_EXECUTOR=hosts or =ray.

hosts: agents that are processes of this machine. ray: actors of a cluster with three nodes.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

import pytest

import supermax.run
from supermax import RayExecutor
from supermax.engine.processes.host_agent import Assignment
from supermax.engine.processes.launcher import EndedAgent
from supermax.engine.run import session
from supermax.engine.run.options import RunOptions

SESSION = "SUPERMAX_TEST_SESSION"
EXECUTOR = os.environ.get("SUPERMAX_TEST_EXECUTOR", "local")
local_only = pytest.mark.skipif(EXECUTOR != "local", reason="about GPUs or logs of this machine")


_AGENT = (
    "import os, pickle, platform, sys; "
    "from supermax.engine.processes.host_agent import run_agent; "
    "platform.node = lambda: os.environ['MACHINE']; "
    "run_agent(*pickle.load(sys.stdin.buffer))"
)


class Subprocesses:
    """Launcher of agents that are children of this process, on `machines` in turn."""

    address = "127.0.0.1"
    machines: tuple[str, ...] = ("this",)

    def __init__(self, executor: RayExecutor, workers: int) -> None:
        self.hosts, self.threads = -(-workers // executor.trials), 1
        self.agents: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, assignment: Assignment, objective: bytes) -> None:
        env = os.environ | {"MACHINE": self.machines[assignment.host % len(self.machines)]}
        agent = subprocess.Popen([sys.executable, "-c", _AGENT], stdin=subprocess.PIPE, env=env)
        self.agents[assignment.host] = agent
        assert agent.stdin is not None
        with agent.stdin as given:
            pickle.dump((assignment, objective), given)

    def ended(self) -> list[EndedAgent]:
        dead = [number for number, agent in self.agents.items() if agent.poll() is not None]
        return [
            EndedAgent(number, f"exit code {self.agents.pop(number).returncode}")
            for number in dead
        ]

    def end(self, host: int) -> None:
        if (agent := self.agents.pop(host, None)) is not None:
            agent.kill()
            agent.wait()

    def avoid(self, machine: str) -> None:
        self.machines = tuple(name for name in self.machines if name != machine)

    def waiting(self) -> str:
        return "Waiting for processes."

    def close(self, connected: Collection[int], timeout: float) -> None:
        for host, agent in list(self.agents.items()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(timeout if host in connected else 0)
            self.end(host)


@contextlib.contextmanager
def cluster(nodes: int = 3) -> Iterator[Any]:
    """Run a Ray cluster of several nodes on this machine, with one CPU each, and connect to it."""
    import ray
    from ray.cluster_utils import Cluster

    session = os.environ.pop(SESSION)  # idle workers of Ray stay: they are no process of a test
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    for _ in range(nodes - 1):
        found.add_node(num_cpus=1)
    os.environ[SESSION] = session
    ray.init(address=found.address, log_to_driver=False, logging_level="ERROR")
    try:
        yield found
    finally:
        ray.shutdown()
        found.shutdown()


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have runs of this test use the executor that the environment names."""
    run: Callable[..., Any] = session.run
    executor = RayExecutor(num_cpus=0.01 if EXECUTOR == "ray" else 1)
    if EXECUTOR == "hosts":
        monkeypatch.setattr(session, "RayLauncher", Subprocesses)

    def run_elsewhere(study: Any, objective: Any, options: RunOptions, **more: Any) -> Any:
        return run(study, objective, replace(options, executor=executor), **more)

    monkeypatch.setattr(supermax.run, "run", run_elsewhere)
