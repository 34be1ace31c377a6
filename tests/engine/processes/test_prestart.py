"""Fork servers started ahead of their run: used if they suit, ended otherwise."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest

import supermax
from supermax._util import system
from supermax.engine.processes import prestart
from supermax.engine.storage import locations
from tests.conftest import eventually
from tests.few import quick_are

pytestmark = pytest.mark.usefixtures("quick")
PRELOADED: list[str] = []


def preload(*names: str) -> None:
    PRELOADED.extend(names)
    print("said before the log was known", flush=True)


def objective(trial: Any) -> float:
    trial.set_user_attr("fork server", os.getppid())
    trial.set_user_attr("preloaded", list(PRELOADED))
    trial.set_user_attr("tag", os.environ[prestart.TAG])
    trial.set_user_attr("cuda", os.environ.get("CUDA_DEVICE_ORDER"))
    trial.set_user_attr("imported", os.environ.get("SET_BY_AN_IMPORT"))
    trial.set_user_attr("collects", gc.isenabled())
    trial.set_user_attr("random", random.random())
    trial.set_user_attr(
        "found", sorted(system.tagged(f"{prestart.TAG}={os.environ[prestart.TAG]}"))
    )
    return 0.0


def waiting() -> psutil.Process:
    [started] = prestart._waiting
    return psutil.Process(started.process.pid)


def used(study: optuna.Study, workers: int = 1) -> dict[str, Any]:
    supermax.optimize(study, objective, 2, workers=workers, progress=False)
    assert len({trial.user_attrs["random"] for trial in study.trials}) == 2
    return dict(study.trials[0].user_attrs)


def test_run_uses_the_prestarted_fork_server(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    with prestart.ahead(__name__, ["one", "two"], {}):
        early = waiting().pid
        monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # known only later
        attrs = used(study)
    assert attrs["fork server"] == early
    assert attrs["preloaded"] == ["one", "two"]
    assert attrs["collects"]  # garbage; while preloading it does not
    assert attrs["cuda"] == "PCI_BUS_ID"
    assert early in attrs["found"]  # kill_tagged after a crash would find it, and its cells
    assert not psutil.pid_exists(early)
    log = (locations.find_location(study).run_dir / "fork_server.log").read_text()
    assert "said before" not in log


@pytest.mark.slow
def test_variables_set_by_imports_are_handed_over(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importing scikit-learn sets KMP_INIT_AT_FORK, for example."""
    monkeypatch.delenv("SET_BY_AN_IMPORT", raising=False)
    with prestart.ahead(__name__, ["one"], {}):
        early = waiting().pid
        monkeypatch.setenv("SET_BY_AN_IMPORT", "yes")
        attrs = used(study)
    assert attrs["fork server"] == early
    assert attrs["imported"] == "yes"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", quick_are(["BEFORE"], ["RAYON_NUM_THREADS", "MIMALLOC_ARENA_RESERVE", "BEFORE"])
)
def test_variables_read_by_imports_must_be_unchanged(
    study: optuna.Study, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BEFORE", "1")
    with prestart.ahead(__name__, ["one"], {}):
        early = waiting().pid
        monkeypatch.setenv(name, "3")
        attrs = used(study)
    assert attrs["fork server"] != early


@pytest.mark.slow
def test_cells_of_a_prestarted_fork_server_are_tagged(study: optuna.Study) -> None:
    def found(trial: Any) -> float:
        mine = Path("/proc/self/environ").read_bytes().split(b"\0")
        trial.set_user_attr("mine", f"{prestart.TAG}={os.environ[prestart.TAG]}".encode() in mine)
        return 0.0

    with prestart.ahead(__name__, [], {}):
        supermax.optimize(study, found, 1, progress=False)
    assert study.trials[0].user_attrs["mine"] or not system.LINUX


@pytest.mark.slow
def test_thread_limits_must_be_known_ahead(study: optuna.Study) -> None:
    """Libraries read thread limits once, when they are imported."""
    with prestart.ahead(__name__, ["one"], prestart.thread_limits(2, os.environ)):
        early = waiting().pid
        attrs = used(study, workers=2)
    assert attrs["fork server"] == early


@pytest.mark.slow
@pytest.mark.parametrize("expected", [{}, prestart.thread_limits(1_000, {}), {"OTHER": "1"}])
def test_fork_server_with_another_environment_is_not_used(
    study: optuna.Study, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "cores", lambda: 8)
    with prestart.ahead(__name__, ["one"], expected):
        early = waiting().pid
        attrs = used(study, workers=2)
        assert not psutil.pid_exists(early)
    assert attrs["preloaded"] == []
    assert attrs["fork server"] != early


@pytest.mark.slow
def test_a_fork_server_that_died_is_replaced(study: optuna.Study) -> None:
    with prestart.ahead(__name__, ["one"], {}):
        early = waiting()
        early.kill()
        early.wait()
        attrs = used(study)
    assert attrs["fork server"] != early.pid


@pytest.mark.slow
@pytest.mark.parametrize("module", quick_are(["no.such.module"], ["no.such.module", "json"]))
def test_preload_errors_are_left_to_the_trials(study: optuna.Study, module: str) -> None:
    with prestart.ahead(module, ["one"], {}):
        early = waiting().pid
        attrs = used(study)
    assert attrs["fork server"] == early
    assert attrs["preloaded"] == []


def test_unused_fork_server_is_ended() -> None:
    with prestart.ahead(__name__, [], {}):
        early = waiting()
    assert not early.is_running()
    assert prestart._waiting == []


@pytest.mark.slow
def test_run_starts_its_own_fork_server_after_a_failed_prestart(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", refused)
        block = prestart.ahead(__name__, ["one"], {})
        block.__enter__()
    assert used(study)["preloaded"] == []
    block.__exit__(None, None, None)


def test_waiting_fork_server_ends_with_its_killed_parent() -> None:
    program = textwrap.dedent("""
        import sys, time
        from supermax.engine.processes import prestart
        with prestart.ahead("tests.engine.processes.test_prestart", [], {}):
            print(prestart._waiting[0].process.pid, flush=True)
            time.sleep(600)
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        early = psutil.Process(int(run.stdout.readline()))
        run.send_signal(signal.SIGKILL)
    assert eventually(lambda: system.is_zombie(early.pid))  # or gone
