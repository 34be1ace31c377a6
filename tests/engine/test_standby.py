"""A keeper that is started ahead of its run: used where it suits, ended where it does not."""

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
from supermax.engine import home, kernel, standby
from tests.conftest import eventually

pytestmark = pytest.mark.usefixtures("quick")
PRELOADED: list[str] = []


def preload(*names: str) -> None:
    PRELOADED.extend(names)
    print("said before the log was known", flush=True)


def objective(trial: Any) -> float:
    trial.set_user_attr("keeper", os.getppid())
    trial.set_user_attr("preloaded", list(PRELOADED))
    trial.set_user_attr("tag", os.environ[standby.TAG])
    trial.set_user_attr("cuda", os.environ.get("CUDA_DEVICE_ORDER"))
    trial.set_user_attr("imported", os.environ.get("SET_BY_AN_IMPORT"))
    trial.set_user_attr("collects", gc.isenabled())
    trial.set_user_attr("random", random.random())
    trial.set_user_attr("found", sorted(kernel.tagged(f"{standby.TAG}={os.environ[standby.TAG]}")))
    return 0.0


def waiting() -> psutil.Process:
    [started] = standby._waiting
    return psutil.Process(started.process.pid)


def used(study: optuna.Study, workers: int = 1) -> dict[str, Any]:
    supermax.optimize(study, objective, 2, workers=workers, progress=False)
    assert len({trial.user_attrs["random"] for trial in study.trials}) == 2
    return dict(study.trials[0].user_attrs)


def test_a_run_takes_the_keeper_that_was_started_ahead(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    with standby.ahead(__name__, ["one", "two"], {}):
        early = waiting().pid
        monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # known only later
        attrs = used(study)
    assert attrs["keeper"] == early
    assert attrs["preloaded"] == ["one", "two"]
    assert attrs["collects"]  # garbage; while preloading it does not
    assert attrs["cuda"] == "PCI_BUS_ID"
    assert early in attrs["found"]  # a sweep after a kill would end it, and its cells
    assert not psutil.pid_exists(early)
    log = (home.find_home(study).run_dir / "keeper.log").read_text()
    assert "said before" not in log


def test_what_an_import_has_set_meanwhile_is_handed_on(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importing scikit-learn sets KMP_INIT_AT_FORK, for one."""
    monkeypatch.delenv("SET_BY_AN_IMPORT", raising=False)
    with standby.ahead(__name__, ["one"], {}):
        early = waiting().pid
        monkeypatch.setenv("SET_BY_AN_IMPORT", "yes")
        attrs = used(study)
    assert attrs["keeper"] == early
    assert attrs["imported"] == "yes"


@pytest.mark.parametrize("name", ["RAYON_NUM_THREADS", "MIMALLOC_ARENA_RESERVE", "BEFORE"])
def test_what_imports_read_must_be_as_it_was(
    study: optuna.Study, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BEFORE", "1")
    with standby.ahead(__name__, ["one"], {}):
        early = waiting().pid
        monkeypatch.setenv(name, "3")
        attrs = used(study)
    assert attrs["keeper"] != early


def test_its_cells_are_found_by_their_tag(study: optuna.Study) -> None:
    def found(trial: Any) -> float:
        mine = Path("/proc/self/environ").read_bytes().split(b"\0")
        trial.set_user_attr("mine", f"{standby.TAG}={os.environ[standby.TAG]}".encode() in mine)
        return 0.0

    with standby.ahead(__name__, [], {}):
        supermax.optimize(study, found, 1, progress=False)
    assert study.trials[0].user_attrs["mine"] or not kernel.LINUX


def test_threads_must_be_known_ahead(study: optuna.Study) -> None:
    """Libraries read them once, when they are imported."""
    with standby.ahead(__name__, ["one"], standby.thread_limits(2, os.environ)):
        early = waiting().pid
        attrs = used(study, workers=2)
    assert attrs["keeper"] == early


@pytest.mark.parametrize("expected", [{}, standby.thread_limits(1_000, {}), {"OTHER": "1"}])
def test_a_keeper_with_another_environment_is_not_taken(
    study: optuna.Study, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "cores", lambda: 8)
    with standby.ahead(__name__, ["one"], expected):
        early = waiting().pid
        attrs = used(study, workers=2)
        assert not psutil.pid_exists(early)
    assert attrs["preloaded"] == []
    assert attrs["keeper"] != early


def test_a_keeper_that_died_is_replaced(study: optuna.Study) -> None:
    with standby.ahead(__name__, ["one"], {}):
        early = waiting()
        early.kill()
        early.wait()
        attrs = used(study)
    assert attrs["keeper"] != early.pid


@pytest.mark.parametrize("module", ["no.such.module", "json"])
def test_what_cannot_be_preloaded_is_left_to_the_trials(study: optuna.Study, module: str) -> None:
    with standby.ahead(module, ["one"], {}):
        early = waiting().pid
        attrs = used(study)
    assert attrs["keeper"] == early
    assert attrs["preloaded"] == []


def test_a_keeper_that_no_run_takes_is_ended() -> None:
    with standby.ahead(__name__, [], {}):
        early = waiting()
    assert not early.is_running()
    assert standby._waiting == []


def test_without_room_for_a_process_the_run_starts_its_own(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", refused)
        block = standby.ahead(__name__, ["one"], {})
        block.__enter__()
    assert used(study)["preloaded"] == []
    block.__exit__(None, None, None)


def test_a_waiting_keeper_ends_with_a_process_that_is_killed() -> None:
    program = textwrap.dedent("""
        import sys, time
        from supermax.engine import standby
        with standby.ahead("tests.engine.test_standby", [], {}):
            print(standby._waiting[0].process.pid, flush=True)
            time.sleep(600)
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        early = psutil.Process(int(run.stdout.readline()))
        run.send_signal(signal.SIGKILL)
    assert eventually(lambda: kernel.is_zombie(early.pid))  # or gone
