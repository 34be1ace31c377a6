"""State of a trial during a run, and of its attempt that runs in a cell."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any

from optuna.distributions import distribution_to_json, json_to_distribution
from optuna.trial import Trial

from supermax.engine.jobs.policy import (
    Decision,
    Replan,
    Retry,
    describe_decision,
    ledger_fields,
)
from supermax.engine.jobs.provision import Provision
from supermax.engine.processes.executor import Cell
from supermax.engine.processes.protocol import Exited
from supermax.engine.storage.logs import tail_of
from supermax.engine.storage.run_folder import LedgerEntry, TrialFolder
from supermax.engine.trial.faults import Culprit, Evidence, Fault, KilledFor, Kind, classify
from supermax.engine.trial.outcome import INTERRUPTED, Outcome

_REPLANNED_BEFORE = "split further"
"""Beginning of a decision's text in ledgers of earlier versions."""


@dataclass
class Job:
    """State of one Optuna trial during a run: attempts, faults, memory plan.

    `attempt` counts its launches, those of earlier runs included; `faults` are those that were
    decided on so far."""

    trial: Trial
    folder: TrialFolder
    attempt: int = 0
    elsewhere: int = 0
    """Number of its first faults that happened in another run, which has offered it to this
    one, or on another machine. They do not count here."""
    of_other_run: bool = False
    """True: it was taken over from another run, to which its attempts so far belong."""
    faults: list[Fault] = field(default_factory=list)
    last_fault: Fault | None = None  # of the last attempt of an earlier run, not dealt with yet
    retried_attempt: int = 0  # the attempt after which an earlier run decided to try again
    not_before: float = 0.0
    needs_fresh_cell: bool = False
    blocking_launches: bool = False  # the next attempt gets CUDA_LAUNCH_BLOCKING=1
    relative_params_saved: bool = False
    provision: Provision | None = None
    failed_plans: list[dict[str, object]] = field(default_factory=list)
    """Plans with which it ran out of memory."""
    spent: float = 0.0
    """Seconds of the attempts before this one."""
    source: TrialFolder | None = None
    """Folder of the run from which the trial was taken over; None: it was not, or cannot be
    read."""
    failed_on: frozenset[str] = frozenset()
    """GPUs or machines on which it failed in this run, maybe because of them."""
    machine: str | None = None
    """Machine of the cluster that ran its last attempt; None: this one, or none in this run."""
    configured: bool = False
    """True: its parameters have been sampled before it has a cell."""
    result_of: int | None = None
    """Number of the trial whose result it has; None: its own."""
    paused: bool = False
    """True: it waits at a rung of a `Promotion`."""
    filler: bool = False
    """True: it continues only because a worker has nothing else to do."""

    @property
    def number(self) -> int:
        return int(self.trial.number)

    @property
    def is_new(self) -> bool:
        """True: it has never been launched."""
        return self.attempt == 0

    def outcome(self) -> Outcome | None:
        """Return the outcome that the last attempt has written; None: there is none, or a retry
        was already decided on."""
        outcome = self.folder.outcome()
        if outcome is None or outcome.attempt != self.attempt or outcome.state == INTERRUPTED:
            return None
        return outcome if self.attempt != self.retried_attempt else None

    def launch(self, cell: Cell) -> None:
        """Count the launch on disk before it happens."""
        self.attempt += 1
        self.machine = cell.machine
        self.paused = False
        line: LedgerEntry = {"launch": self.attempt, "cell": cell.number}
        if self.provision is not None:
            kept = self.provision
            line |= {"reserved": kept.reserve, "plan": kept.plan, "where": kept.where}
            line |= {"why": kept.why} if kept.why else {}
        self.folder.append(line)

    def record_fault(self, fault: Fault, decision: Decision, evidence: Evidence) -> str:
        """Write the fault and the decision to the ledger. Return the decision as text for
        people."""
        self.faults.append(fault)
        text = describe_decision(decision, ran=self.attempt > 0)
        raised = evidence.outcome.raised if evidence.outcome else None
        memory = raised.shortage if raised else None
        self.folder.append(
            {
                "fault": asdict(fault),
                "attempt": self.attempt,
                "decision": text,
                **ledger_fields(decision),
                "exit_code": evidence.exit_code,
                "signal": evidence.signum,
                "seconds": round(evidence.seconds, 3),
                "last_step": evidence.last_step,
                "peak_rss": evidence.peak_rss,
                "kernel_oom_kills": evidence.oom_kills,
                "memory": asdict(memory) if memory else None,
                "traceback": raised.traceback if raised else None,
                "log_tail": evidence.log_tail,
            }
        )
        return text

    def discard_plan(self) -> None:
        """Note that its memory plan was too large, and drop the plan."""
        if self.provision is not None:
            self.failed_plans.append(self.provision.plan)
        self.provision = None

    def prepare_retry(self, decision: Retry | Replan, seconds: float) -> None:
        """Prepare another attempt, after one that took `seconds`."""
        self.spent += seconds
        self.needs_fresh_cell = True
        if isinstance(decision, Retry):
            self.not_before = time.monotonic() + decision.delay
            self.elsewhere = len(self.faults) if decision.elsewhere else self.elsewhere
            self.blocking_launches |= decision.blocking_launches

    def take_over(self, attempts: int, *, offered: bool) -> None:
        """Continue a trial of another run, after `attempts` in all: those that are not in the
        ledger ran in folders that cannot be read. `offered`: it failed there, and was offered."""
        self.reload()
        if self.attempt < attempts:
            self.folder.append({"elsewhere": attempts, "offered": offered})
            self.reload()
        self.needs_fresh_cell = True

    def record_unclean(self, why: str) -> None:
        """Note why the attempt left its cell in a state in which no other trial should start."""
        self.folder.append({"unclean": why, "attempt": self.attempt})

    def record_stop(self) -> None:
        """Note that the end of the run ended the attempt. It does not count as a fault."""
        self.folder.append({"stopped": self.attempt})

    def record_pause(self, seconds: float) -> None:
        """Note that the trial waits at a rung, after an attempt that took `seconds`."""
        self.paused = True
        self.spent += seconds
        self.folder.append({"stopped": self.attempt, "paused": True})

    def save_relative_params(self) -> None:
        """Write the parameters to disk that the sampler drew jointly and the objective has not
        asked for yet."""
        space, params = self.trial.relative_search_space, self.trial._relative_params
        if self.relative_params_saved or not space or params is None:
            return
        self.relative_params_saved = True
        try:
            drawn = {
                name: (distribution_to_json(space[name]), space[name].to_internal_repr(value))
                for name, value in params.items()
            }
        except TypeError:  # choices that only an in-memory study takes, which has no next run
            return
        self.folder.write_relative_params(drawn)

    def reload(self) -> None:
        """Read attempts, faults and drawn parameters of earlier runs from the folder."""
        records = self.folder.records()
        self.attempt, faults = attempts_and_faults(records)
        self.failed_plans = ran_out_of_memory(records)
        self.spent = time_spent(records)
        self.paused = bool(records) and records[-1].get("paused", False)
        self.provision = last_provision(records)
        decided = decision_about(records, self.attempt)
        if decided.get("again"):
            self.retried_attempt = self.attempt
            self.blocking_launches = bool(decided.get("blocking"))
        else:
            self.last_fault = faults.pop(self.attempt, None)
        self.faults = list(faults.values())
        offered = [r["attempt"] for r in records if "fault" in r and _decided(r).get("offered")]
        self.elsewhere = sum(attempt <= max(offered, default=0) for attempt in faults)
        if (drawn := self.folder.relative_params()) is not None:
            space = {name: json_to_distribution(text) for name, (text, _) in drawn.items()}
            self.trial.relative_search_space = space
            self.trial._relative_params = {
                name: space[name].to_external_repr(value) for name, (_, value) in drawn.items()
            }
            self.relative_params_saved = True
        self.needs_fresh_cell = self.attempt > 0


@dataclass
class Attempt:
    """A job that runs in a cell."""

    job: Job
    cell: Cell
    started: float = field(default_factory=time.monotonic)
    last_message: float = field(default_factory=time.monotonic)
    last_step: int | None = None
    pending_signals: list[tuple[float, int]] = field(default_factory=list)
    """Signals to send, each with its moment of time.monotonic()."""
    kill_reason: KilledFor = KilledFor.STOP  # fault of the attempt if it dies of these
    killed_for: KilledFor | None = None  # set once a signal was sent
    limit: float | None = None
    first_step: int | None = None
    pausing: bool = False
    """True: it was told to pause."""

    def evidence(
        self,
        outcome: Outcome | None,
        directions: int,
        exit: Exited | None = None,
        lost_node: str | None = None,
    ) -> Evidence:
        """Return what is known about its end. `exit`: of the cell, if it has ended."""
        peak = outcome.peak_rss if outcome else (exit.max_rss if exit else None)
        return Evidence(
            outcome=outcome,
            exit_code=exit.code if exit else None,
            signum=exit.signum if exit else None,
            killed_for=self.killed_for,
            oom_kills=exit.oom_kills if exit else 0,
            lost_node=lost_node,
            fresh_cell=self.cell.trials <= 1,
            directions=directions,
            seconds=time.monotonic() - self.started,
            limit=self.limit,
            last_step=self.last_step,
            peak_rss=peak,
            log_tail=tail_of(self.job.folder.log) if outcome is None else "",
        )


def attempts_and_faults(records: list[LedgerEntry]) -> tuple[int, dict[int, Fault]]:
    """Return the number of attempts in a ledger, and the fault that each ended with. A launch
    without a later entry means that the coordinator died while the attempt ran."""
    attempts = 0
    faults: dict[int, Fault] = {}
    for record in records:
        if "launch" in record:
            attempts = record["launch"]
            faults[attempts] = lost_coordinator()
        elif "fault" in record:
            faults[record["attempt"]] = fault_from(record["fault"])
        elif "stopped" in record:
            faults.pop(record["stopped"], None)
        elif "elsewhere" in record:
            unknown = range(attempts + 1, record["elsewhere"] + 1)
            faults |= {} if record["offered"] else dict.fromkeys(unknown, lost_coordinator())
            attempts = max(attempts, record["elsewhere"])
    return attempts, faults


def time_spent(records: list[LedgerEntry]) -> float:
    """Return the seconds of the attempts that were paused, or followed by another one after a
    fault. The timestamp of a fault may be that of a later run, which detected it."""
    began = {r["launch"]: r["at"] for r in records if "launch" in r and "at" in r}
    paused = [r["at"] - began[r["stopped"]] for r in records if r.get("stopped") in began]
    again = [r["seconds"] for r in records if "fault" in r and _decided(r).get("again")]
    return float(sum(max(0.0, seconds) for seconds in (*paused, *again)))


def ran_out_of_memory(records: list[LedgerEntry]) -> list[dict[str, object]]:
    """Return the plans of those attempts in a ledger that ran out of memory."""
    plans = {r["launch"]: r["plan"] for r in records if "launch" in r and "plan" in r}
    short = {r["attempt"]: None for r in records if "fault" in r and _decided(r).get("replanned")}
    return [plans[attempt] for attempt in short if attempt in plans]


def decision_about(records: list[LedgerEntry], attempt: int) -> LedgerEntry:
    """Return the decision on an attempt in a ledger; {}: there is none yet."""
    ends = [r for r in records if "fault" in r and r["attempt"] == attempt]
    return _decided(ends[-1]) if ends else {}


def _decided(record: LedgerEntry) -> LedgerEntry:
    """Return the decision of a ledger entry as data. Ledgers written before the fields existed
    have it as text only."""
    if "again" in record:
        return record
    text = str(record.get("decision") or "")
    replanned = text.startswith(_REPLANNED_BEFORE)
    again = replanned or text.startswith("retry")
    return {"again": again, "replanned": replanned, "blocking": "blocking launches" in text}


def last_provision(records: list[LedgerEntry]) -> Provision | None:
    """Return the memory reserved for the last attempt in a ledger."""
    launches = [record for record in records if "launch" in record]
    if not launches or "plan" not in launches[-1]:
        return None
    last = launches[-1]
    return Provision(last.get("reserved", 0), last["plan"], last.get("where", "device"))


def lost_coordinator() -> Fault:
    fault = classify(Evidence(coordinator_lost=True))
    assert fault is not None
    return fault


def fault_from(fields: dict[str, Any]) -> Fault:
    return Fault(**{**fields, "kind": Kind(fields["kind"]), "culprit": Culprit(fields["culprit"])})
