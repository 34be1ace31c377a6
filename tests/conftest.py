"""What every test of the engine gets: a study on disk, short pauses, and proof of cleanliness."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import optuna
import psutil
import pytest

from supermax.engine import crew, policy, watch
from supermax.engine.fleet import TAG

optuna.logging.set_verbosity(optuna.logging.WARNING)
hypothesis.settings.register_profile("any machine", deadline=None)  # some are slow now and then
hypothesis.settings.load_profile("any machine")
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "alone")
if os.environ.get("SUPERMAX_TEST_WORKER") != _WORKER:  # its cells read this file as well
    os.environ["SUPERMAX_TEST_WORKER"] = _WORKER
    _MEASURED = tempfile.TemporaryDirectory(prefix="supermax-tests-", ignore_cleanup_errors=True)
    os.environ["XDG_CACHE_HOME"] = _MEASURED.name
os.environ["SUPERMAX_TEST_SESSION"] = str(os.getpid())  # other runs on this machine are not ours


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses that are right for a night are too long for a test."""
    monkeypatch.setattr(watch, "_TERM_GRACE", 0.3)
    monkeypatch.setattr(watch, "_STOP_GRACE", 1.0)
    monkeypatch.setattr(crew, "_LINGER", 1.0)
    monkeypatch.setattr(policy, "_BACK_OFF", 0.01)
    monkeypatch.setattr(policy, "_LONGEST_FREE_BACK_OFF", 0.01)


@pytest.fixture(autouse=True)
def nothing_left_running() -> Iterator[None]:
    """No process of any run outlives its test."""
    yield
    if not eventually(lambda: not engine_processes()):
        left = engine_processes()
        for pid, _ in left:  # the next test is not to blame
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        pytest.fail(f"left running: {left}")


def engine_processes() -> list[tuple[int, str]]:
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error, OSError):  # gone, a zombie, or somebody else's
            environment = process.environ()
            if TAG in environment and environment.get("SUPERMAX_TEST_SESSION") == str(os.getpid()):
                found.append((process.pid, " ".join(process.cmdline())[:80]))
    return found


def eventually(condition: Callable[[], bool], within: float = 10.0) -> bool:
    """Wait for a condition with a deadline."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/study.db"


@pytest.fixture
def study(url: str) -> optuna.Study:
    return optuna.create_study(
        storage=url, study_name="test", sampler=optuna.samplers.RandomSampler(seed=1)
    )
