"""Tables of the runs on a study and of their leases, beside those of Optuna.

    supermax_runs      one row per run: machine, process, run folder, end of its lease, epoch
    supermax_leases    one row per RUNNING trial: its run, and a fencing token

Each start of a run raises its epoch: an earlier process of the run can write nothing more.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy as sa
import sqlalchemy.exc
from optuna.storages import RDBStorage
from optuna.storages._rdb import models
from optuna.storages._rdb.storage import _create_scoped_session
from sqlalchemy.orm import Session

from supermax.engine.storage.database_time import DatabaseTime

PROTOCOL = 2
"""Version of the tables and of the rules for them. Runs with different ones share no study."""
RUNNING, ENDED, QUARANTINED = "running", "ended", "quarantined"
OWN, OFFERED, SECOND_HAND = 0, 1, 2
"""Values of the column `offer`: the trial was never offered, waits for a run that takes it, or was
taken after an offer. Its run cannot write to a trial that it has offered."""
_metadata = sa.MetaData()
RUNS = sa.Table(
    "supermax_runs",
    _metadata,
    sa.Column("run", sa.String(32), primary_key=True),
    sa.Column(
        "study_id",
        sa.ForeignKey(models.StudyModel.study_id, ondelete="CASCADE"),
        nullable=False,
        index=True,
    ),
    sa.Column("host", sa.String(255), nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("run_dir", sa.Text, nullable=False),
    sa.Column("workers", sa.Integer, nullable=False),
    sa.Column("version", sa.String(64), nullable=False),
    sa.Column("protocol", sa.Integer, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False, server_default="0"),
    sa.Column("started_at", sa.Float(53), nullable=False),
    sa.Column("seen_at", sa.Float(53), nullable=False),
    sa.Column("expires_at", sa.Float(53), nullable=False),
)
LEASES = sa.Table(
    "supermax_leases",
    _metadata,
    sa.Column(
        "trial_id",
        sa.ForeignKey(models.TrialModel.trial_id, ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
    ),
    sa.Column("study_id", sa.Integer, nullable=False, index=True),
    sa.Column("run", sa.String(32), nullable=False, index=True),
    sa.Column("token", sa.Integer, nullable=False),
    sa.Column("takeovers", sa.Integer, nullable=False),
    sa.Column("offer", sa.Integer, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
)


@dataclass(frozen=True)
class RunInfo:
    """Row of a run."""

    run: str
    host: str
    pid: int
    run_dir: str
    workers: int
    version: str
    protocol: int
    state: str
    note: str
    """Reason of its quarantine, or its GPUs out of service; empty: nothing is unusual."""
    started_at: float
    seen_at: float
    expires_at: float
    now: float
    """Time of the database when the row was read."""

    @property
    def alive(self) -> bool:
        return self.state == RUNNING and self.expires_at > self.now


def create_tables(backend: RDBStorage) -> None:
    """Create the tables, or what those of an earlier version lack. Another run may do so at the
    same moment."""
    try:
        _metadata.create_all(backend.engine)
        for column in _missing_columns(backend):
            definition = sa.schema.CreateColumn(column).compile(dialect=backend.engine.dialect)
            with backend.engine.begin() as connection:
                connection.execute(sa.text(f"ALTER TABLE {column.table} ADD COLUMN {definition}"))
    except (sqlalchemy.exc.ProgrammingError, sqlalchemy.exc.IntegrityError,
            sqlalchemy.exc.OperationalError):  # fmt: skip
        existing = map(sa.inspect(backend.engine).has_table, _metadata.tables)
        if not all(existing) or _missing_columns(backend):
            raise


def _missing_columns(backend: RDBStorage) -> list[sa.Column[int]]:
    """Return the columns that tables of an earlier version lack."""
    found = sa.inspect(backend.engine)
    return [
        column
        for column in (RUNS.c.epoch, LEASES.c.attempts)
        if column.name not in {known["name"] for known in found.get_columns(str(column.table))}
    ]


def read_runs(backend: RDBStorage, study_id: int) -> list[RunInfo]:
    """Return the runs of a study, the latest first; []: none has shared it yet."""
    if not sa.inspect(backend.engine).has_table(RUNS.name):
        return []
    with session_of(backend) as session:
        return rows_of(session, study_id)


def read_owners(backend: RDBStorage, study_id: int, *, offered: bool = True) -> dict[int, str]:
    """Return number → run, of the trials that are leased; `offered`: with those that their run
    has offered to others."""
    if not sa.inspect(backend.engine).has_table(LEASES.name):
        return {}
    trial = models.TrialModel
    with session_of(backend) as session:
        query = sa.select(trial.number, LEASES.c.run).join(
            LEASES, LEASES.c.trial_id == trial.trial_id
        )
        shown = sa.true() if offered else LEASES.c.offer != OFFERED
        rows = session.execute(query.where(LEASES.c.study_id == study_id, shown))
        return {row.number: row.run for row in rows}


def rows_of(session: Session, study_id: int) -> list[RunInfo]:
    columns = [column for column in RUNS.c if column.name not in ("study_id", "epoch")]
    query = sa.select(*columns, DatabaseTime().label("now"))
    rows = session.execute(query.where(RUNS.c.study_id == study_id)).mappings()
    found = [RunInfo(**row) for row in rows]
    return sorted(found, key=lambda row: -row.started_at)


def session_of(backend: RDBStorage) -> contextlib.AbstractContextManager[Session]:
    return _create_scoped_session(backend.scoped_session)


def count_of(result: sa.Result[Any]) -> int:
    return cast("sa.CursorResult[Any]", result).rowcount
