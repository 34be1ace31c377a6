"""Fork servers of the engine's tests are forked from a process with the imports done, except where
their start is tested."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def forked(request: pytest.FixtureRequest, engine_template: object) -> None:
    if not request.node.nodeid.startswith("tests/engine/processes/"):
        request.getfixturevalue("engine_preloaded")
