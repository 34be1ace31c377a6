"""Classification of failed attempts: evidence of the end → kind of fault and culprit. Pure.

docs/faults.md has the same table; a test keeps the two in step.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from supermax._util.text import counted
from supermax.engine.trial.outcome import COMPLETE, RAISED, Outcome, Raised, describe
from supermax.errors import CheckpointUnavailable


class Kind(StrEnum):
    """Kinds of faults. The values are stored in ledgers and studies."""

    DEVICE_OOM = "device out of memory"
    HOST_OOM = "host out of memory"
    FRAGMENTED = "fragmented device memory"
    DEVICE_ASSERT = "device-side assert"
    CUDA_ERROR = "CUDA error"
    GPU_LOST = "GPU lost"
    SIGNAL = "signal"
    KILLED = "killed from outside"
    EXIT = "exit without an outcome"
    TIMEOUT = "trial timeout"
    STALL = "stall"
    EXCEPTION = "exception"
    DIVERGED = "diverged"
    INFEASIBLE = "infeasible"
    UNSENDABLE = "result that is no number"
    WRONG_ARITY = "wrong number of values"
    NO_START = "cell that never came up"
    COORDINATOR_LOST = "coordinator lost"
    NODE_LOST = "node lost"
    NO_CHECKPOINT = "checkpoint that cannot be read"


class Culprit(StrEnum):
    """Cause of a fault; it decides between retry, PRUNED and FAIL."""

    CONFIGURATION = "configuration"
    CODE = "code"
    CONFIGURATION_OR_CODE = "configuration or code"
    MACHINE = "machine"
    OUTSIDE = "outside"


class KilledFor(StrEnum):
    """Reasons for which Supermax itself kills a cell."""

    TIMEOUT = "timeout"
    STALL = "stall"
    STOP = "stop"
    DISCONNECTED = "disconnected"


# Signals that come from a person, a scheduler or the kernel's memory killer, never from a bug.
_FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}


@dataclass(frozen=True)
class Evidence:
    """Observations about the end of an attempt."""

    outcome: Outcome | None = None
    exit_code: int | None = None
    signum: int | None = None
    killed_for: KilledFor | None = None
    oom_kills: int = 0
    """Number of processes that the OOM killer of the kernel, or of Ray, ended while the attempt
    ran."""
    coordinator_lost: bool = False
    lost_node: str | None = None
    """Machine of the cluster that was lost with the attempt; None: none was."""
    gpu_lost: str | None = None
    """Reason why the GPU of the attempt was taken out of service; None: it was not."""
    fresh_cell: bool = True
    """True: the cell had run no other trial."""
    directions: int = 1
    seconds: float = 0.0
    limit: float | None = None
    """Timeout in seconds that was exceeded; None: none was."""
    last_step: int | None = None
    peak_rss: int | None = None
    log_tail: str = ""

    @property
    def lasted(self) -> float:
        """Seconds that the attempt took: as measured by the cell, or else by the coordinator."""
        return self.outcome.seconds if self.outcome else self.seconds


@dataclass(frozen=True)
class Fault:
    """Classified failure of an attempt."""

    kind: Kind
    culprit: Culprit
    message: str
    advice: str
    signature: str
    """Equal for two faults with the same cause."""
    fresh_cell: bool = True
    violation: float = 1.0
    """Constraint violation to store, if the trial ends with a constraint."""

    @property
    def harmless(self) -> bool:
        """True if the cell can run another trial."""
        return self.kind in (Kind.DIVERGED, Kind.INFEASIBLE)

    @property
    def name(self) -> str:
        """Kind for display; a signal by its name."""
        return f"signal {self.signature}" if self.kind is Kind.SIGNAL else str(self.kind)


def classify(evidence: Evidence) -> Fault | None:
    """Return the fault that ended an attempt; None: it completed, was pruned or interrupted.

    A written outcome counts, whatever the process did afterwards.
    """
    outcome = evidence.outcome
    if evidence.gpu_lost is not None:
        return Fault(
            Kind.GPU_LOST,
            Culprit.MACHINE,
            f"Its GPU was taken out of service: {evidence.gpu_lost}.",
            "Nothing to do for the trial: it is run again on another GPU. Check the lost one with "
            "nvidia-smi and in the kernel's log (dmesg, Xid).",
            "gpu lost",
        )
    if outcome is None:
        return replace(_fault_without_outcome(evidence), fresh_cell=evidence.fresh_cell)
    if outcome.state == RAISED and outcome.raised is not None:
        return _fault_of_exception(outcome.raised, evidence)
    if outcome.state == COMPLETE:
        return _fault_of_values(outcome, evidence)
    return None


def _fault_of_values(outcome: Outcome, evidence: Evidence) -> Fault | None:
    values = outcome.values or ()
    if len(values) != evidence.directions:
        return Fault(
            Kind.WRONG_ARITY,
            Culprit.CODE,
            f"The objective returned {counted(len(values), 'value')}, but the study has "
            f"{counted(evidence.directions, 'direction')}.",
            "Return one value for each direction of the study, or create the study with as many "
            "directions as the objective returns values.",
            "arity",
        )
    if outcome.diverged:
        shown = ", ".join(map(str, values))
        return Fault(
            Kind.DIVERGED,
            Culprit.CONFIGURATION,
            f"The objective returned {shown}.",
            "Usually the learning rate is too high. The trial is reported to the sampler as "
            "violating a constraint.",
            "diverged",
        )
    return None


def _fault_of_exception(raised: Raised, evidence: Evidence) -> Fault:
    if raised.infeasible_by is not None:
        return Fault(
            Kind.INFEASIBLE,
            Culprit.CONFIGURATION,
            raised.message,
            "Nothing to do: the trial is reported to the sampler as violating a constraint.",
            "infeasible",
            evidence.fresh_cell,
            raised.infeasible_by,
        )
    kind, culprit, advice = _exception_kind(raised)
    message = f"{raised.type}: {raised.message}" if raised.message else raised.type
    if raised.exit_code is not None:
        message = f"The objective called sys.exit({raised.exit_code}) at {raised.where}."
    return Fault(
        kind, culprit, message, advice, f"{raised.type}@{raised.where}", evidence.fresh_cell
    )


def out_of_memory(error: BaseException) -> bool:
    """Return whether `error` says that the memory of a GPU, or of the machine, is exhausted."""
    kind = _exception_kind(describe(error))[0]
    return kind in (Kind.DEVICE_OOM, Kind.HOST_OOM, Kind.FRAGMENTED)


def _exception_kind(raised: Raised) -> tuple[Kind, Culprit, str]:
    message = raised.message.lower()
    name = raised.type.rpartition(".")[2]
    from_torch = raised.type.startswith("torch") or raised.type == "RuntimeError"
    if raised.exit_code is not None:
        return (
            Kind.EXIT,
            Culprit.CODE,
            "Return a value or raise an exception instead of exiting the process.",
        )
    if raised.unsendable:
        return (
            Kind.UNSENDABLE,
            Culprit.CODE,
            "Return a number, or a sequence with one number per direction of the study.",
        )
    if raised.type == _NO_CHECKPOINT:
        return (
            Kind.NO_CHECKPOINT,
            Culprit.OUTSIDE,
            "Check that the URL of `checkpoints` can be reached; the trial is retried.",
        )
    if name == "OutOfMemoryError" or (from_torch and _contains(message, _DEVICE_FULL)):
        if raised.shortage is not None and raised.shortage.fragmented:
            return Kind.FRAGMENTED, Culprit.MACHINE, _DEFRAGMENT
        return Kind.DEVICE_OOM, Culprit.CONFIGURATION, _LESS_MEMORY
    if name.endswith("MemoryError") or _contains(message, _HOST_FULL):
        return Kind.HOST_OOM, Culprit.CONFIGURATION, _LESS_MEMORY
    if "device-side assert" in message:
        return (
            Kind.DEVICE_ASSERT,
            Culprit.CONFIGURATION_OR_CODE,
            "Usually a label or index out of range. The second attempt runs with "
            "CUDA_LAUNCH_BLOCKING=1: its traceback names the exact line.",
        )
    if from_torch and _contains(message, _CUDA_FAILED):
        return (
            Kind.CUDA_ERROR,
            Culprit.MACHINE,
            "The second attempt runs with CUDA_LAUNCH_BLOCKING=1: its traceback names the exact "
            "line.",
        )
    return Kind.EXCEPTION, Culprit.CODE, f"Raised at {raised.where}; see the traceback."


_NO_CHECKPOINT = f"{CheckpointUnavailable.__module__}.{CheckpointUnavailable.__name__}"
_DEVICE_FULL = ("cuda out of memory", "cuda error: out of memory", "status_alloc_failed")
_CUDA_FAILED = (
    "cuda error",
    "cuda driver error",
    "cudnn",
    "cublas",
    "no cuda gpus are available",
    "cuda unknown error",
    "cuda driver initialization failed",
    "unexpected error from cudagetdevicecount",
    "gpu is lost",
)
"""Texts of torch for errors of CUDA; the last five where a process cannot start to use a GPU."""
_HOST_FULL = ("defaultcpuallocator", "std::bad_alloc")
_LIBRARY_FULL = (
    "openblas error: memory allocation still failed",
    "openblas: malloc failed",
    "libgomp: thread creation failed: resource temporarily unavailable",
    "what():  std::bad_alloc",
)
_SELF_INFLICTED = (signal.SIGABRT, signal.SIGSEGV)
_DEFRAGMENT = (
    "Enough memory was free, but in pieces too small to use. A fresh process starts without "
    "fragmentation; PYTORCH_ALLOC_CONF=expandable_segments:True avoids it."
)
_LESS_MEMORY = "Use a smaller batch or model, fewer workers, or a machine with more memory."


def _fault_without_outcome(evidence: Evidence) -> Fault:
    """Classify an attempt whose process ended, or was killed, before it wrote an outcome."""
    if (fault := _killed_by_supermax(evidence)) is not None:
        return fault
    if evidence.coordinator_lost:
        return Fault(
            Kind.COORDINATOR_LOST,
            Culprit.OUTSIDE,
            "The run ended while this trial was running.",
            "Nothing to do: the next run resumes the trial.",
            "coordinator",
        )
    if evidence.lost_node is not None:
        return Fault(
            Kind.NODE_LOST,
            Culprit.MACHINE,
            f"The worker on {evidence.lost_node} was lost while this trial ran there.",
            "Nothing to do: the trial continues on another machine of the cluster.",
            "node",
        )
    allocation_failed = _contains(evidence.log_tail.lower(), _LIBRARY_FULL)
    if evidence.signum in (None, *_SELF_INFLICTED) and allocation_failed:
        return Fault(
            Kind.HOST_OOM,
            Culprit.CONFIGURATION,
            "A library aborted the process because a memory allocation failed.",
            _LESS_MEMORY,
            "library oom",
        )
    if evidence.signum is not None:
        return _fault_of_signal(evidence, evidence.signum)
    return Fault(
        Kind.EXIT,
        Culprit.CONFIGURATION_OR_CODE,
        f"The process exited with code {evidence.exit_code} before the objective returned.",
        "Something called os._exit or similar; the end of the log may show what.",
        f"exit {evidence.exit_code}",
    )


def _killed_by_supermax(evidence: Evidence) -> Fault | None:
    """Return the fault for which Supermax killed the cell; None: it did not."""
    if evidence.killed_for is KilledFor.TIMEOUT:
        return Fault(
            Kind.TIMEOUT,
            Culprit.CONFIGURATION,
            f"The trial ran for {evidence.seconds:.1f} s; the limit is {evidence.limit:g} s.",
            "Raise trial_timeout, or restrict the space to faster configurations.",
            "timeout",
        )
    if evidence.killed_for is KilledFor.STALL:
        return Fault(
            Kind.STALL,
            Culprit.MACHINE,
            f"The trial sent nothing for {evidence.limit:g} s after step {evidence.last_step}.",
            "The end of the log shows the stack of the hang. Raise stall_timeout if the trial is "
            "just slow.",
            "stall",
        )
    if evidence.killed_for is KilledFor.DISCONNECTED:
        return Fault(
            Kind.EXIT,
            Culprit.CONFIGURATION_OR_CODE,
            "The process closed its socket to Supermax, or wrote to it, and kept running.",
            "Something in the objective closes or writes to file descriptors that it did not "
            "open.",
            "mute",
        )
    return None


def _contains(text: str, parts: Iterable[str]) -> bool:
    return any(part in text for part in parts)


def _fault_of_signal(evidence: Evidence, signum: int) -> Fault:
    name = signal_name(signum)
    if signum == signal.SIGKILL and evidence.oom_kills > 0:
        return Fault(
            Kind.HOST_OOM,
            Culprit.CONFIGURATION,
            "The OOM killer of the kernel, or of Ray, ended the process.",
            _LESS_MEMORY,
            "kernel oom",
        )
    if signum in _FROM_OUTSIDE:
        return Fault(
            Kind.KILLED,
            Culprit.OUTSIDE,
            f"The process was ended by {name}, which Supermax did not send.",
            "Check for a person, a scheduler or a memory guard that ends processes.",
            name,
        )
    return Fault(
        Kind.SIGNAL,
        Culprit.MACHINE,
        f"The process died of {name}.",
        "The end of the log shows the Python stack of the crash.",
        name,
    )


def signal_name(signum: int) -> str:
    """Return the name of a signal, such as SIGSEGV."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"
