"""Cells on a Ray cluster: Ray places an actor on a machine with room, the actor runs an agent.

Ray does what it is good at, placing work by CPUs, GPUs and memory and asking the autoscaler for
more machines. Processes, faults, retries and checkpoints are those of every other run.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from supermax._util.text import counted, in_short, size_text
from supermax.engine.processes.host_agent import Assignment, run_agent
from supermax.engine.processes.launcher import EndedAgent
from supermax.errors import EnvironmentFault, UserError

if TYPE_CHECKING:
    from ray import ObjectRef

T = TypeVar("T")
_CLIENT = "ray://"
_ADDRESS = re.compile(r"auto|local|(\[[0-9A-Fa-f:.]+\]|[^\s/:]+):[0-9]{1,5}")
_CONNECT_TIMEOUT = 10.0  # seconds
_FREE_GPU_TIMEOUT = 300.0  # seconds
_ASK_INTERVAL = 2.0  # seconds
_ANSWER_TIMEOUT = 30.0  # seconds; Ray ends this process after 60


@dataclass(frozen=True)
class RayExecutor:
    """Ray cluster on which trials run, and what each worker takes of it.

    A worker is a Ray actor that runs `trials` trials at the same time, each in a process of its
    own.
    """

    address: str | None = None
    """Address of the cluster; None: RAY_ADDRESS, or the cluster of this machine."""
    num_cpus: float = 1.0
    """CPUs that Ray reserves for each worker."""
    num_gpus: float = 0.0
    """GPUs that Ray reserves for each worker; its trials see no others."""
    memory: int | None = None
    """Bytes of host memory that Ray reserves for each worker; None: none."""
    trials: int = 1
    """Number of trials that a worker runs at the same time."""
    shared_run_dir: bool = False
    """True: every machine must see the run folder, because later commands read files there."""

    @property
    def request(self) -> dict[str, float]:
        """Resources of a worker, by Ray's names."""
        wanted = {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": self.memory or 0}
        return {name: amount for name, amount in wanted.items() if amount}


def connect_cluster(address: str | None) -> Callable[[], None]:
    """Connect this process to a cluster, unless it is connected; return a function that undoes
    it."""
    try:
        import ray
    except ImportError as error:
        raise UserError(
            "The executor ray needs the package Ray: pip install 'supermax[ray]'."
        ) from error
    if address is not None and address.startswith(_CLIENT):
        raise UserError(
            f"{address} is an address of Ray Client, through which the machines of the cluster "
            f"cannot connect back to this program. Start it on a machine of the cluster."
        )
    if address is not None and not _ADDRESS.fullmatch(address):
        raise UserError(f"The address {address!r} of Ray is not HOST:PORT, as in 10.0.0.5:6379.")
    if ray.is_initialized():
        return lambda: None
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        _check_port(address or os.environ.get("RAY_ADDRESS", ""))
        ray.init(address=address or "auto", configure_logging=False, **options)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        where = f"at {address}" if address else "from this machine"
        raise EnvironmentFault(
            f"No Ray cluster can be reached {where}: {in_short(error, 300)}. Start one with `ray "
            f"start --head`, or name its address."
        ) from error
    return ray.shutdown


def _check_port(address: str) -> None:
    """Raise OSError where nothing listens at an address: Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), _CONNECT_TIMEOUT).close()


def nodes(address: str | None) -> list[dict[str, float]]:
    """Connect to a cluster and return the resources of each of its machines, by Ray's names."""
    connect_cluster(address)
    import ray

    found: Any = ray
    return [node["Resources"] for node in found.nodes() if node["Alive"]]


def run_remotely(function: Callable[[], T], num_gpus: float) -> T:
    """Return the result of a function that runs on a machine of the cluster with free GPUs."""
    import ray

    remote: Any = ray.remote(function)
    try:
        result: T = ray.get(
            remote.options(num_cpus=0, num_gpus=num_gpus).remote(), timeout=_FREE_GPU_TIMEOUT
        )
    except ray.exceptions.GetTimeoutError as error:
        raise EnvironmentFault(
            f"No GPU of the Ray cluster became free within {_FREE_GPU_TIMEOUT:.0f} s. Try again "
            f"when other work on it has ended."
        ) from error
    return result


class _Worker:
    """Ray actor that serves a run."""

    def serve(self, assignment: Assignment, objective: bytes) -> None:
        run_agent(assignment, objective)


class _ClusterWatch:
    """Asks the cluster, from a thread, whether it is there. Once it has lost its node or the head
    of the cluster, Ray blocks calls, and later ends this process without an exception."""

    def __init__(self, ray: Any) -> None:
        self._ray, self._own = ray, ray.get_runtime_context().get_node_id()
        self._answered = time.monotonic()
        self._node_is_lost = False
        self.free: dict[str, float] = {}
        """Resources that are free in the cluster."""
        self._closed = threading.Event()
        threading.Thread(target=self._ask_regularly, daemon=True).start()

    def _ask_regularly(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(Exception):  # it may not answer; then problem() says so
                (own,) = [node for node in self._ray.nodes() if node["NodeID"] == self._own]
                self.free = self._ray.available_resources()
                self._answered = time.monotonic()
                self._node_is_lost |= not own["Alive"]
                # The head takes ten seconds to notice it, and then Ray ends this process at once.
                address = (own["NodeManagerAddress"], own["NodeManagerPort"])
                try:
                    socket.create_connection(address, _CONNECT_TIMEOUT).close()
                except ConnectionRefusedError:
                    self._node_is_lost = True
            self._closed.wait(_ASK_INTERVAL)

    def problem(self) -> str | None:
        """Return why the cluster cannot be used any more; None: it can."""
        if self._node_is_lost:
            return "the Ray node of this machine has died"
        if time.monotonic() > self._answered + _ANSWER_TIMEOUT:
            return f"its head has not answered for {_ANSWER_TIMEOUT:.0f} s"
        return None

    def close(self) -> None:
        self._closed.set()


class RayLauncher:
    """Starts agents as actors of a Ray cluster, which this process is connected to."""

    def __init__(self, executor: RayExecutor, workers: int) -> None:
        self._disconnect = connect_cluster(executor.address)
        import ray

        self._ray: Any = ray
        self._executor = executor
        self.address = str(self._ray.util.get_node_ip_address())
        self.hosts = math.ceil(workers / executor.trials)
        self.threads = max(1, int(executor.num_cpus / executor.trials))
        self._worker: Any = ray.remote(_Worker)
        self._avoided: set[str] = set()
        self._watch = _ClusterWatch(self._ray)
        self._actors: dict[int, Any] = {}
        self._served: dict[ObjectRef[None], int] = {}
        self._objective: ObjectRef[bytes] | None = None

    def start(self, assignment: Assignment, objective: bytes) -> None:
        if self._objective is None:
            self._objective = self._ray.put(objective)
        actor = self._worker.options(
            num_cpus=self._executor.num_cpus,
            num_gpus=self._executor.num_gpus,
            memory=self._executor.memory,
            max_restarts=0,
            label_selector=self._labels(),
        ).remote()
        self._actors[assignment.host] = actor
        self._served[actor.serve.remote(assignment, self._objective)] = assignment.host

    def _labels(self) -> dict[str, str] | None:
        """Return the labels of nodes that are not on an avoided machine; None: any will do."""
        found = self._ray.nodes() if self._avoided else []
        ids = [node["NodeID"] for node in found if node["NodeManagerHostname"] in self._avoided]
        return {"ray.io/node-id": f"!in({','.join(ids)})"} if ids else None

    def avoid(self, machine: str) -> None:
        self._avoided.add(machine)

    def ended(self) -> list[EndedAgent]:
        if (problem := self._watch.problem()) is not None:
            raise EnvironmentFault(
                f"The Ray cluster is lost: {problem}. Start it again, then run the same command: "
                f"it continues where it stopped."
            )
        if not self._served:
            return []
        refs = list(self._served)
        ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0)
        ended = []
        for ref in ready:
            host = self._served.pop(ref)
            if self._actors.pop(host, None) is not None:  # else this process ended it
                ended.append(self._ended(host, ref))
        return ended

    def _ended(self, host: int, ref: ObjectRef[None]) -> EndedAgent:
        try:
            self._ray.get(ref)
        except self._ray.exceptions.OutOfMemoryError:
            why = "Ray ended it because its machine was running out of memory"
            return EndedAgent(host, why, out_of_memory=True)
        except self._ray.exceptions.RayError as error:
            return EndedAgent(host, in_short(str(error).strip().splitlines()[-1], 300).rstrip("."))
        return EndedAgent(host, "its agent ended")

    def waiting(self) -> str:
        wanted = _in_words(self._executor.request)
        there = _in_words(self._watch.free)
        avoided = f" Out of service: {', '.join(sorted(self._avoided))}." if self._avoided else ""
        return (
            f"Waiting for the Ray cluster: it has no room yet for a worker with {wanted} (free: "
            f"{there}).{avoided}"
        )

    def end(self, host: int) -> None:
        if (actor := self._actors.pop(host, None)) is not None:
            self._ray.kill(actor)

    def close(self, connected: Collection[int], timeout: float) -> None:
        self._watch.close()
        if self._watch.problem() is not None:
            return  # calls of Ray would block; agents end with their connections
        ending = [ref for ref, host in self._served.items() if host in connected]
        with contextlib.suppress(Exception):  # the cluster may be gone
            self._ray.wait(ending, num_returns=len(ending), timeout=timeout)
        for host in list(self._actors):
            with contextlib.suppress(Exception):
                self.end(host)
        self._served.clear()
        self._disconnect()


def _in_words(resources: dict[str, float]) -> str:
    words = [
        f"{size_text(int(amount))} of memory" if name == "memory" else f"{amount:g} {name}"
        for name, amount in resources.items()
        if name in ("CPU", "GPU", "memory")
    ]
    return ", ".join(words) or counted(0, "resource")
