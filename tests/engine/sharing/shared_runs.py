"""Runs of their own processes that share a study on a database server."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import optuna
import sqlalchemy
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from supermax._util.attributes import CLAIM
from supermax.engine.storage.lease_tables import read_owners, read_runs
from tests import ROOT
from tests.conftest import eventually
from tests.engine.programs import value_of
from tests.engine.storage.postgres import Proxy

LEASE = 2.0


@contextlib.contextmanager
def opened(proxy: Proxy) -> Iterator[RDBStorage]:
    storage = RDBStorage(proxy.url)
    try:
        yield storage
    finally:
        storage.engine.dispose()


@dataclass
class Run:
    """A coordinator of its own, with its own connection to the database."""

    proxy: Proxy
    folder: Path
    n_trials: int
    checkpoints: Path | None = None
    pace: float = 0.01
    lease: float = LEASE
    env: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> Run:
        self.folder.mkdir(exist_ok=True)
        arguments = [self.proxy.url, str(self.n_trials), str(self.folder / "run"), str(self.lease)]
        if self.checkpoints is not None:
            arguments.append(str(self.checkpoints))
        env = {**os.environ, "MARKS": str(self.folder.parent / "marks"), "PACE": str(self.pace)}
        env |= self.env
        with (self.folder / "output").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.engine.programs", "shared", *arguments],
                cwd=ROOT,
                env=env,
                stdout=output,
                stderr=output,
            )
        return self

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text()

    def finish(self, within: float = 60) -> None:
        """Wait until the run ends by itself. Fail if it has not met its target."""
        assert self.process.wait(within) == 0, self.output

    def end(self) -> None:
        self.process.kill()
        self.process.wait(30)


@contextlib.contextmanager
def running(*runs: Run) -> Iterator[None]:
    try:
        for run in runs:
            run.start()
        yield
    finally:
        for run in runs:
            run.end()


def execute(proxy: Proxy, *statements: str) -> None:
    with opened(proxy) as storage, storage.engine.begin() as connection:
        for statement in statements:
            connection.execute(sqlalchemy.text(statement))


def leases_are_renewed(proxy: Proxy, unless: Callable[[], bool] = lambda: False) -> bool:
    """Wait until a run has renewed its leases twice; return False if none does, or `unless`."""
    seen = set()

    def twice() -> bool:
        if unless():
            return True
        with opened(proxy) as storage, storage.engine.begin() as connection:
            latest = sqlalchemy.text("SELECT max(seen_at) FROM supermax_runs")
            seen.add(connection.execute(latest).scalar_one())
        return len(seen) > 2

    return eventually(twice) and len(seen) > 2


def other_run(name: str, expires_at: str) -> str:
    """Return the statement that adds a run on another machine to a study with one run."""
    return f"""
        INSERT INTO supermax_runs (run, study_id, host, pid, run_dir, workers, version, protocol,
            state, note, started_at, seen_at, expires_at)
        SELECT '{name}', study_id, 'far', 1, '/gone', 1, version, protocol, 'running', '', 0, 0,
            {expires_at} FROM supermax_runs"""


def stored(proxy: Proxy) -> list[FrozenTrial]:
    with opened(proxy) as storage:
        try:
            return storage.get_all_trials(storage.get_study_id_from_name("shared"))
        except KeyError:
            return []


def finished(proxy: Proxy) -> int:
    return sum(trial.state.is_finished() for trial in stored(proxy))


def check(proxy: Proxy, n_trials: int) -> None:
    """Every number once, with its value and its curve; nothing is left RUNNING or leased."""
    trials = stored(proxy)
    assert [trial.number for trial in trials] == list(range(n_trials))
    assert {trial.state for trial in trials} == {TrialState.COMPLETE}
    for trial in trials:
        value = value_of(**trial.params)
        assert trial.value == value
        assert trial.intermediate_values == {step: value + 3 - step for step in range(3)}
    with opened(proxy) as storage:
        study_id = storage.get_study_id_from_name("shared")
        assert read_owners(storage, study_id) == {}
        owners = {run.run for run in read_runs(storage, study_id)}
    assert {trial.system_attrs[CLAIM] for trial in trials} <= owners


@contextlib.contextmanager
def created(proxy: Proxy, user: str = "postgres") -> Iterator[optuna.Study]:
    study = optuna.create_study(storage=proxy.url, study_name="shared")
    study._storage._backend.engine.dispose()  # type: ignore[attr-defined]
    study = optuna.load_study(
        storage=proxy.url.replace("postgres@", f"{user}@"), study_name="shared"
    )
    yield study
    study._storage._backend.engine.dispose()  # type: ignore[attr-defined]
