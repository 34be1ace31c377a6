"""Fork servers of these tests are forked from a process that has imported the Trainer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.preloading import Template, forked_from


@pytest.fixture(scope="session")
def trainer_template() -> Iterator[Template]:
    modules = ("transformers.trainer", "accelerate", "torch._dynamo", "tests.trainer.tiny")
    template = Template("tests.conftest", "supermax.run", *modules)
    yield template
    template.end()


@pytest.fixture
def preloaded(request: pytest.FixtureRequest, trainer_template: Template) -> Iterator[None]:
    """Slow tests start their fork servers as users do."""
    slow = request.node.get_closest_marker("slow")
    with contextlib.nullcontext() if slow else forked_from(trainer_template):
        yield
