"""Fork servers of the engine's tests are forked from a process with the imports done, except where
their start is tested. One database server serves all tests of a worker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.executors import EXECUTOR, cluster, elsewhere
from tests.engine.storage.leasing import database_url, open_run  # noqa: F401 (fixtures)
from tests.engine.storage.postgres import Proxy, Server, given_or_started

pytest.register_assert_rewrite("tests.engine.sharing.shared_runs")
_STARTED_AS_BY_USERS = ("test_prestart.py", "test_descriptors.py", "test_mps.py")


@pytest.fixture(scope="session", autouse=True)
def ray_cluster() -> Iterator[None]:
    with cluster() if EXECUTOR == "ray" else contextlib.nullcontext():
        yield


@pytest.fixture(autouse=True)
def executor(monkeypatch: pytest.MonkeyPatch) -> None:
    if EXECUTOR != "local":
        elsewhere(monkeypatch)


@pytest.fixture(autouse=True)
def forked(request: pytest.FixtureRequest, engine_template: object) -> None:
    if request.path.name not in _STARTED_AS_BY_USERS:
        request.getfixturevalue("engine_preloaded")


@pytest.fixture(scope="session")
def database() -> Iterator[Server]:
    with given_or_started() as running:
        yield running


@pytest.fixture
def proxy(database: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Empty database behind a proxy."""
    from tests.engine.sharing.shared_runs import opened

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    proxy = Proxy(database.path)
    with opened(proxy) as storage:
        for summary in storage.get_all_studies():
            storage.delete_study(summary._study_id)
    yield proxy
    proxy.close()
