"""Device and memory that the trials of a search may use."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Literal

import torch

from supermax._util import system
from supermax.errors import UserError
from supermax.memory.budgets import ON_CPU, GpuBudget, HostBudget
from supermax.memory.devices import find_gpu, gpus
from supermax.memory.measurements import MeasurementLog, default_folder
from supermax.memory.sharing import AUTO, resolve_workers
from supermax.search.cluster import Cluster, ClusterBudget
from supermax.tasks.objective import AgentObjective
from supermax.tasks.provisioning import MemoryPlanner
from supermax.training.steps.execution import Execution


@dataclass(frozen=True)
class Resources:
    """Device of an execution, and the memory that trials may use there."""

    execution: Execution
    memory: int | None = None
    """Bytes of a GPU, or of the host's memory without one; None: all that is available."""
    cluster: Cluster | None = None
    """Ray cluster that trials run on; None: this machine."""

    @property
    def has_cuda(self) -> bool:
        device = self.execution.device
        if device == "auto" and self.cluster is not None:
            return self.cluster.gpus > 0
        return device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())

    @property
    def device(self) -> Literal["cuda", "cpu"]:
        return "cuda" if self.has_cuda else "cpu"

    def with_device(self) -> Execution:
        """Return the execution with the device that "auto" means here: a cell whose GPU is lost
        must fail, and not train on the CPU."""
        if self.execution.device != "auto":
            return self.execution
        return replace(self.execution, device=self.device)

    def foreseen(self) -> Execution:
        """Return the execution with "auto" resolved as cells will, without initialising CUDA."""
        default = "bf16" if self.has_cuda else "fp32"
        precision = default if self.execution.precision == "auto" else self.execution.precision
        return replace(self.execution, device=self.device, precision=precision)

    def budget(self) -> GpuBudget | HostBudget | ClusterBudget:
        """Return the memory budget of the device that trials run on."""
        if self.cluster is not None:
            return ClusterBudget(min(self.cluster.memory, self.memory or self.cluster.memory))
        return GpuBudget(self.memory) if self.has_cuda else HostBudget(self.memory)

    def workers(self, wanted: int | Literal["auto"], devices: Sequence[int | str]) -> int:
        """Return the number of parallel trials for a number or "auto"."""
        if self.cluster is not None:
            return self.cluster.workers() if wanted == AUTO else wanted
        count = max(1, len(devices)) if self.has_cuda else 0
        return resolve_workers(wanted, gpus=count, cores=system.cores())

    def measurement_log(self) -> MeasurementLog:
        """Return the log of memory and speed measured on this device with the installed
        versions."""
        device: str = self.device
        if self.cluster is not None:
            device = self.cluster.gpu_name or device
        elif self.has_cuda and (found := find_gpu(gpus(), None)) is not None:
            device = found.name
        versions = f"torch {version('torch')} transformers {version('transformers')}"
        return MeasurementLog(default_folder(), device, versions)

    def planner(
        self, objective: AgentObjective, tell: Callable[[str], None]
    ) -> MemoryPlanner | None:
        """Return the memory planner; None where the micro-batch is given, or the device's memory
        cannot be read."""
        if self.memory is not None and self.memory < 1:
            raise UserError(f"memory must be more than 0 bytes, and is {self.memory}.")
        if self.execution.micro_batch is not None or objective.book is None:
            return None
        if self.has_cuda:  # so that CUDA numbers GPUs as NVML does
            os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        budget = self.budget()
        if not budget.whole:
            tell(
                "The memory of the GPU cannot be read, so it is not planned: pip install "
                "nvidia-ml-py, or set it (memory, --gpu-memory)."
            )
            return None
        if not self.has_cuda:
            for variable, value in ON_CPU.items():
                os.environ.setdefault(variable, value)
        planned = replace(objective, execution=self.foreseen())
        return MemoryPlanner(planned, objective.book, budget)
