"""Ray cluster of a search: its GPUs and CPUs, and the workers that use them.

nodes of Ray, one GPU looked at ──read_cluster()──▶ Cluster ──executor()──▶ RayExecutor
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from supermax._util.text import counted
from supermax.engine.processes.ray_cluster import RayExecutor, nodes, run_remotely
from supermax.errors import EnvironmentFault
from supermax.memory.budgets import GPU_MARGIN, HOST_SHARE
from supermax.memory.devices import find_gpu, gpus
from supermax.memory.sharing import CELLS_PER_GPU


@dataclass(frozen=True)
class Cluster:
    """Machines of a Ray cluster, as far as a search needs to know them."""

    address: str | None
    gpus: int
    cpus: int
    trials_per_gpu: int = 0
    """Number of trials at the same time on a GPU; 0: there are no GPUs."""
    gpu_name: str = ""
    memory: int = 0
    """Bytes for all trials of a worker: of a GPU, or of the host without one; 0: unknown."""

    def __str__(self) -> str:
        cpus = counted(self.cpus, "CPU")
        found = f"{counted(self.gpus, 'GPU')} ({self.gpu_name})" if self.gpus else cpus
        return f"a Ray cluster with {found}"

    def workers(self) -> int:
        """Return the number of parallel trials that use the whole cluster."""
        return max(1, self.gpus * self.trials_per_gpu if self.gpus else self.cpus)

    def executor(self, workers: int) -> RayExecutor:
        """Return the workers of Ray for a number of parallel trials, spread over the GPUs."""
        if not self.gpus:
            return RayExecutor(
                self.address, num_cpus=1, memory=self.memory or None, shared_run_dir=True
            )
        trials = min(self.trials_per_gpu, math.ceil(workers / self.gpus))
        return RayExecutor(
            self.address, num_cpus=trials, num_gpus=1, trials=trials, shared_run_dir=True
        )


class ClusterBudget:
    """Memory of a worker of the cluster. No other program uses it: Ray has reserved it."""

    def __init__(self, whole: int) -> None:
        self.whole = whole

    def available(self, device: str | None, pids: object, ours: int) -> int:
        return self.whole


def read_cluster(address: str | None) -> Cluster:
    """Connect to a Ray cluster, and look at its machines."""
    found = nodes(address)
    with_gpus = [node for node in found if node.get("GPU", 0) >= 1]
    cpus = int(sum(node.get("CPU", 0) for node in found))
    if with_gpus:
        per_gpu = min(int(node.get("CPU", 0) / node["GPU"]) for node in with_gpus)
        name, size = run_remotely(first_gpu, num_gpus=1)
        return Cluster(
            address,
            gpus=int(sum(node["GPU"] for node in with_gpus)),
            cpus=cpus,
            trials_per_gpu=max(1, min(CELLS_PER_GPU, per_gpu)),
            gpu_name=name,
            memory=max(0, size - GPU_MARGIN),
        )
    if not cpus:
        raise EnvironmentFault("The Ray cluster has no CPUs and no GPUs for trials.")
    shares = [int(HOST_SHARE * n.get("memory", 0) / n["CPU"]) for n in found if n.get("CPU")]
    return Cluster(address, gpus=0, cpus=cpus, memory=min(shares))


def first_gpu() -> tuple[str, int]:
    """Return the name and the bytes of the GPU of this process; "" and 0: it cannot be read."""
    found = find_gpu(gpus(), None)
    return (found.name, found.total) if found is not None else ("", 0)
