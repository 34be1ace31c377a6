"""Evidence of how an attempt ended → what it was and whose fault: pure functions.

The table in docs/faults.md says the same in words; a test holds the two together.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum

from supermax.engine.outcome import COMPLETE, RAISED, Outcome, Raised, describe


class Kind(StrEnum):
    DEVICE_OOM = "device out of memory"
    HOST_OOM = "host out of memory"
    FRAGMENTED = "fragmented device memory"
    DEVICE_ASSERT = "device-side assert"
    CUDA_ERROR = "CUDA error"
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


class Culprit(StrEnum):
    CONFIGURATION = "configuration"
    CODE = "code"
    CONFIGURATION_OR_CODE = "configuration or code"
    MACHINE = "machine"
    OUTSIDE = "outside"


class KilledFor(StrEnum):
    """Why Supermax itself ended a cell."""

    TIMEOUT = "timeout"
    STALL = "stall"
    STOP = "stop"
    MUTE = "mute"


# Signals that come from a person, a scheduler or the kernel's memory killer, never from a bug.
_FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}


@dataclass(frozen=True)
class Evidence:
    """All that is known about the end of an attempt."""

    outcome: Outcome | None = None
    exit_code: int | None = None
    signum: int | None = None
    killed_for: KilledFor | None = None
    oom_kills: int = 0  # by the kernel, while the attempt ran
    coordinator_lost: bool = False
    fresh_cell: bool = True
    directions: int = 1
    seconds: float = 0.0
    limit: float | None = None  # the timeout that was hit
    last_step: int | None = None
    peak_rss: int | None = None
    log_tail: str = ""

    @property
    def lasted(self) -> float:
        """Seconds the attempt took, by its own clock where it could still look at it."""
        return self.outcome.seconds if self.outcome else self.seconds


@dataclass(frozen=True)
class Fault:
    kind: Kind
    culprit: Culprit
    message: str
    advice: str
    signature: str  # equal for two faults that are the same thing again
    fresh_cell: bool = True
    violation: float = 1.0
    """By how much the constraint is violated, where a constraint comes of it."""

    @property
    def harmless(self) -> bool:
        """Whether the process is as good as before."""
        return self.kind in (Kind.DIVERGED, Kind.INFEASIBLE)

    @property
    def name(self) -> str:
        """The kind, as people should read it: a signal by its name."""
        return f"signal {self.signature}" if self.kind is Kind.SIGNAL else str(self.kind)


def classify(evidence: Evidence) -> Fault | None:
    """The fault an attempt ended in, or None when it came to a proper end.

    A written outcome stands, whatever the process did afterwards.
    """
    outcome = evidence.outcome
    if outcome is None:
        return _without_outcome(evidence)
    if outcome.state == RAISED and outcome.raised is not None:
        return _raised(outcome.raised, evidence)
    if outcome.state == COMPLETE:
        return _values(outcome, evidence)
    return None


def _values(outcome: Outcome, evidence: Evidence) -> Fault | None:
    values = outcome.values or ()
    if len(values) != evidence.directions:
        return Fault(
            Kind.WRONG_ARITY,
            Culprit.CODE,
            f"The objective returned {len(values)} value(s), but the study has "
            f"{evidence.directions} direction(s).",
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
            "Usually the learning rate is too high. The sampler is told to keep away.",
            "diverged",
        )
    return None


def _raised(raised: Raised, evidence: Evidence) -> Fault:
    if raised.infeasible_by is not None:
        return Fault(
            Kind.INFEASIBLE,
            Culprit.CONFIGURATION,
            raised.message,
            "Nothing to do: the sampler is told to keep away.",
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
    """Return whether the memory of a device, or of the machine, ran out."""
    kind = _exception_kind(describe(error))[0]
    return kind in (Kind.DEVICE_OOM, Kind.HOST_OOM, Kind.FRAGMENTED)


def _exception_kind(raised: Raised) -> tuple[Kind, Culprit, str]:
    text = raised.message
    low = text.lower()
    name = raised.type.rpartition(".")[2]
    from_torch = raised.type.startswith("torch") or raised.type == "RuntimeError"
    if raised.exit_code is not None:
        return Kind.EXIT, Culprit.CODE, "Return a value or raise; do not leave the process."
    if raised.unsendable:
        return Kind.UNSENDABLE, Culprit.CODE, "Return a number, or one per direction."
    if name == "OutOfMemoryError" or (from_torch and any(sign in low for sign in _DEVICE_FULL)):
        if raised.shortage is not None and raised.shortage.fragmented:
            return Kind.FRAGMENTED, Culprit.MACHINE, _FRESH
        return Kind.DEVICE_OOM, Culprit.CONFIGURATION, _LESS_MEMORY
    if name.endswith("MemoryError") or any(sign in low for sign in _HOST_FULL):
        return Kind.HOST_OOM, Culprit.CONFIGURATION, _LESS_MEMORY
    if "device-side assert" in low:
        return (
            Kind.DEVICE_ASSERT,
            Culprit.CONFIGURATION_OR_CODE,
            "Mostly a label or index outside its range. The second attempt runs with blocking "
            "launches: its traceback names the exact line.",
        )
    if from_torch and ("cuda error" in low or "cudnn" in low or "cublas" in low):
        return (
            Kind.CUDA_ERROR,
            Culprit.MACHINE,
            "The second attempt runs with blocking launches: its traceback names the exact line.",
        )
    return Kind.EXCEPTION, Culprit.CODE, f"Raised at {raised.where}; see the traceback."


_DEVICE_FULL = ("cuda out of memory", "cuda error: out of memory", "status_alloc_failed")
_HOST_FULL = ("defaultcpuallocator", "std::bad_alloc")
_LIBRARY_FULL = (
    "openblas error: memory allocation still failed",
    "openblas: malloc failed",
    "libgomp: thread creation failed: resource temporarily unavailable",
    "what():  std::bad_alloc",
)
_BY_ITSELF = (signal.SIGABRT, signal.SIGSEGV)
_FRESH = (
    "There was enough free memory, in pieces too small to use. A fresh process begins with one "
    "piece; PYTORCH_ALLOC_CONF=expandable_segments:True keeps it so."
)
_LESS_MEMORY = "Use a smaller batch or model, fewer workers, or a machine with more memory."


def _without_outcome(evidence: Evidence) -> Fault:
    fresh = evidence.fresh_cell
    if evidence.killed_for is KilledFor.TIMEOUT:
        return Fault(
            Kind.TIMEOUT,
            Culprit.CONFIGURATION,
            f"The trial ran for {evidence.seconds:.1f} s; the limit is {evidence.limit:g} s.",
            "Raise trial_timeout, or let the sampler keep away from slow configurations.",
            "timeout",
            fresh,
        )
    if evidence.killed_for is KilledFor.STALL:
        return Fault(
            Kind.STALL,
            Culprit.MACHINE,
            f"Nothing was heard for {evidence.limit:g} s after step {evidence.last_step}.",
            "The log's end shows where it hung. Raise stall_timeout if the work is just slow.",
            "stall",
            fresh,
        )
    if evidence.killed_for is KilledFor.MUTE:
        return Fault(
            Kind.EXIT,
            Culprit.CONFIGURATION_OR_CODE,
            "The process closed its connection to Supermax, or wrote to it, and went on.",
            "Something closes or uses file descriptors that are not its own.",
            "mute",
            fresh,
        )
    if evidence.coordinator_lost:
        return Fault(
            Kind.COORDINATOR_LOST,
            Culprit.OUTSIDE,
            "The run ended while this trial was running.",
            "Nothing to do: the trial goes on in the next run.",
            "coordinator",
            fresh,
        )
    if evidence.signum in (None, *_BY_ITSELF) and _gave_up_for_memory(evidence.log_tail):
        return Fault(
            Kind.HOST_OOM,
            Culprit.CONFIGURATION,
            "A library ended the process because it could get no more memory.",
            _LESS_MEMORY,
            "library oom",
            fresh,
        )
    if evidence.signum is not None:
        return _signalled(evidence, evidence.signum)
    return Fault(
        Kind.EXIT,
        Culprit.CONFIGURATION_OR_CODE,
        f"The process ended with code {evidence.exit_code} before the objective returned.",
        "Something called os._exit or the like; the log's end may show what.",
        f"exit {evidence.exit_code}",
        fresh,
    )


def _gave_up_for_memory(log: str) -> bool:
    low = log.lower()
    return any(sign in low for sign in _LIBRARY_FULL)


def _signalled(evidence: Evidence, signum: int) -> Fault:
    name = signal_name(signum)
    fresh = evidence.fresh_cell
    if signum == signal.SIGKILL and evidence.oom_kills > 0:
        return Fault(
            Kind.HOST_OOM,
            Culprit.CONFIGURATION,
            "The kernel killed the process because memory ran out.",
            _LESS_MEMORY,
            "kernel oom",
            fresh,
        )
    if signum in _FROM_OUTSIDE:
        return Fault(
            Kind.KILLED,
            Culprit.OUTSIDE,
            f"{name} came from outside.",
            "Look for a person, a scheduler or a memory guard that ends processes.",
            name,
            fresh,
        )
    return Fault(
        Kind.SIGNAL,
        Culprit.MACHINE,
        f"The process died of {name}.",
        "The log's end shows the Python stack at the crash.",
        name,
        fresh,
    )


def signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"
