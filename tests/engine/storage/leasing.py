"""Runs with leases on a study of a database server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from supermax.engine.storage.lease_tables import (
    create_tables,
)
from supermax.engine.storage.leases import (
    Leases,
)
from supermax.engine.storage.patience import Patience
from supermax.engine.storage.patient import PatientStorage
from tests.engine.storage.postgres import Proxy

RUNNING, WAITING, COMPLETE = TrialState.RUNNING, TrialState.WAITING, TrialState.COMPLETE
LONG = 600.0


@pytest.fixture
def database_url(proxy: Proxy) -> str:
    return proxy.url


Opener = Callable[..., PatientStorage]


@pytest.fixture
def open_run(database_url: str, tmp_path: Path) -> Iterator[Opener]:
    """Function that opens the study as a run of the given name does."""
    with_checks = []

    def open_(run: str, seconds: float = LONG, target: int | None = None) -> PatientStorage:
        study = optuna.create_study(
            storage=database_url, study_name=tmp_path.name, load_if_exists=True
        )
        inner = study._storage
        backend = inner._backend  # type: ignore[attr-defined]
        storage = PatientStorage(inner, study, file=None, patience=Patience(lambda _: None))
        storage.claim = run
        create_tables(backend)
        leases = Leases(backend, study._study_id, run, seconds, target)
        leases.register(tmp_path / run, 1, "0.1")
        storage.leases = leases
        checks = leases.enforced()
        checks.__enter__()
        with_checks.append((checks, backend))
        return storage

    yield open_
    for checks, backend in with_checks:
        checks.__exit__(None, None, None)
        backend.engine.dispose()
    if with_checks:  # through a connection whose transactions may take their time
        storage = RDBStorage(database_url)
        with contextlib.suppress(KeyError):  # the test has deleted it
            optuna.delete_study(study_name=tmp_path.name, storage=storage)
        storage.engine.dispose()


def study_id(storage: PatientStorage) -> int:
    return storage._study_id


def leases(storage: PatientStorage) -> Leases:
    assert storage.leases is not None
    return storage.leases


def backend(storage: PatientStorage) -> RDBStorage:
    found = storage._server
    assert found is not None
    return found
