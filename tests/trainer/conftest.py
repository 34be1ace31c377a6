"""Fork servers of these tests are forked from a process that has imported the Trainer."""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Iterator

import pytest

from tests.preloading import Template, forked_from


@pytest.fixture(scope="session")
def trainer_template() -> Iterator[Template]:
    modules = ("transformers.trainer", "accelerate", "torch._dynamo", "tests.trainer.tiny")
    template = Template("tests.conftest", "supermax.run", *modules)
    yield template
    template.end()


@pytest.fixture(scope="session", autouse=True)
def imports_are_frozen() -> Iterator[None]:
    """Keep what torch and transformers have created out of garbage collections: a training of the
    Trainer collects garbage several times, which would take longer than all its steps."""
    importlib.import_module("tests.trainer.tiny")
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def preloaded(request: pytest.FixtureRequest, trainer_template: Template) -> Iterator[None]:
    """Slow tests start their fork servers as users do."""
    slow = request.node.get_closest_marker("slow")
    with contextlib.nullcontext() if slow else forked_from(trainer_template):
        yield
