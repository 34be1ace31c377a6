"""Cells on other machines: agents are processes of this machine here, and are killed for real."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

import supermax
from supermax.engine.events import Event, FaultSeen, Notice, OutOfService, TrialReported
from supermax.engine.processes import host_agent
from supermax.engine.processes.executor import HostReady
from supermax.engine.processes.hosts import HostProcesses
from supermax.engine.processes.launcher import EndedAgent
from supermax.engine.processes.link import Hello, read_hello
from supermax.engine.processes.protocol import ObjectiveLoaded, encode_message
from supermax.engine.run import session
from tests.conftest import eventually
from tests.engine.executors import Subprocesses
from tests.engine.programs import short_trial, value_of

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(autouse=True)
def launcher(monkeypatch: pytest.MonkeyPatch) -> list[Subprocesses]:
    """Start agents as processes of this machine; return their launchers."""
    found: list[Subprocesses] = []

    def launch(executor: supermax.RayExecutor, workers: int) -> Subprocesses:
        found.append(Subprocesses(executor, workers))
        return found[-1]

    monkeypatch.setattr(session, "RayLauncher", launch)
    return found


def run(study: optuna.Study, objective: Callable[..., float], n_trials: int, **more: Any) -> Any:
    options = {"executor": "ray", "progress": False, **more}
    return supermax.optimize(study, objective, n_trials, **options)


def test_trials_on_hosts_that_see_nothing_of_the_run_folder(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The coordinator writes their reports, outcomes and logs."""
    monkeypatch.setenv("HIDDEN", "1")
    monkeypatch.setattr(HostProcesses, "_start_host", with_other_folder(HostProcesses._start_host))

    def objective(trial: Any) -> float:
        print("written elsewhere")
        assert not trial.folder.is_relative_to(tmp_path)
        return short_trial(trial)

    killed = tmp_path / "run" / "hosts-0123456789abcdef"  # of a run that was killed
    killed.parent.mkdir()
    killed.touch()
    run(study, objective, 2, run_dir=tmp_path / "run", workers=2)
    assert not list(killed.parent.glob("hosts-*"))
    for trial in study.trials:
        assert trial.value == value_of(**trial.params)
        folder = tmp_path / "run" / "trials" / f"{trial.number:05d}"
        assert "written elsewhere" in (folder / "log.txt").read_text()
        assert json.loads((folder / "outcome.json").read_text())["values"] == [trial.value]
        assert len((folder / "curve.jsonl").read_text().splitlines()) == 3


@pytest.mark.slow
def test_a_paused_trial_on_such_a_host_resumes(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(HostProcesses, "_start_host", with_other_folder(HostProcesses._start_host))

    def objective(trial: Any) -> float:
        for step in range(200 if trial.attempt == 1 else 1):
            time.sleep(0.05)
            trial.report(1.0, step)
        return 1.0

    paused = run(study, objective, 1, run_dir=tmp_path / "run", timeout=0.5)
    assert (paused.stopped_by, paused.finished) == ("timeout", 0)
    assert run(study, objective, 1, run_dir=tmp_path / "run").finished == 1
    assert study.trials[0].value == 1.0


def with_other_folder(start: Callable[[HostProcesses], None]) -> Callable[[HostProcesses], None]:
    def started(self: HostProcesses) -> None:
        kept, self._run_dir = self._run_dir, Path("/nowhere")
        start(self)
        self._run_dir = kept

    return started


def test_a_lost_host_is_replaced_and_its_trial_continues(
    study: optuna.Study, launcher: list[Subprocesses]
) -> None:
    seen: list[Event] = []
    before = set(Path(tempfile.gettempdir()).glob("supermax-*host-*"))

    def watch(event: Event) -> None:
        first = not any(isinstance(earlier, TrialReported) for earlier in seen)
        seen.append(event)
        if first and isinstance(event, TrialReported):
            for agent in launcher[0].agents.values():
                agent.kill()

    def objective(trial: Any) -> float:
        saved = trial.checkpoint_dir / "step"
        first = int(saved.read_text()) if saved.exists() else 0
        for step in range(first, 3):
            saved.write_text(str(step + 1))
            trial.report(step, step)
            time.sleep(0.3 if first == 0 else 0.0)
        return float(first)

    run(study, objective, 1, progress=watch)
    (trial,) = study.trials
    assert trial.value is not None
    assert trial.value > 0  # from the checkpoint
    (fault,) = [event for event in seen if isinstance(event, FaultSeen)]
    assert fault.kind == "node lost"
    assert any("was lost" in event.text for event in seen if isinstance(event, Notice))
    left = set(Path(tempfile.gettempdir()).glob("supermax-*host-*"))
    assert left == before  # the next agent removed the folder of the killed one


@pytest.mark.slow
def test_a_host_killed_for_memory_is_a_fault_of_its_trial(
    study: optuna.Study, launcher: list[Subprocesses], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is lost before the launcher knows why."""
    ended = Subprocesses.ended
    seen: list[Event] = []

    def killed(self: Subprocesses) -> list[EndedAgent]:
        return [replace(agent, out_of_memory=True) for agent in ended(self)]

    def watch(event: Event) -> None:
        seen.append(event)
        if isinstance(event, TrialReported):
            for agent in launcher[0].agents.values():
                agent.kill()

    def objective(trial: Any) -> float:
        if trial.attempt == 1:
            trial.report(0.0, 0)
            time.sleep(60)
        return 1.0

    monkeypatch.setattr(Subprocesses, "ended", killed)
    run(study, objective, 1, progress=watch, retries=1)
    assert [trial.value for trial in study.trials] == [1.0]
    faults = [event.kind for event in seen if isinstance(event, FaultSeen)]
    assert faults == ["host out of memory"]


@pytest.mark.slow
def test_a_machine_where_no_worker_starts_does_not_end_the_run(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It lacks the package, say. The others go on, and it is said once."""
    monkeypatch.setattr("supermax.engine.processes.hosts._MAX_LOSSES", 0)
    monkeypatch.setattr("supermax.engine.processes.hosts._LONGEST_BACK_OFF", 0.1)
    start, starts = Subprocesses.start, []
    seen: list[Event] = []

    def started(self: Subprocesses, assignment: host_agent.Assignment, objective: bytes) -> None:
        if assignment.host == 1:
            start(self, assignment, objective)
            return
        starts.append(assignment.host)
        wait = f"until [ -e {tmp_path}/running ]; do sleep 0.05; done; exit 1"
        self.agents[assignment.host] = subprocess.Popen(["sh", "-c", wait])
        if len(starts) == 4:
            (tmp_path / "enough").touch()

    def objective(trial: Any) -> float:
        (tmp_path / "running").touch()
        assert eventually((tmp_path / "enough").exists, within=30)
        return 1.0

    monkeypatch.setattr(Subprocesses, "start", started)
    run(study, objective, 1, workers=2, progress=seen.append)
    assert [trial.value for trial in study.trials] == [1.0]
    notices = [event.text for event in seen if isinstance(event, Notice)]
    assert [text for text in notices if "A worker did not start: exit code 1" in text] == notices


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def fail() -> None:
    raise ValueError("the library is missing here")


@pytest.mark.slow
@pytest.mark.parametrize("fault", [fail, pytest.param(crash, marks=pytest.mark.slow)])
def test_a_machine_on_which_trials_fail_that_succeed_elsewhere_is_taken_out(
    study: optuna.Study,
    monkeypatch: pytest.MonkeyPatch,
    launcher: list[Subprocesses],
    tmp_path: Path,
    fault: Callable[[], None],
) -> None:
    monkeypatch.setattr(Subprocesses, "machines", ("good", "bad"))
    seen: list[Event] = []

    def objective(trial: Any) -> float:
        if os.environ["MACHINE"] == "bad":
            assert eventually((tmp_path / "good").exists)
            fault()
        (tmp_path / "good").touch()
        return 1.0

    def stop(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        """The good machine may run many trials before the bad one has failed often enough."""
        if trial.number >= 12 and any(isinstance(event, OutOfService) for event in seen):
            study.stop()

    options = {"progress": seen.append, "run_dir": tmp_path / "run", "callbacks": [stop]}
    run(study, objective, 2000, workers=2, **options)
    assert {trial.value for trial in study.trials} == {1.0}
    (lost,) = [event for event in seen if isinstance(event, OutOfService)]
    assert lost.place == "machine bad"
    notices = [event.text for event in seen if isinstance(event, Notice)]
    (notice,) = [text for text in notices if "is out of service" in text]
    assert "failed on it and succeeded on other machines" in notice
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["out_of_service"] == {"machine bad": lost.why}
    assert "bad" not in launcher[0].machines


@pytest.mark.slow
@pytest.mark.parametrize("machines", [("one", "other"), ("one",)])
def test_trials_that_fail_on_all_machines_take_none_out(
    study: optuna.Study,
    monkeypatch: pytest.MonkeyPatch,
    machines: tuple[str, ...],
    tmp_path: Path,
) -> None:
    """Each is tried on two machines, if there are as many."""
    monkeypatch.setattr(Subprocesses, "machines", machines)
    seen: list[Event] = []

    def objective(trial: Any) -> float:
        machine = os.environ["MACHINE"]
        trial.set_user_attr("machines", trial.user_attrs.get("machines", "") + machine)
        (tmp_path / machine).touch()
        assert eventually(lambda: all((tmp_path / name).exists() for name in machines))
        if trial.number > 1:
            fail()
        return 1.0

    run(study, objective, 6, workers=2, progress=seen.append)
    assert [trial.state.name for trial in study.trials] == [*["COMPLETE"] * 2, *["FAIL"] * 4]
    assert not [event for event in seen if isinstance(event, OutOfService)]
    if len(machines) == 2:
        assert {t.user_attrs["machines"] for t in study.trials[2:]} <= {"oneother", "otherone"}


@pytest.mark.slow
def test_a_host_that_does_not_see_the_run_folder_is_refused_where_files_are_needed(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostProcesses, "_start_host", with_other_folder(HostProcesses._start_host))
    with pytest.raises(supermax.UserError, match="does not see the run folder"):
        run(study, short_trial, 1, executor=supermax.RayExecutor(shared_run_dir=True))


@pytest.mark.slow
def test_strangers_are_turned_away(study: optuna.Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections without the secret reach nothing, whatever they send."""
    addresses: list[tuple[str, int]] = []
    start = Subprocesses.start

    def started(self: Subprocesses, assignment: host_agent.Assignment, objective: bytes) -> None:
        addresses.append(assignment.address)
        for line in (
            b"",
            b"\n",
            b"1 {}\n",
            Hello(1, "guess", "x", "/", True).line(),
            b"\xff" * 99,
        ):
            with socket.create_connection(assignment.address) as stranger:
                stranger.sendall(line)
        start(self, assignment, objective)

    monkeypatch.setattr(Subprocesses, "start", started)
    assert run(study, short_trial, 2).finished == 2
    with pytest.raises(OSError):
        socket.create_connection(addresses[0], 1)


def test_lines_that_arrive_with_the_hello_are_read(tmp_path: Path) -> None:
    """No selector wakes for them any more."""
    launcher = Subprocesses(supermax.RayExecutor(), 1)
    processes = HostProcesses(
        launcher, b"", fresh=True, run_dir=tmp_path, share=False, emit=lambda _: None
    )
    hello = Hello(1, processes._listener.secret, "node", "/tmp", shares_run_dir=True)
    loaded = b"0 " + encode_message(ObjectiveLoaded(None))
    with socket.create_connection(processes._listener.address) as host:
        host.sendall(hello.line() + loaded)
        found = [event for _ in range(4) for event in processes.wait(0.5)]
    assert [type(event) for event in found][:1] == [HostReady]
    processes.close()


@given(st.binary(max_size=200))
def test_only_the_secret_opens_a_connection(line: bytes) -> None:
    assert read_hello(line, "s" * 64) is None
    hello = Hello(3, "s" * 64, "node", "/tmp", shares_run_dir=False)
    assert read_hello(hello.line(), "s" * 64) == hello
    assert read_hello(hello.line(), "t" * 64) is None
    for odd in (b'{"host":1,"secret":"\xc3\xa4","node":"","scratch":"","shares_run_dir":true}',):
        assert read_hello(odd, "s" * 64) is None
    assert read_hello(b"[" * 200_000, "s" * 64) is None


@pytest.mark.slow
def test_agents_end_with_a_coordinator_that_was_killed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    pid = os.fork()
    if pid == 0:
        study = optuna.create_study(storage=url, study_name="s")
        try:
            run(study, sleeping, 1, run_dir=tmp_path / "run")
        finally:
            os._exit(1)
    try:
        assert eventually(lambda: (tmp_path / "run" / "pid").exists(), within=30)
        cell = int((tmp_path / "run" / "pid").read_text())
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert eventually(lambda: not Path(f"/proc/{cell}").exists())


def sleeping(trial: Any) -> float:
    spare = trial.folder.parent.parent / "spare"
    spare.write_text(str(os.getpid()))
    spare.replace(spare.with_name("pid"))
    time.sleep(600)
    return 0.0


def test_gpus_of_this_machine_and_a_cluster_exclude_each_other(study: optuna.Study) -> None:
    with pytest.raises(supermax.UserError, match="Ray chooses the GPUs"):
        run(study, short_trial, 1, devices=[0])
    with pytest.raises(supermax.UserError, match="executor must be 'local', 'ray' or"):
        run(study, short_trial, 1, executor="slurm")
    with pytest.raises(supermax.UserError, match="trials must be an integer >= 1"):
        run(study, short_trial, 1, executor=supermax.RayExecutor(trials=0))
