"""Leases of trials on a database server: which run owns a RUNNING trial, and until when.

A run that cannot finish a trial may offer it to the others, once: they may take it at once.
A run renews its own row from its loop. Once the row has expired, another run may take over the
trials: that raises their tokens. Every write to a trial checks the token in the same transaction,
so a run that was only slow cannot write to a trial that it has lost. All times are those of the
database: the clocks of the machines do not matter.
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import sqlalchemy.event
import sqlalchemy.exc
from optuna.storages import RDBStorage
from optuna.storages._rdb import models
from optuna.trial import TrialState
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.orm import Session

from supermax._util.attributes import CLAIM, TAKEN_FROM
from supermax.engine.storage.database_time import DatabaseTime
from supermax.engine.storage.lease_tables import (
    ENDED,
    LEASES,
    OFFERED,
    OWN,
    PROTOCOL,
    QUARANTINED,
    RUNNING,
    RUNS,
    SECOND_HAND,
    RunInfo,
    count_of,
    rows_of,
    session_of,
)
from supermax.errors import EnvironmentFault

FIRST_TOKEN = 1
_OTHER = RUNS.alias("other")
_SHORTEST_IDLE_TIME = 5  # seconds; a busy process pauses for one now and then


class LeaseLost(Exception):
    """Error: another run has taken the trial over, or its lease was ended."""

    def __init__(self, trial_id: int) -> None:
        super().__init__(f"The lease of trial id {trial_id} is lost.")
        self.trial_id = trial_id


class FolderInUse(Exception):
    """Error: a process on another machine works in the folder of this run."""

    def __init__(self, row: RunInfo) -> None:
        super().__init__(f"{row.run_dir} is in use on {row.host}.")
        self.row = row


class RunSuperseded(EnvironmentFault):
    """Error: a later process has continued this run, in the same run folder."""


class TargetReached(Exception):
    """Error: with the trials that are running, the study has as many as it shall get."""


@dataclass(frozen=True)
class Expired:
    """Trial whose run has not renewed its lease, or has offered it to others."""

    trial_id: int
    run: str
    token: int
    takeovers: int
    """Runs that were lost while they had the trial."""
    attempts: int
    """Number of its last attempt."""
    offered: bool
    run_dir: str
    host: str


@dataclass(frozen=True)
class Elsewhere:
    """Part of the other runs in a study."""

    trials: int
    """Trials that they have leased, or that this run has offered to them."""
    workers: int
    """Workers of those that are alive."""


class Leases:
    """Leases of one run on one study. `seconds`: time after the last renewal at which another run
    may take over. `target`: finished trials that the study shall hold; None: no limit."""

    def __init__(
        self, backend: RDBStorage, study_id: int, run: str, seconds: float, target: int | None
    ) -> None:
        self.run = run
        self.seconds = seconds
        self._backend = backend
        self._study_id = study_id
        self._target = target
        self._epoch = 0  # set once the run is registered
        self.tokens: dict[int, int] = {}
        """Trial id → token, of the trials that this run owns."""
        self.second_hand: set[int] = set()
        """Ids of trials that another run has offered, and this one has taken."""
        self._current = threading.local()  # trial that the transaction of this thread writes to

    # Runs.

    def register(
        self,
        run_dir: Path,
        workers: int,
        version: str,
        check: Callable[[list[RunInfo]], None] = lambda _: None,
    ) -> list[RunInfo]:
        """Write the row of this run; return the rows of the other runs. An earlier process of this
        run can write nothing from then on: the epoch is raised, and trials that the run still owns
        get new tokens.

        `check` gets the rows of the other runs first, and may raise. Raise FolderInUse while the
        lease of a process on another machine has not expired: the lock of the run folder may not
        be seen there."""
        with session_of(self._backend) as session:
            self.lock(session)
            rows = rows_of(session, self._study_id)
            others = [row for row in rows if row.run != self.run]
            check(others)
            for row in rows:
                if row.run == self.run and row.alive and row.host != platform.node():
                    raise FolderInUse(row)
            where = RUNS.c.run == self.run
            epoch = 1 + (session.execute(sa.select(RUNS.c.epoch).where(where)).scalar() or 0)
            now = DatabaseTime()
            values: dict[str, Any] = {
                "host": platform.node(),
                "pid": os.getpid(),
                "run_dir": str(run_dir),
                "workers": workers,
                "version": version,
                "protocol": PROTOCOL,
                "state": RUNNING,
                "note": "",
                "epoch": epoch,
                "started_at": now,
                "seen_at": now,
                "expires_at": now + self.seconds,
            }
            if not count_of(session.execute(sa.update(RUNS).where(where).values(values))):
                keys = {"run": self.run, "study_id": self._study_id}
                session.execute(sa.insert(RUNS).values(values | keys))
            own = LEASES.c.run == self.run
            session.execute(sa.update(LEASES).where(own).values(token=LEASES.c.token + 1))
            self.tokens = self._owned(session)
            taken = sa.select(LEASES.c.trial_id).where(own, LEASES.c.offer == SECOND_HAND)
            self.second_hand = set(session.execute(taken).scalars())
        self._epoch = epoch
        return others

    @property
    def _own_row(self) -> sa.ColumnElement[bool]:
        """Condition for the row of this run, as long as no later process has continued it."""
        return sa.and_(RUNS.c.run == self.run, RUNS.c.epoch == self._epoch)

    def _check_epoch(self, session: Session) -> None:
        """Raise RunSuperseded if a later process has continued this run, KeyError if the study was
        deleted, and the row of this run with it."""
        columns = (RUNS.c.epoch, RUNS.c.pid, RUNS.c.host, RUNS.c.run_dir)
        row = session.execute(sa.select(*columns).where(RUNS.c.run == self.run)).first()
        if row is None:
            raise KeyError(self.run)
        if row.epoch != self._epoch:
            raise RunSuperseded(
                f"Process {row.pid} on {row.host} has continued this run in the same run folder, "
                f"{row.run_dir}: this process has ended its trials and writes nothing more. To "
                f"run both, give each a folder of its own (run_dir, --run-dir)."
            )

    def renew(self) -> set[int]:
        """Renew the leases of this run; return the ids of trials that it has lost."""
        with session_of(self._backend) as session:
            now = DatabaseTime()
            values = {"seen_at": now, "expires_at": now + self.seconds}
            if not count_of(session.execute(sa.update(RUNS).where(self._own_row).values(values))):
                self._check_epoch(session)
            owned = self._owned(session)
        lost = {trial for trial, token in self.tokens.items() if owned.get(trial) != token}
        for trial in lost:
            del self.tokens[trial]
        return lost

    def note(self, text: str) -> None:
        """Write what is unusual about this run, for `supermax status`."""
        with session_of(self._backend) as session:
            session.execute(sa.update(RUNS).where(self._own_row).values(note=text))

    def end(self, *, release: bool, quarantined: str | None = None) -> None:
        """Write the end of this run. `release`: others may take over its trials at once, instead
        of when its leases expire. `quarantined`: why it was."""
        values: dict[str, Any] = {"state": ENDED, "seen_at": DatabaseTime()}
        if quarantined is not None:
            values |= {"state": QUARANTINED, "note": quarantined}
        if release:
            values["expires_at"] = DatabaseTime()
        with session_of(self._backend) as session:
            session.execute(sa.update(RUNS).where(self._own_row).values(values))

    def _owned(self, session: Session) -> dict[int, int]:
        query = sa.select(LEASES.c.trial_id, LEASES.c.token).where(
            LEASES.c.run == self.run, LEASES.c.offer != OFFERED
        )
        return {row.trial_id: row.token for row in session.execute(query)}

    # Taking trials.

    def expired(self) -> list[Expired]:
        """Return the trials of this study to take: those of runs that have not renewed their
        leases, and those that were offered. A trial that failed on a machine is for runs on other
        machines, if there are any; its own run takes it back when no other is left."""
        columns = (
            LEASES.c.trial_id,
            LEASES.c.run,
            LEASES.c.token,
            LEASES.c.takeovers,
            LEASES.c.attempts,
            LEASES.c.offer == OFFERED,
            RUNS.c.run_dir,
            RUNS.c.host,
        )
        own, offered = LEASES.c.run == self.run, LEASES.c.offer == OFFERED
        here = platform.node()
        suits = sa.or_(
            sa.and_(own, ~self._others()),
            sa.and_(~own, sa.or_(RUNS.c.host != here, ~self._others(_OTHER.c.host != here))),
        )
        gone = sa.and_(~own, RUNS.c.expires_at < DatabaseTime())
        with session_of(self._backend) as session:
            found = session.execute(
                self._leases(*columns)
                .join(RUNS, RUNS.c.run == LEASES.c.run)
                .where(sa.or_(gone, sa.and_(offered, suits)))
                .order_by(LEASES.c.trial_id)
            )
            return [Expired(*row) for row in found]

    def count_elsewhere(self) -> Elsewhere:
        """Return the trials and workers of the other runs on the study."""
        elsewhere = sa.or_(LEASES.c.run != self.run, LEASES.c.offer == OFFERED)
        leased = self._leases(sa.func.count()).where(elsewhere)
        workers = sa.select(sa.func.sum(_OTHER.c.workers)).where(self._other_is_alive())
        query = sa.select(leased.scalar_subquery(), workers.scalar_subquery())
        with session_of(self._backend) as session:
            trials, found = session.execute(query).one()
        return Elsewhere(int(trials), int(found or 0))

    def _leases(self, *columns: Any) -> sa.Select[Any]:
        """Return the query for the leases of this study. Another program may have finished a
        trial, which leaves its lease: it does not count."""
        trial = models.TrialModel
        return (
            sa.select(*columns)
            .select_from(LEASES)
            .join(trial, trial.trial_id == LEASES.c.trial_id)
            .where(LEASES.c.study_id == self._study_id, trial.state == TrialState.RUNNING)
        )

    def _others(self, *conditions: sa.ColumnElement[bool]) -> sa.Exists:
        """Return the condition that another run on the study is alive."""
        return sa.exists().where(self._other_is_alive(), *conditions)

    def _other_is_alive(self) -> sa.ColumnElement[bool]:
        """Return the condition for rows of other runs on the study that are alive."""
        return sa.and_(
            _OTHER.c.study_id == self._study_id,
            _OTHER.c.run != self.run,
            _OTHER.c.state == RUNNING,
            _OTHER.c.expires_at > DatabaseTime(),
        )

    def has_others(self) -> bool:
        """Return whether another run on the study is alive."""
        with session_of(self._backend) as session:
            return bool(session.execute(sa.select(self._others())).scalar_one())

    def offer(self, trial_id: int) -> None:
        """Offer a trial of this run to the others; raise LeaseLost if it is this run's no more."""
        token = self.tokens.get(trial_id, 0)
        mine = (LEASES.c.trial_id == trial_id, LEASES.c.run == self.run)
        with session_of(self._backend) as session:
            change = sa.update(LEASES).where(*mine, LEASES.c.token == token)
            session.execute(change.values(offer=OFFERED, token=token + 1))
            # Not counted: an earlier attempt at this call may have succeeded.
            query = sa.select(LEASES.c.trial_id).where(
                *mine, LEASES.c.token == token + 1, LEASES.c.offer == OFFERED
            )
            offered = session.execute(query).first() is not None
        self.tokens.pop(trial_id, None)
        if not offered:
            raise LeaseLost(trial_id)

    def count_attempt(self, trial_id: int, attempt: int) -> None:
        """Write the number of a trial's attempt; raise LeaseLost if it is this run's no more."""
        mine = (LEASES.c.trial_id == trial_id, LEASES.c.token == self.tokens.get(trial_id, 0))
        with session_of(self._backend) as session:
            change = sa.update(LEASES).where(*mine).values(attempts=attempt)
            if not count_of(session.execute(change)):
                self._check_epoch(session)
                raise LeaseLost(trial_id)

    def take_over(self, lost: Expired) -> bool:
        """Take an expired or offered trial; return False if another run was faster, or its own run
        is back."""
        alive = sa.exists().where(RUNS.c.run == lost.run, RUNS.c.expires_at >= DatabaseTime())
        change = {"offer": SECOND_HAND} if lost.offered else {"takeovers": lost.takeovers + 1}
        with session_of(self._backend) as session:
            taken = session.execute(
                sa.update(LEASES)
                .where(
                    LEASES.c.trial_id == lost.trial_id,
                    LEASES.c.run == lost.run,
                    LEASES.c.token == lost.token,
                    sa.or_(LEASES.c.offer == OFFERED, ~alive),
                    sa.exists().where(self._own_row),
                )
                .values(run=self.run, token=lost.token + 1, **change)
            )
            if not count_of(taken):
                self._check_epoch(session)
                # With the next token of this run, an earlier attempt at this call has succeeded.
                held = self._owned(session).get(lost.trial_id) == lost.token + 1
            elif held := self._is_running(session, lost.trial_id):
                taken_from = f"{TAKEN_FROM}{lost.takeovers + 1}"
                for key, run in ((CLAIM, self.run), (taken_from, lost.run)):
                    self._backend._set_trial_attr_without_commit(
                        session, models.TrialSystemAttributeModel, lost.trial_id, key, run
                    )
        if held:
            self.tokens[lost.trial_id] = lost.token + 1
            if lost.offered:
                self.second_hand.add(lost.trial_id)
        return held

    def _is_running(self, session: Session, trial_id: int) -> bool:
        """Return whether a trial is RUNNING, and lock its row."""
        trial: Any = models.TrialModel.find_or_raise_by_id(trial_id, session, for_update=True)
        return bool(trial.state is TrialState.RUNNING)

    def lock(self, session: Session) -> None:
        """Lock the study's row. Every trial becomes RUNNING under this lock."""
        models.StudyModel.find_or_raise_by_id(self._study_id, session, for_update=True)

    def may_add(self, session: Session, others: int) -> bool:
        """Return whether a trial may become RUNNING, beside `others` of any state. These are
        counted, which takes long in a long study, only if they may be enough."""
        if self._target is None or others < self._target:
            return True
        trial = models.TrialModel
        finished = sa.select(sa.func.count()).where(
            trial.study_id == self._study_id,
            trial.state.in_([state for state in TrialState if state.is_finished()]),
        )
        leased = self._leases(sa.func.count())
        # In one statement: a trial that is finished meanwhile is counted once.
        counts = finished.scalar_subquery() + leased.scalar_subquery()
        return int(session.execute(sa.select(counts)).scalar_one()) < self._target

    def add(self, session: Session, trial_id: int) -> None:
        """Write the lease of a trial in the transaction that makes it RUNNING."""
        row = {"trial_id": trial_id, "study_id": self._study_id, "run": self.run}
        values = row | {"token": FIRST_TOKEN, "takeovers": 0, "offer": OWN, "attempts": 1}
        # In one statement with the check of the epoch: every trial that is started waits for it.
        source = sa.select(*map(sa.literal, values.values())).where(self._own_row)
        insert = sa.insert(LEASES).from_select([*values], source)
        if not count_of(session.execute(insert.execution_options(preserve_rowcount=True))):
            self._check_epoch(session)

    def adopt(self, trial_id: int) -> bool:
        """Lease a trial that has this run's claim but no lease, as an earlier version leaves it;
        return False if it was finished, or leased, meanwhile."""
        with session_of(self._backend) as session:
            self.lock(session)
            taken = sa.select(LEASES.c.run).where(LEASES.c.trial_id == trial_id)
            if not self._is_running(session, trial_id) or session.execute(taken).first():
                return False
            self.add(session, trial_id)
        self.tokens[trial_id] = FIRST_TOKEN
        return True

    # Writing.

    @contextlib.contextmanager
    def writing(self, trial_id: int, *, ends: bool = False) -> Iterator[None]:
        """Check the token of the trial in the transaction that this thread commits inside the
        block; raise LeaseLost instead of the commit. `ends`: the transaction finishes the trial,
        and removes its lease."""
        if trial_id not in self.tokens:
            raise LeaseLost(trial_id)
        outer = getattr(self._current, "write", None)
        self._current.write = (trial_id, self.tokens[trial_id], ends)
        try:
            yield
        finally:
            self._current.write = outer

    def _check(self, session: Session) -> None:
        """Called by SQLAlchemy before every commit on the storage."""
        if (write := getattr(self._current, "write", None)) is None:
            return
        trial_id, token, ends = write
        mine = (LEASES.c.trial_id == trial_id, LEASES.c.token == token)
        if ends:
            held = bool(count_of(session.execute(sa.delete(LEASES).where(*mine))))
        else:
            query = sa.select(LEASES.c.token).where(*mine).with_for_update(read=True)
            held = session.execute(query).first() is not None
        if not held:
            self._check_epoch(session)
            raise LeaseLost(trial_id)

    @contextlib.contextmanager
    def enforced(self) -> Iterator[None]:
        """Check writes inside this block."""
        sessions, engine = self._backend.scoped_session, self._backend.engine
        sqlalchemy.event.listen(sessions, "before_commit", self._check)
        sqlalchemy.event.listen(engine, "connect", self._limit_idle_time)
        engine.dispose()  # existing connections have no limit
        try:
            yield
        finally:
            sqlalchemy.event.remove(sessions, "before_commit", self._check)
            sqlalchemy.event.remove(engine, "connect", self._limit_idle_time)

    def _limit_idle_time(self, connection: DBAPIConnection, _: object) -> None:
        """Have the server end a transaction of a process that was stopped in the middle of it:
        until then its locks would stop all other runs."""
        seconds = max(_SHORTEST_IDLE_TIME, round(self.seconds / 2))
        dialect = self._backend.engine.dialect
        if dialect.name == "postgresql":
            statement = f"SET idle_in_transaction_session_timeout = {seconds * 1000}"
        elif getattr(dialect, "is_mariadb", False):  # also behind a URL mysql://…
            statement = f"SET SESSION idle_transaction_timeout = {seconds}"
        else:  # MySQL limits all idle time; the loop renews the lease more often
            statement = f"SET SESSION wait_timeout = {2 * seconds}"
        cursor = connection.cursor()
        cursor.execute(statement)
        cursor.close()
        connection.commit()
