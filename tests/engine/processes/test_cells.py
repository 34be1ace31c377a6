"""Isolation, reuse and end of cells."""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import psutil
import pytest
from optuna.trial import TrialState

import supermax
from supermax._util import system
from supermax.engine import events
from supermax.engine.processes.prestart import thread_limits
from tests.conftest import eventually
from tests.engine.executors import local_only
from tests.few import a_few

pytestmark = pytest.mark.usefixtures("quick")
SEEN: list[int] = []


def pollute(trial: Any) -> float:
    """Report the process state it finds, then change all of it."""
    trial.set_user_attr("pid", os.getpid())
    trial.set_user_attr("found", [len(SEEN), os.environ.get("POLLUTED"), str(Path.cwd())])
    trial.set_user_attr("random", [random.random(), float(np.random.random())])
    SEEN.append(trial.number)
    os.environ["POLLUTED"] = "yes"
    os.chdir("/")
    random.seed(0)
    np.random.seed(0)
    return 0.0


@pytest.mark.slow
def test_process_state_of_a_trial_does_not_reach_the_next(study: optuna.Study) -> None:
    supermax.optimize(study, pollute, n_trials=4, progress=False)
    attrs = [trial.user_attrs for trial in study.trials]
    assert len({a["pid"] for a in attrs}) == 4
    assert [a["found"] for a in attrs] == [[0, None, str(Path.cwd())]] * 4
    for i in (0, 1):
        assert len({a["random"][i] for a in attrs}) == 4  # nor do they all start alike


def test_reused_cells_run_many_trials(study: optuna.Study) -> None:
    summary = supermax.optimize(study, pollute, n_trials=6, reuse_cells=True, progress=False)
    assert len({trial.user_attrs["pid"] for trial in study.trials}) == 1
    assert summary.cells == 1


def test_reused_cell_is_replaced_after_a_fault_or_a_left_child(study: optuna.Study) -> None:
    def objective(trial: Any) -> float:
        trial.set_user_attr("pid", os.getpid())
        if trial.number == 1:
            raise ValueError("once")
        if trial.number == 3:
            subprocess.Popen(["sleep", "600"])
        return 0.0

    seen: list[events.Event] = []
    supermax.optimize(study, objective, n_trials=6, reuse_cells=True, progress=seen.append)
    pids = [trial.user_attrs["pid"] for trial in study.trials]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4] == pids[5]
    notes = [e.note for e in seen if isinstance(e, events.CellEnded) and e.note]
    assert any("child process" in note for note in notes)


def test_retry_runs_on_a_fresh_cell(study: optuna.Study) -> None:
    def objective(trial: Any) -> float:
        trial.set_user_attr(f"pid {trial.attempt}", os.getpid())
        if trial.number == 2 and trial.attempt == 1:
            os.abort()
        return 0.0

    supermax.optimize(study, objective, n_trials=4, reuse_cells=True, progress=False)
    pids = [trial.user_attrs for trial in study.trials]
    assert pids[2]["pid 2"] not in {pids[0]["pid 1"], pids[1]["pid 1"], pids[2]["pid 1"]}


def test_cells_have_their_own_group_oom_score_and_threads(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")  # as set for all tests
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)

    def objective(trial: Any) -> float:
        trial.set_user_attr("group", os.getpgid(0) == os.getpid())
        trial.set_user_attr("oom", Path("/proc/self/oom_score_adj").read_text().strip())
        trial.set_user_attr("threads", os.environ["OMP_NUM_THREADS"])
        trial.set_user_attr("waiting", os.environ["OMP_WAIT_POLICY"])
        trial.set_user_attr("spinning", os.environ["GOMP_SPINCOUNT"])
        return 0.0

    supermax.optimize(study, objective, n_trials=1, workers=2, progress=False)
    attrs = study.trials[0].user_attrs
    assert attrs["group"]
    assert attrs["oom"] == "1000"
    assert attrs["threads"] == thread_limits(2, {})["OMP_NUM_THREADS"]
    assert attrs["waiting"] == "passive"
    assert attrs["spinning"] == "1000"


def test_thread_limits_divide_the_cores_unless_set_by_the_user() -> None:
    limits = thread_limits(1_000, {"MKL_NUM_THREADS": "7"})
    assert limits["OMP_NUM_THREADS"] == "1"
    assert "MKL_NUM_THREADS" not in limits


def test_single_cell_has_no_thread_limits() -> None:
    """Limits would be inherited by joblib's workers, which divide the cores themselves."""
    assert thread_limits(1, {}) == {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000"}


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_threads_wait_as_the_user_has_set(name: str) -> None:
    assert thread_limits(1, {name: "1"}) == {}
    assert not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(thread_limits(2, {name: "1"}))


def worker_environments(trial: Any) -> float:
    """Return the thread limits that two joblib workers see."""
    joblib = importlib.import_module("joblib")
    ask = joblib.delayed(lambda: int(os.environ["OMP_NUM_THREADS"]))
    trial.set_user_attr("threads", joblib.Parallel(n_jobs=2)(ask() for _ in range(4)))
    loky = importlib.import_module("joblib.externals.loky.reusable_executor")
    trial.set_user_attr("pool", sorted(loky._executor._processes))
    trial.set_user_attr("jobs", joblib.effective_n_jobs(-1))
    return 0.0


def busy_pool(trial: Any) -> float:
    """Leave a joblib worker busy."""
    loky = importlib.import_module("joblib.externals.loky")
    loky.get_reusable_executor(max_workers=1).submit(time.sleep, 600)
    return 0.0


@pytest.mark.slow
def test_reused_cell_keeps_an_idle_joblib_pool(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    joblib = pytest.importorskip("joblib")
    for name in thread_limits(2, {}):
        monkeypatch.delenv(name, raising=False)
    seen: list[events.Event] = []
    options: dict[str, Any] = {"reuse_cells": True, "progress": seen.append}
    summary = supermax.optimize(study, worker_environments, n_trials=3, **options)
    attrs = [trial.user_attrs for trial in study.trials]
    assert summary.cells == 1
    assert len({tuple(a["pool"]) for a in attrs}) == 1
    assert [a["threads"] for a in attrs] == [[max(1, joblib.cpu_count() // 2)] * 4] * 3
    assert not [e.note for e in seen if isinstance(e, events.CellEnded) and e.note]


@pytest.mark.slow
def test_fresh_cell_advises_reuse_cells_for_joblib_pools(study: optuna.Study) -> None:
    pytest.importorskip("joblib")
    seen: list[events.Event] = []
    supermax.optimize(study, worker_environments, n_trials=2, workers=1_000, progress=seen.append)
    notes = [e.note for e in seen if isinstance(e, events.CellEnded) and e.note]
    assert len(notes) == 2
    # On a busy machine the pool outlives its cell for a moment, and the note says so as well.
    assert [note for note in notes if "reuse_cells=True keeps them" not in note] == []
    assert [trial.user_attrs["jobs"] for trial in study.trials] == [1, 1]


def test_reused_cell_is_replaced_when_joblib_is_still_busy(study: optuna.Study) -> None:
    pytest.importorskip("joblib")
    seen: list[events.Event] = []
    supermax.optimize(study, busy_pool, n_trials=2, reuse_cells=True, progress=seen.append)
    notes = [e.note for e in seen if isinstance(e, events.CellEnded) and e.note]
    assert len(notes) == 2
    assert all("left 1 child process running" in note for note in notes)


@local_only
def test_cells_are_spread_evenly_over_devices(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "count_gpus", lambda: 6)

    def objective(trial: Any) -> float:
        trial.set_user_attr("device", os.environ["CUDA_VISIBLE_DEVICES"])
        return 0.0

    running: dict[int, int] = {}
    supermax.optimize(
        study,
        objective,
        n_trials=12,
        workers=2,
        devices=[3, 5],
        progress=running.get,  # type: ignore[arg-type]
    )
    used = Counter(trial.user_attrs["device"] for trial in study.trials)
    assert set(used) == {"3", "5"}
    assert min(used.values()) >= 3


@local_only
def test_missing_gpu_is_named(study: optuna.Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "count_gpus", lambda: 2)
    with pytest.raises(supermax.UserError, match=r"names 2, -1, .* has 2 GPU\(s\)"):
        supermax.optimize(study, lambda trial: 0.0, n_trials=1, devices=[0, 2, -1])
    assert not study.trials


@pytest.mark.slow
@pytest.mark.parametrize("fresh", a_few([True, False]))
def test_torch_dynamo_is_imported_before_cells_fork(study: optuna.Study, fresh: bool) -> None:
    import torch

    def objective(trial: Any) -> float:
        trial.set_user_attr("there", "torch._dynamo" in sys.modules)
        return float(torch.zeros(1))

    supermax.optimize(study, objective, n_trials=1, reuse_cells=not fresh, progress=False)
    assert study.trials[0].user_attrs["there"] is fresh


@local_only
def test_long_fork_server_log_is_truncated(study: optuna.Study, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    supermax.optimize(study, lambda trial: 0.0, 1, run_dir=folder, progress=False)
    (folder / "fork_server.log").write_bytes(b"x" * (2 << 20))
    supermax.optimize(study, lambda trial: 0.0, 2, run_dir=folder, progress=False)
    assert (folder / "fork_server.log").stat().st_size < 1 << 20


def test_cuda_error_is_retried_with_blocking_launches(study: optuna.Study) -> None:
    def objective(trial: Any) -> float:
        trial.set_user_attr(f"blocking {trial.attempt}", os.environ.get("CUDA_LAUNCH_BLOCKING"))
        raise RuntimeError("CUDA error: device-side assert triggered")

    summary = supermax.optimize(study, objective, n_trials=1, progress=False)
    trial = study.trials[0]
    assert trial.user_attrs["blocking 1"] is None
    assert trial.user_attrs["blocking 2"] == "1"
    assert trial.state is TrialState.FAIL
    assert summary.faults == {"device-side assert": 2}


def test_silent_trial_stalls_after_its_first_report(study: optuna.Study) -> None:
    def objective(trial: Any) -> float:
        if trial.attempt == 1:
            trial.report(0.0, 0)
            threading.Event().wait()
        return 1.0

    summary = supermax.optimize(study, objective, n_trials=1, stall_timeout=0.5, progress=False)
    assert summary.faults == {"stall": 1}
    assert study.trials[0].value == 1.0


@pytest.mark.slow
def test_stall_timeout_does_not_apply_before_the_first_report(study: optuna.Study) -> None:
    def objective(trial: Any) -> float:
        eventually(lambda: False, within=1.0)
        return 1.0

    summary = supermax.optimize(study, objective, n_trials=1, stall_timeout=0.2, progress=False)
    assert summary.faults == {}


@pytest.mark.slow
def test_stopped_cell_does_not_block_the_run(study: optuna.Study) -> None:
    """SIGSTOP: alive, silent, and not reacting to SIGTERM."""

    def objective(trial: Any) -> float:
        if trial.number == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        return 1.0

    supermax.optimize(study, objective, n_trials=6, workers=2, trial_timeout=2.0, progress=False)
    states = [trial.state for trial in study.trials]
    assert states == [TrialState.PRUNED, *[TrialState.COMPLETE] * 5]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Create a user module that is importable here and in cells."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(name: str, source: str) -> Any:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        return __import__(name)

    yield make
    for name in [
        n for n, m in sys.modules.items() if str(tmp_path) in str(getattr(m, "__file__", ""))
    ]:
        del sys.modules[name]


@pytest.mark.slow
def test_an_objective_that_starts_threads_is_loaded_in_new_interpreters(
    study: optuna.Study, module: Any
) -> None:
    threaded = module(
        "threaded",
        """
        import os, threading
        threading.Thread(target=threading.Event().wait, daemon=True).start()

        def objective(trial):
            trial.set_user_attr("pid", os.getpid())
            return trial.suggest_float("x", 0, 1)
        """,
    )
    seen: list[events.Event] = []
    supermax.optimize(study, threaded.objective, n_trials=3, progress=seen.append)
    assert any("new interpreter" in e.text for e in seen if isinstance(e, events.Notice))
    assert len({trial.user_attrs["pid"] for trial in study.trials}) == 3


def test_a_seed_set_at_import_holds_in_every_cell(study: optuna.Study, module: Any) -> None:
    seeded = module(
        "seeded",
        """
        import random
        import numpy as np
        random.seed(3)
        np.random.seed(4)

        def objective(trial):
            trial.set_user_attr("drawn", [random.random(), float(np.random.random())])
            return 0.0
        """,
    )
    expected = [random.Random(3).random(), float(np.random.RandomState(4).random_sample())]
    supermax.optimize(study, seeded.objective, n_trials=2, progress=False)
    assert [trial.user_attrs["drawn"] for trial in study.trials] == [expected] * 2


@pytest.fixture
def bit_generator_is_restored() -> Iterator[None]:
    """For a module that sets another one, in this process too."""
    ours = np.random.get_bit_generator()
    yield
    np.random.set_bit_generator(ours)


@pytest.mark.usefixtures("bit_generator_is_restored")
def test_another_bit_generator_set_at_import_holds_in_every_cell(
    study: optuna.Study, module: Any
) -> None:
    generating = module(
        "generating",
        """
        import numpy as np
        np.random.set_bit_generator(np.random.PCG64(4))

        def objective(trial):
            return float(np.random.random())
        """,
    )
    expected = float(np.random.Generator(np.random.PCG64(4)).random())
    supermax.optimize(study, generating.objective, n_trials=2, progress=False)
    assert [trial.value for trial in study.trials] == [expected] * 2


@pytest.mark.parametrize("draws", [1, 20_000])
def test_draws_at_import_set_no_seed(study: optuna.Study, module: Any, draws: int) -> None:
    drawing = module(
        "drawing",
        f"""
        import random
        import numpy as np
        number = [random.random() for _ in range({draws})][0]
        np.random.random(3), np.random.standard_normal()

        def objective(trial):
            trial.set_user_attr("drawn", [random.random(), float(np.random.random())])
            return 0.0
        """,
    )
    supermax.optimize(study, drawing.objective, n_trials=2, progress=False)
    one, other = (trial.user_attrs["drawn"] for trial in study.trials)
    assert one[0] != other[0]
    assert one[1] != other[1]


def test_data_of_the_objective_is_shared_by_forks(study: optuna.Study) -> None:
    data = np.ones(10_000_000)

    def objective(trial: Any) -> float:
        return float(data[trial.number])

    summary = supermax.optimize(study, objective, n_trials=5, progress=False)
    assert summary.trials["COMPLETE"] == 5
    assert psutil.Process().memory_info().rss < 2e9


@pytest.mark.slow
def test_works_from_a_script_without_a_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import optuna, supermax
            optuna.logging.set_verbosity(optuna.logging.ERROR)
            print("once")

            class Config:
                scale = 2.0

            def helper(x):
                return Config.scale * x

            def objective(trial):
                return helper(trial.suggest_float("x", 0, 1))

            study = optuna.create_study(storage="sqlite:///here.db", study_name="s")
            supermax.optimize(study, objective, n_trials=4, workers=2)
            print(all(t.value == 2.0 * t.params["x"] for t in study.trials))
            """
        )
    )
    done = subprocess.run(
        [sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["once", "True"]


def test_process_outside_the_session_is_killed_with_its_cell(
    study: optuna.Study, tmp_path: Path
) -> None:
    note = tmp_path / "pid"

    def objective(trial: Any) -> float:
        script = (
            "import os,sys,time\n"
            "if os.fork(): os._exit(0)\n"
            "os.setsid()\n"
            f"open({str(note)!r}, 'w').write(str(os.getpid()))\n"
            "time.sleep(600)"
        )
        subprocess.Popen([sys.executable, "-c", script], env={}, start_new_session=True)
        eventually(lambda: note.exists() and note.read_text() != "")
        return 0.0

    seen: list[events.Event] = []
    supermax.optimize(study, objective, n_trials=1, progress=seen.append)
    assert system.is_zombie(int(note.read_text()))


def test_failing_listener_does_not_stop_the_run(study: optuna.Study) -> None:
    def broken(event: events.Event) -> None:
        raise RuntimeError("no terminal")

    assert supermax.optimize(study, lambda trial: 1.0, n_trials=2, progress=broken).finished == 2


def test_the_record_of_a_trial_is_json(study: optuna.Study) -> None:
    supermax.optimize(study, lambda trial: 1.0, n_trials=1, progress=False)
    record = study.trials[0].user_attrs["supermax"]
    assert json.loads(json.dumps(record)) == record
    assert record["peak_rss"] > 1_000_000


@pytest.mark.skipif(not system.LINUX, reason="names of threads are Linux's")
@pytest.mark.parametrize(("name", "forbids"), [("jemalloc_bg_thd", False), ("mine", True)])
def test_thread_with_fork_handlers_does_not_prevent_forking(name: str, forbids: bool) -> None:
    code = f"""
import ctypes, threading
from supermax.engine.processes.fork_server import _why_not_fork
named, over = threading.Event(), threading.Event()
def run():
    ctypes.CDLL(None).prctl(15, b"{name}", 0, 0, 0)
    named.set()
    over.wait()
thread = threading.Thread(target=run)
thread.start()
named.wait()
print(_why_not_fork())
over.set()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ("loading the objective started 1 thread\n" if forbids else "None\n")
