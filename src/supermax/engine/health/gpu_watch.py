"""GPUs in service: a GPU that fails is taken out, and the run continues with the others.

    fault of an attempt ──holds()──▶ probe, in a process of its own
                                        │
    coordinator ◀──checked()── the GPU works: the fault is the trial's
                               the GPU is lost: its trials run again elsewhere, uncounted

A GPU that passes its probes is also taken out once `health.is_bad`: different trials in a row
failed on it and succeeded on others. A trial that may have failed because of its GPU is retried
on another one.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from supermax.engine import events
from supermax.engine.health.streaks import Streaks
from supermax.engine.jobs.job import Attempt, Job
from supermax.engine.processes import gpu_probe
from supermax.engine.processes.pool import Pool
from supermax.engine.trial.faults import Evidence, Fault, Kind
from supermax.errors import EnvironmentFault

_OF_CUDA = {Kind.CUDA_ERROR}
_MAYBE_OF_GPU = {Kind.SIGNAL, Kind.STALL, Kind.TIMEOUT}
"""Faults of which a GPU may be the cause, if the trial was placed on one."""


@dataclass(frozen=True)
class Held:
    """End of an attempt that waits for the probe of its GPU."""

    job: Job
    evidence: Evidence


@dataclass(frozen=True)
class CheckedGpu:
    """GPU after a probe, or after the trials that failed on it have ended elsewhere."""

    device: str | None
    lost: str | None
    """Reason why it is out of service; None: it works."""
    held: tuple[Held, ...] = ()


class GpuWatch:
    """Probes GPUs and keeps count of their failures. Does not touch attempts or trials."""

    def __init__(
        self,
        pool: Pool,
        emit: events.Listener,
        wake: Callable[[], None],
        tag: Mapping[str, str],
    ) -> None:
        self._pool, self._emit, self._wake, self._tag = pool, emit, wake, tag
        self._held: dict[str | None, list[Held]] = {}
        """By GPU that is being probed."""
        self._results: queue.SimpleQueue[tuple[str | None, gpu_probe.Probe]] = queue.SimpleQueue()
        self._streaks = Streaks()
        self._lost: dict[str | None, str] = {}

    @property
    def held(self) -> int:
        """Number of trials that wait for a probe."""
        return sum(map(len, self._held.values()))

    def holds(self, attempt: Attempt, evidence: Evidence, fault: Fault | None) -> bool:
        """Note the end of an attempt. Return whether the decision on it must wait: its GPU is
        being probed."""
        job, device = attempt.job, attempt.cell.device
        if self._pool.has_hosts:  # the devices are machines of a cluster, not GPUs of this one
            return False
        if fault is None:
            self._streaks.succeed(job.number, device, job.failed_on)
            return False
        if not (fault.kind in _OF_CUDA or (device is not None and fault.kind in _MAYBE_OF_GPU)):
            return False
        if device is not None and fault.kind is not Kind.TIMEOUT:
            self._streaks.fail(job.number, device, job.failed_on)
            job.failed_on |= {device}
        held = Held(job, evidence)
        if device in self._held:
            self._held[device].append(held)
        else:
            self._held[device] = [held]
            self._pool.paused.add(device)
            self._start_probe(device)
        return True

    def drop(self, trial_ids: set[int]) -> list[Job]:
        """Forget trials that wait for a probe; return their jobs."""
        dropped = []
        for device, waiting in self._held.items():
            lost = [held for held in waiting if held.job.trial._trial_id in trial_ids]
            self._held[device] = [held for held in waiting if held not in lost]
            dropped += [held.job for held in lost]
        return dropped

    def _start_probe(self, device: str | None) -> None:
        def work() -> None:
            try:
                result = gpu_probe.probe_gpu(device, self._tag)
            except Exception:  # such as a full disk: that says nothing about the GPU
                result = gpu_probe.Probe()
            self._results.put((device, result))
            self._wake()

        threading.Thread(target=work, name="supermax-gpu-probe", daemon=True).start()

    def checked(self, *, stopping: bool) -> list[CheckedGpu]:
        """Return the GPUs about which something is known now, and take lost ones out of service.
        `stopping`: wait for no probe any more."""
        known: list[CheckedGpu] = []
        while not self._results.empty():
            device, result = self._results.get()
            if device in self._held:
                known.append(self._check(device, gpu_probe.loss(result)))
        for device, trials in self._streaks.bad().items():
            if device not in self._held and device not in self._lost:
                why = f"trials {trials} failed on it and succeeded on other GPUs"
                known.append(self._check(device, why))
        left = [*self._held] if stopping else []
        return known + [self._check(device, None) for device in left]

    def _check(self, device: str | None, lost: str | None) -> CheckedGpu:
        held = tuple(self._held.pop(device, ()))
        self._pool.paused.discard(device)
        if lost is not None and device not in self._lost:
            self._lost[device] = lost
            self._pool.retire(device, f"{gpu_text(device)} was taken out of service")
            self._emit(events.OutOfService(gpu_text(device), lost))
            if self._pool.devices:
                text = f"{self.lost_text()}. Trials continue on {', '.join(self._pool.devices)}."
                self._emit(events.Notice(text))
        return CheckedGpu(device, lost, held)

    def lost_text(self) -> str:
        """Return the GPUs that are out of service, with the reasons."""
        shown = sorted(f"{gpu_text(device)}: {why}" for device, why in self._lost.items())
        return f"Out of service: {'; '.join(shown)}"

    def require_one(self) -> None:
        """Raise EnvironmentFault if no GPU is in service any more."""
        if self._lost and not self._pool.devices:
            raise EnvironmentFault(
                f"No GPU of this run is left. {self.lost_text()}. Look at nvidia-smi and the "
                f"kernel's log (dmesg, Xid), reset the GPU or restart the machine, and run the "
                f"same command again: it continues where it stopped."
            )


def gpu_text(device: str | None) -> str:
    if device is None:
        return "the GPU"
    return device if device.startswith(("GPU-", "MIG-")) else f"GPU {device}"
