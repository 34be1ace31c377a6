"""Regression tests for hostile trials, callers and machines."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest
from optuna.trial import FrozenTrial, TrialState

import supermax
from supermax._util import system
from supermax.engine import events
from tests.conftest import engine_processes, eventually
from tests.few import a_few

pytestmark = pytest.mark.usefixtures("quick")
COMPLETE, FAIL = TrialState.COMPLETE, TrialState.FAIL


def run(study: optuna.Study, objective: Any, n_trials: int, **options: Any) -> supermax.Summary:
    options.setdefault("progress", False)
    return supermax.optimize(study, objective, n_trials, **options)


def states(study: optuna.Study) -> list[TrialState]:
    return [trial.state for trial in study.trials]


GARBAGE = [b"[1]\n", b"5\n", b"{}\n", b'{"":"Suggest"}\n', b"\xff\xfe\n", b'{"":"Finished"}\n']
FALSE = [
    b'{"":"Report","step":"one","value":"two"}\n',
    b'{"":"Finished","outcome":{},"unclean":null}\n',
    b'{"":"ReadStudy","what":"delete_study","args":[0]}\n',
]


@pytest.mark.parametrize("line", a_few(GARBAGE + FALSE), ids=repr)
def test_invalid_messages_fail_their_own_trial_alone(study: optuna.Study, line: bytes) -> None:
    def objective(trial: Any) -> float:
        if trial.number == 0:
            os.write(trial._connection.channel.fileno(), line)
            threading.Event().wait()
        return 1.0

    summary = run(study, objective, 3, trial_timeout=1.5, workers=2)
    assert summary.finished == 3
    assert study.trials[0].state is not COMPLETE
    assert states(study)[1:] == [COMPLETE] * 2


def test_a_cell_holds_no_other_cells_connection(study: optuna.Study) -> None:
    def objective(trial: Any) -> float:
        sockets = 0
        for fd in range(100):
            with contextlib.suppress(OSError):
                sockets += stat.S_ISSOCK(os.fstat(fd).st_mode)
        return float(sockets)

    run(study, objective, 12, workers=8)
    assert {trial.value for trial in study.trials} == {1.0}


def test_trial_that_removes_its_folder_loses_only_its_log(study: optuna.Study) -> None:
    def objective(trial: Any) -> float:
        if trial.number == 0:
            shutil.rmtree(trial.checkpoint_dir.parent)
            print("hello", flush=True)
        return 1.0

    summary = run(study, objective, 4, workers=2)
    assert summary.faults == {}
    assert states(study) == [COMPLETE] * 4


def test_an_outcome_survives_a_cell_that_can_open_no_file(study: optuna.Study) -> None:
    def objective(trial: Any) -> float:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
        return 1.0

    run(study, objective, 1)
    assert study.trials[0].value == 1.0


def test_an_exception_that_cannot_be_printed_keeps_its_name(study: optuna.Study) -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def objective(trial: Any) -> float:
        if trial.number == 0:
            raise Broken
        return 1.0

    summary = run(study, objective, 2)
    assert summary.faults == {"exception": 1}
    assert "Broken" in study.trials[0].user_attrs["supermax"]["faults"][0]["message"]


@pytest.mark.parametrize("reuse", [False, True])
def test_streams_that_are_not_files_are_handled(study: optuna.Study, reuse: bool) -> None:
    def objective(trial: Any) -> float:
        sys.stdout = sys.stderr = None  # type: ignore[assignment]
        return 1.0

    run(study, objective, 3, reuse_cells=reuse)
    assert states(study) == [COMPLETE] * 3


def test_thread_that_outlives_its_trial_cannot_send_for_the_next(study: optuna.Study) -> None:
    def objective(trial: Any) -> float:
        def chatter() -> None:
            while True:
                trial.set_user_attr("late", trial.number)

        thread = threading.Thread(target=chatter, daemon=True)
        thread.start()
        return float(trial.number)

    run(study, objective, 6, reuse_cells=True)
    for trial in study.trials:
        assert trial.value == trial.number
        assert trial.user_attrs.get("late", trial.number) == trial.number


def test_trial_finished_by_another_program_is_abandoned(url: str, study: optuna.Study) -> None:
    def objective(trial: Any) -> float:
        for step in range(10_000 if trial.number == 0 else 1):
            trial.report(0.0, step)
            threading.Event().wait(0.01)
        return 1.0

    def interfere(event: events.Event) -> None:
        if isinstance(event, events.TrialReported) and event == events.TrialReported(0, 3, 0.0):
            other = optuna.load_study(study_name="test", storage=url)
            other.tell(0, state=TrialState.FAIL)

    summary = run(study, objective, 4, progress=interfere)
    assert summary.finished == 4
    assert states(study) == [FAIL, COMPLETE, COMPLETE, COMPLETE]


@pytest.mark.parametrize("step", [10**30, 2**63])
def test_step_out_of_range_does_not_break_the_study(study: optuna.Study, step: int) -> None:
    def objective(trial: Any) -> float:
        trial.report(0.0, step if trial.number == 0 else 1)
        return 1.0

    run(study, objective, 2)
    run(study, objective, 3)
    assert states(study) == [FAIL, COMPLETE, COMPLETE]


class SlowPruner(optuna.pruners.BasePruner):
    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        eventually(lambda: False, within=1.0)
        return False


@pytest.mark.slow
def test_slow_pruners_and_callbacks_do_not_cause_a_stall(url: str) -> None:
    """Neither a slow pruner nor a slow callback of the coordinator counts as a stall."""
    study = optuna.create_study(storage=url, pruner=SlowPruner())

    def objective(trial: Any) -> float:
        for step in range(1 if trial.number == 0 else 20):
            trial.report(0.0, step)
            threading.Event().wait(0.1)
        return float(trial.number == 0 and trial.should_prune())

    def slow(_: optuna.Study, trial: FrozenTrial) -> None:
        if trial.number == 0:
            eventually(lambda: False, within=1.5)

    summary = run(study, objective, 2, workers=2, stall_timeout=0.6, callbacks=[slow])
    assert summary.faults == {}
    assert states(study) == [COMPLETE] * 2


def in_a_module(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    (folder / "user_module.py").write_text(textwrap.dedent(source))
    (folder / "script.py").write_text(
        "import optuna, supermax, sys, user_module\n"
        "study = optuna.create_study(storage='sqlite:///s.db')\n"
        "supermax.optimize(study, user_module.objective, 3, progress=False)\n"
        "print([trial.state.name for trial in study.trials])\n"
    )
    return subprocess.run(
        [sys.executable, "script.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.slow
def test_processes_started_by_a_module_live_as_long_as_the_cells(tmp_path: Path) -> None:
    done = in_a_module(
        tmp_path,
        """
        import multiprocessing
        manager = multiprocessing.get_context("fork").Manager()
        shared = manager.dict()

        def objective(trial):
            shared[trial.number] = 1.0
            return shared[trial.number]
        """,
    )
    assert done.stdout.strip() == str(["COMPLETE"] * 3), done.stderr


@pytest.mark.slow
def test_run_started_at_import_does_not_recurse(tmp_path: Path) -> None:
    done = in_a_module(
        tmp_path,
        """
        import optuna, supermax

        def objective(trial):
            return 1.0

        supermax.optimize(optuna.create_study(), objective, 1, progress=False)
        """,
    )
    assert "while the objective was being loaded" in done.stderr
    assert "__main__" in done.stderr


@pytest.mark.slow
def test_a_child_of_the_program_does_not_keep_a_dead_run_alive(tmp_path: Path, url: str) -> None:
    """The child inherits all descriptors of the coordinator."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import optuna, os, pathlib, supermax, time
            folder = pathlib.Path({str(tmp_path)!r})
            study = optuna.create_study(storage={url!r}, study_name="s", load_if_exists=True)

            def objective(trial):
                while trial.number and not (folder / "go").exists():
                    time.sleep(0.01)
                return 1.0

            def fork(study, trial):
                if trial.number == 0 and (pid := os.fork()) == 0:
                    time.sleep(600)
                elif trial.number == 0:
                    (folder / "writing").write_text(str(pid))
                    (folder / "writing").rename(folder / "child")

            supermax.optimize(study, objective, 2, callbacks=[fork], progress=False)
            """
        )
    )
    program = subprocess.Popen([sys.executable, str(script)])
    child = 0
    try:
        assert eventually((tmp_path / "child").exists, 30)
        child = int((tmp_path / "child").read_text())
        assert eventually(lambda: bool(engine_processes()))
        program.kill()
        program.wait()
        assert eventually(lambda: not engine_processes(), 5.0)
        (tmp_path / "go").touch()
        subprocess.run([sys.executable, str(script)], check=True, timeout=60)
    finally:
        program.kill()
        program.wait()
        if child:
            os.kill(child, signal.SIGKILL)


@pytest.mark.slow
def test_ctrl_c_while_the_objective_loads_ends_soon(tmp_path: Path) -> None:
    (tmp_path / "user_module.py").write_text(
        "import os, pathlib, time\n"
        "if os.environ.get('SUPERMAX_LOADING'):\n"
        "    pathlib.Path('loading').touch()\n"
        "    time.sleep(600)\n"
        "def objective(trial):\n"
        "    return 1.0\n"
    )
    (tmp_path / "script.py").write_text(
        "import optuna, supermax, user_module\n"
        "study = optuna.create_study(storage='sqlite:///s.db')\n"
        "print(supermax.optimize(study, user_module.objective, 3, progress=False).stopped_by)\n"
    )
    program = subprocess.Popen(
        [sys.executable, "script.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert eventually((tmp_path / "loading").exists, 30)
    program.send_signal(signal.SIGINT)
    output, _ = program.communicate(timeout=5)
    assert output.strip() == "interrupt"


def test_the_same_study_by_another_path_is_refused(tmp_path: Path, url: str) -> None:
    study = optuna.create_study(storage=url, study_name="test")
    (tmp_path / "link.db").symlink_to(tmp_path / "study.db")
    said: list[str] = []

    def again(_: optuna.Study, trial: FrozenTrial) -> None:
        if trial.number == 0:
            linked = optuna.load_study(study_name="test", storage=f"sqlite:///{tmp_path}/link.db")
            with pytest.raises(supermax.UserError) as refused:
                run(linked, lambda trial: 2.0, 5)
            said.append(str(refused.value))

    run(study, lambda trial: 1.0, 3, callbacks=[again])
    assert "Another run is at work" in said[0]
    assert [trial.value for trial in study.trials] == [1.0] * 3


def test_running_trials_of_another_run_folder_are_foreign(
    study: optuna.Study, tmp_path: Path
) -> None:
    """Like those of another machine on a shared study."""
    trial_of_theirs = study.ask()
    study._storage.set_trial_system_attr(trial_of_theirs._trial_id, "supermax:claim", "theirs")
    run(study, lambda trial: 1.0, 2)
    assert study.trials[0].state is TrialState.RUNNING


@pytest.mark.slow
def test_a_stopped_fork_server_is_replaced(study: optuna.Study) -> None:
    def objective(trial: Any) -> float:
        if trial.number == 0 and trial.attempt == 1:
            os.kill(os.getppid(), signal.SIGSTOP)  # the fork server
            threading.Event().wait()
        return 1.0

    run(study, objective, 2, trial_timeout=1.0)
    assert study.trials[1].state is COMPLETE


class KilledWhileLoading:
    """Objective that kills the fork server from a trial, and the next one while it loads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __setstate__(self, fields: dict[str, Any]) -> None:
        vars(self).update(fields)
        if (self.folder / "trial").exists() and not (self.folder / "load").exists():
            (self.folder / "load").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def __call__(self, trial: Any) -> float:
        if trial.number == 1 and trial.attempt == 1:
            (self.folder / "trial").touch()
            os.kill(os.getppid(), signal.SIGKILL)
            threading.Event().wait()
        return 1.0


def test_a_fork_server_that_is_killed_while_it_loads_again_is_replaced(
    study: optuna.Study, tmp_path: Path
) -> None:
    """Once the objective was loaded, failures to load are attributed to the machine."""
    run(study, KilledWhileLoading(tmp_path), 3)
    assert (tmp_path / "load").exists()
    assert states(study) == [COMPLETE] * 3


@pytest.mark.slow
def test_no_descriptor_is_lost_over_many_trials(study: optuna.Study) -> None:
    me = psutil.Process()
    run(study, lambda trial: 1.0, 2)
    gc.collect()  # what earlier tests have left is not this run's
    before = me.num_fds()
    run(study, lambda trial: 1.0, 30, workers=2)
    gc.collect()
    assert me.num_fds() == before


def test_a_database_is_read_while_the_run_writes(study: optuna.Study, url: str) -> None:
    seen: list[int] = []

    def look(_: optuna.Study, trial: FrozenTrial) -> None:
        seen.append(len(optuna.load_study(study_name="test", storage=url).trials))

    run(study, lambda trial: 1.0, 3, callbacks=[look])
    assert seen == [1, 2, 3]


def test_the_ledger_is_readable_json(study: optuna.Study) -> None:
    summary = run(study, lambda trial: 1.0, 1)
    lines = (summary.run_dir / "trials" / "00000" / "ledger.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["launch"] == 1
    assert system.oom_kills() >= 0
