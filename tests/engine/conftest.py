"""Fork servers of the engine's tests, forked from a process with the imports done."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.preloading import Template, forked_from

_AS_USERS_DO = "tests/engine/processes/"  # how they start is what is tested there


@pytest.fixture(scope="session")
def engine_template() -> Iterator[Template]:
    one = Template("tests.conftest", "supermax.run")
    yield one
    one.end()


@pytest.fixture(autouse=True)
def engine_preloaded(request: pytest.FixtureRequest, engine_template: Template) -> Iterator[None]:
    node = request.node
    new = node.nodeid.startswith(_AS_USERS_DO) or node.get_closest_marker("slow")
    with contextlib.nullcontext() if new else forked_from(engine_template):
        yield
