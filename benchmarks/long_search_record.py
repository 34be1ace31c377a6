"""Trials and attempts of a long search, read from its studies and ledgers, without torch.

folder ──trials_of()──▶ Trial ──▶ Attempt ──▶ shortage, with its cause
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from long_search_files import AGENTS, Line, LongSearchFolder, lines

from supermax._util.attributes import DATA, UNTRAINED
from supermax.engine.trial.faults import Kind
from supermax.engine.trial.oom import OomDetails
from supermax.results.records import AttemptRecord, TrialRecord, read_record
from supermax.studies import make_storage

SHORTAGES = {str(kind) for kind in (Kind.DEVICE_OOM, Kind.HOST_OOM, Kind.FRAGMENTED)}
_CONSTRAINT = "supermax:"
_DIVERGED = Kind.DIVERGED.name.lower()
COMPLETED, PRUNED, INTERRUPTED = "completed", "pruned by the pruner", "interrupted"
FRAGMENTATION, TOO_LOW, NEIGHBOURS = "fragmentation", "estimate too low", "neighbours"


@dataclass(frozen=True)
class Attempt:
    started: float
    """Unix time."""
    ended: float | None
    """Unix time; None: its piece was killed, so that nobody noted it."""
    interrupted: bool
    """True: the end of a turn or a piece ended it."""
    shortage: Line | None = None
    """Details of an out-of-memory error; None: there was none."""


@dataclass(frozen=True)
class Trial:
    agent: str
    number: int
    encoders: tuple[str, ...]
    """Names of its encoders: two of joint, which may be the same."""
    state: str
    reason: str
    ended: float | None
    """Unix time; None: it is not finished."""
    training_from: float | None
    """Unix time of its first training step, known for complete trials; later than the true one by
    the seconds in which its weights were written."""
    samples: int
    """Training examples that it has read, over all epochs that it has reported."""
    attempts: tuple[Attempt, ...]

    @property
    def finished(self) -> bool:
        return self.reason != INTERRUPTED

    @property
    def by_itself(self) -> bool:
        """True: it completed, was pruned for its values, or diverged."""
        return self.reason in (COMPLETED, PRUNED, _DIVERGED)


def trials_of(files: LongSearchFolder) -> list[Trial]:
    """Return the trials of all studies that exist."""
    found: list[Trial] = []
    for agent in AGENTS:
        if files.study(agent).exists():
            found += _trials(files, agent)
    return found


def _trials(files: LongSearchFolder, agent: str) -> Iterator[Trial]:
    storage = make_storage(str(files.study(agent)))
    if agent not in optuna.get_all_study_names(storage):  # its first turn ended before it began
        return
    record = read_record(optuna.load_study(study_name=agent, storage=storage))
    rows = _training_rows(record.note(DATA))
    for trial in record.trials:
        if trial.state == "WAITING":
            continue
        yield trial_of(agent, trial, rows)


def _training_rows(data: Any) -> int:
    return int(data["splits"]["train"]["rows"]) if data else 0


def trial_of(agent: str, trial: TrialRecord, rows: int) -> Trial:
    names = [trial.params.get(f"{part}.name") for part in ("encoder", "evidence_encoder")]
    encoders = tuple(str(name).removeprefix(UNTRAINED) for name in names if name)
    took, ended = trial.result.get("seconds"), trial.ended
    began = None if took is None or ended is None or trial.state != "COMPLETE" else ended - took
    return Trial(
        agent,
        trial.number,
        encoders,
        trial.state,
        reason_of(trial),
        ended,
        began,
        len(trial.curve) * rows,
        tuple(_attempt(trial, attempt, encoders) for attempt in trial.attempts),
    )


def reason_of(trial: TrialRecord) -> str:
    """Return why a trial ended, or that it was interrupted."""
    if trial.state == "COMPLETE":
        return COMPLETED
    if trial.state == "PRUNED":
        broken = [name.removeprefix(_CONSTRAINT) for name in trial.broken]
        return ", ".join(broken) or PRUNED
    if trial.state == "FAIL":
        return trial.faults[-1].kind if trial.faults else "unknown"
    return INTERRUPTED


def _attempt(trial: TrialRecord, attempt: AttemptRecord, encoders: Sequence[str]) -> Attempt:
    fault = attempt.fault
    lost = fault is not None and fault.kind == Kind.COORDINATOR_LOST
    shortage = None
    if fault is not None and fault.kind in SHORTAGES:
        plan, memory = attempt.plan or {}, fault.memory
        shortage = {
            "trial": trial.number,
            "attempt": attempt.number,
            "encoder": " + ".join(encoders),
            "effective_batch": trial.params.get("train.effective_batch"),
            "micro_batch": plan.get("micro_batch"),
            "checkpointing": plan.get("checkpoint_activations"),
            "length": trial.params.get("text.max_length"),
            "estimate": plan.get("memory"),
            "peak": memory.needed if memory else None,
            "reserved": memory.reserved if memory else None,
            "kind": fault.kind,
            "cause": cause_of(fault.kind, memory),
            "decision": fault.decision,
            "message": fault.message[:300],
        }
    interrupted = lost or attempt.how in ("stopped", "open")
    return Attempt(attempt.started, attempt.ended, interrupted, shortage)


def cause_of(kind: str, memory: OomDetails | None) -> str:
    """Return the cause of a shortage by the memory that the product recorded when it happened.

    The limit of an attempt is its estimate. An attempt that would have stayed within it found the
    device full; one that needed no more, but held more, lost the rest to fragmentation.
    """
    if kind == Kind.FRAGMENTED:
        return FRAGMENTATION
    if memory is None or memory.limit is None:
        return "unknown"
    if memory.needed > memory.limit:
        return TOO_LOW
    held = memory.reserved + memory.requested > memory.limit
    return FRAGMENTATION if held else NEIGHBOURS


def first_steps(files: LongSearchFolder, trials: list[Trial]) -> list[tuple[Line, float | None]]:
    """Return each turn with the moment of its first training step; without a complete trial, of
    its first launch; None: nothing was launched."""
    found = []
    for turn in lines(files.turns):
        own = [trial for trial in trials if trial.agent == turn["agent"]]
        trained = [trial.training_from for trial in own if trial.training_from is not None]
        launched = [attempt.started for trial in own for attempt in trial.attempts]
        found.append((turn, _first(trained, turn) or _first(launched, turn)))
    return found


def _first(moments: list[float], turn: Line) -> float | None:
    inside = (moment for moment in moments if turn["started"] <= moment < turn["ended"])
    return min(inside, default=None)
