"""No tracker outlives its test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psutil
import pytest

from tests.conftest import eventually


def trackers() -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if "supermax.results.tracking" in process.cmdline() and process.status() != "zombie":
                session = process.environ().get("SUPERMAX_TEST_SESSION")
                found += [process.pid] if session == str(os.getpid()) else []
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


@pytest.fixture(autouse=True)
def no_tracker_left() -> Iterator[None]:
    yield
    assert eventually(lambda: not trackers(), within=5), trackers()
