"""Fork servers of the engine's tests are forked from a process with the imports done, except where
their start is tested. One database server serves all tests of a worker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.engine.executors import EXECUTOR, cluster, elsewhere
from tests.engine.storage.postgres import Server, given_or_started

pytest.register_assert_rewrite("tests.engine.run.shared_runs")
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
