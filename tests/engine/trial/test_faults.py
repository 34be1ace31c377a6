"""Classification of evidence, and decisions on faults. Pure."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supermax.engine.jobs import policy
from supermax.engine.jobs.job import attempts_and_faults, lost_coordinator
from supermax.engine.trial.faults import Culprit, Evidence, Fault, KilledFor, Kind, classify
from supermax.engine.trial.outcome import Outcome, Raised
from tests import ROOT

OOM = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24 GiB"
ASSERT = "CUDA error: device-side assert triggered\nCUDA kernel errors might be reported later"


def raised(kind: str, message: str = "", **more: object) -> Evidence:
    what = Raised(kind, message, "Traceback ...", "train.py:12", **more)  # type: ignore[arg-type]
    return Evidence(outcome=Outcome(1, "raised", raised=what))


def returned(*values: float, directions: int = 1) -> Evidence:
    return Evidence(outcome=Outcome(1, "complete", values=values), directions=directions)


NAN = float("nan")
BLAS = "OpenBLAS error: Memory allocation still failed after 10 retries, giving up."
TABLE = [
    (raised("torch.OutOfMemoryError", OOM), Kind.DEVICE_OOM),
    (raised("torch.cuda.OutOfMemoryError", OOM), Kind.DEVICE_OOM),
    (raised("RuntimeError", "CUDA error: out of memory"), Kind.DEVICE_OOM),
    (raised("RuntimeError", "CUBLAS_STATUS_ALLOC_FAILED when calling ..."), Kind.DEVICE_OOM),
    (raised("MemoryError"), Kind.HOST_OOM),
    (raised("RuntimeError", "[enforce fail] DefaultCPUAllocator: can't allocate"), Kind.HOST_OOM),
    (raised("numpy._core._exceptions._ArrayMemoryError", "Unable to"), Kind.HOST_OOM),
    (raised("RuntimeError", ASSERT), Kind.DEVICE_ASSERT),
    (raised("torch.AcceleratorError", ASSERT), Kind.DEVICE_ASSERT),
    (raised("torch.AcceleratorError", "CUDA error: an illegal memory access"), Kind.CUDA_ERROR),
    (raised("RuntimeError", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"), Kind.CUDA_ERROR),
    (raised("RuntimeError", "CUDA driver error: an illegal memory access"), Kind.CUDA_ERROR),
    (raised("RuntimeError", "CUDA error: unspecified launch failure"), Kind.CUDA_ERROR),
    (raised("RuntimeError", "CUDA error: uncorrectable ECC error encountered"), Kind.CUDA_ERROR),
    (raised("RuntimeError", "No CUDA GPUs are available"), Kind.CUDA_ERROR),
    (raised("RuntimeError", "CUDA unknown error - this may be due to an"), Kind.CUDA_ERROR),
    (Evidence(gpu_lost="it is gone", outcome=raised("RuntimeError").outcome), Kind.GPU_LOST),
    (raised("ValueError", "the CUDA error page was not found"), Kind.EXCEPTION),
    (raised("KeyError", "'lr'"), Kind.EXCEPTION),
    (raised("TypeError", "returned a lock", unsendable=True), Kind.UNSENDABLE),
    (raised("SystemExit", "7", exit_code=7), Kind.EXIT),
    (raised("supermax.errors.Infeasible", "too long", infeasible_by=0.5), Kind.INFEASIBLE),
    (returned(NAN), Kind.DIVERGED),
    (returned(float("inf")), Kind.DIVERGED),
    (returned(1.0, NAN, directions=2), Kind.DIVERGED),
    (returned(1.0, 2.0), Kind.WRONG_ARITY),
    (returned(1.0, directions=2), Kind.WRONG_ARITY),
    (Evidence(signum=signal.SIGSEGV), Kind.SIGNAL),
    (Evidence(signum=signal.SIGABRT), Kind.SIGNAL),
    (Evidence(signum=signal.SIGBUS), Kind.SIGNAL),
    (Evidence(signum=signal.SIGKILL), Kind.KILLED),
    (Evidence(signum=signal.SIGTERM), Kind.KILLED),
    (Evidence(signum=signal.SIGINT), Kind.KILLED),
    (Evidence(signum=signal.SIGKILL, oom_kills=1), Kind.HOST_OOM),
    (Evidence(signum=signal.SIGSEGV, oom_kills=1), Kind.SIGNAL),
    (Evidence(exit_code=1, log_tail=f"{BLAS}\nFatal Python error"), Kind.HOST_OOM),
    (Evidence(signum=signal.SIGSEGV, log_tail=BLAS), Kind.HOST_OOM),
    (Evidence(signum=signal.SIGABRT, log_tail="OpenBLAS: malloc failed in x"), Kind.HOST_OOM),
    (Evidence(signum=signal.SIGABRT, log_tail="what():  std::bad_alloc"), Kind.HOST_OOM),
    (Evidence(signum=signal.SIGKILL, log_tail=BLAS), Kind.KILLED),
    (Evidence(exit_code=0), Kind.EXIT),
    (Evidence(exit_code=3), Kind.EXIT),
    (Evidence(killed_for=KilledFor.TIMEOUT, signum=signal.SIGTERM, limit=5.0), Kind.TIMEOUT),
    (Evidence(killed_for=KilledFor.STALL, signum=signal.SIGKILL, limit=5.0), Kind.STALL),
    (Evidence(killed_for=KilledFor.DISCONNECTED, signum=signal.SIGKILL), Kind.EXIT),
    (Evidence(coordinator_lost=True), Kind.COORDINATOR_LOST),
    (Evidence(signum=signal.SIGKILL, lost_node="far"), Kind.NODE_LOST),
]


@pytest.mark.parametrize(("evidence", "kind"), TABLE, ids=lambda v: str(v)[:60])
def test_every_end_is_classified(evidence: Evidence, kind: Kind) -> None:
    fault = classify(evidence)
    assert fault is not None
    assert fault.kind is kind
    assert fault.message
    assert fault.advice


@pytest.mark.parametrize("evidence", [returned(1.0), returned(1.0, 2.0, directions=2)])
def test_completed_attempt_has_no_fault(evidence: Evidence) -> None:
    assert classify(evidence) is None


def test_written_outcome_counts_whatever_follows() -> None:
    outcome = Outcome(1, "complete", values=(1.0,))
    for after in (
        Evidence(outcome=outcome, signum=signal.SIGSEGV),
        Evidence(outcome=outcome, exit_code=3),
        Evidence(outcome=outcome, killed_for=KilledFor.TIMEOUT, limit=1.0),
    ):
        assert classify(after) is None


def fault(kind: Kind, signature: str = "same", fresh: bool = True) -> Fault:
    return Fault(kind, Culprit.MACHINE, "m", "a", signature, fresh)


SEGV = fault(Kind.SIGNAL, "SIGSEGV")
DECISIONS = [
    (SEGV, [], policy.Retry),
    (SEGV, [SEGV], policy.Fail),
    (SEGV, [fault(Kind.SIGNAL, "SIGABRT")], policy.Retry),
    (SEGV, [fault(Kind.SIGNAL, "SIGSEGV", fresh=False)], policy.Retry),
    (fault(Kind.STALL), [], policy.Retry),
    (fault(Kind.STALL), [fault(Kind.STALL)] * 2, policy.Fail),
    (fault(Kind.DEVICE_OOM), [], policy.Retry),
    (fault(Kind.DEVICE_OOM), [fault(Kind.DEVICE_OOM)] * 2, policy.Prune),
    (fault(Kind.HOST_OOM), [fault(Kind.STALL)] * 2, policy.Prune),
    (fault(Kind.TIMEOUT), [], policy.Prune),
    (fault(Kind.DIVERGED), [], policy.Prune),
    (fault(Kind.INFEASIBLE), [], policy.Prune),
    (fault(Kind.EXCEPTION), [], policy.Fail),
    (fault(Kind.UNSENDABLE), [], policy.Fail),
    (fault(Kind.WRONG_ARITY), [], policy.Fail),
    (fault(Kind.KILLED), [fault(Kind.KILLED)] * 18, policy.Retry),
    (fault(Kind.KILLED), [fault(Kind.KILLED)] * 19, policy.Fail),
    (lost_coordinator(), [fault(Kind.KILLED)] * 19, policy.Fail),
    (SEGV, [fault(Kind.KILLED)] * 10, policy.Retry),
]


@pytest.mark.parametrize(("now", "before", "decision"), DECISIONS, ids=str)
def test_every_fault_has_its_decision(now: Fault, before: list[Fault], decision: type) -> None:
    assert isinstance(policy.decide(now, before, retries=2), decision)


def test_cuda_error_is_retried_with_blocking_launches() -> None:
    for kind in (Kind.DEVICE_ASSERT, Kind.CUDA_ERROR):
        first = policy.decide(fault(kind, "line 1"), [], retries=2)
        assert isinstance(first, policy.Retry)
        assert first.blocking_launches
        again = policy.decide(fault(kind, "line 2"), [fault(kind, "line 1")], retries=2)
        assert isinstance(again, policy.Fail)


kinds = st.sampled_from([kind for kind in Kind if kind is not Kind.NO_START])
faults = st.builds(fault, kinds, st.sampled_from(["a", "b"]), st.booleans())


@given(st.lists(faults, max_size=200), st.integers(0, 5))
def test_attempts_of_a_trial_are_limited(ends: list[Fault], retries: int) -> None:
    """A trial is launched at most retries + 20 times: it fails at the 20th uncounted fault."""
    before: list[Fault] = []
    for end in ends:
        if not isinstance(policy.decide(end, before, retries), policy.Retry):
            break
        before.append(end)
    assert len(before) + 1 <= retries + policy.UNCOUNTED_FAULTS_FAIL


@given(faults, st.lists(faults, max_size=6), st.integers(0, 5))
def test_only_configuration_faults_set_a_constraint(
    now: Fault, before: list[Fault], retries: int
) -> None:
    if isinstance(policy.decide(now, before, retries), policy.Prune):
        own = {Kind.TIMEOUT, Kind.DIVERGED, Kind.INFEASIBLE}
        assert now.kind in {*own, Kind.DEVICE_OOM, Kind.HOST_OOM}


@given(st.lists(st.sampled_from(["a", "b"]), max_size=6), st.booleans())
def test_the_run_halts_only_when_the_first_trials_fail_alike(
    signatures: list[str], succeeded: bool
) -> None:
    same = len(signatures) >= 3 and len(set(signatures)) == 1
    assert policy.should_halt(signatures, succeeded) is (same and not succeeded)


def test_ledger_has_every_attempt() -> None:
    segv = {"fault": vars(SEGV), "attempt": 2}
    records = [{"launch": 1}, {"stopped": 1}, {"launch": 2}, segv, segv, {"launch": 3}]
    attempts, by_attempt = attempts_and_faults(records)
    assert attempts == 3
    assert {n: f.kind for n, f in by_attempt.items()} == {
        2: Kind.SIGNAL,
        3: Kind.COORDINATOR_LOST,
    }


def test_the_document_names_every_kind() -> None:
    text = (ROOT / "docs" / "faults.md").read_text()
    assert [kind for kind in Kind if f"| {kind} |" not in text] == []
