"""Tracker processes that are killed or get no answer, and a run that is not affected."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial

import supermax
from supermax.results.tracking import Tracker, tracked
from tests.conftest import eventually
from tests.results.tracking.servers import MlflowServer, deaf_server, metrics, params, tags

COMMAND = [sys.executable, "-c", "from supermax.ui.cli import main; main()", "track"]
STEPS = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    """One for all: it takes seconds to start. All of its processes run before the first test, so
    that none counts as left by a test."""
    made = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    made.start()
    made.wait()
    yield made
    made.kill()


@pytest.fixture
def server_to_kill(tmp_path: Path) -> Iterator[MlflowServer]:
    """Start a server for a test that kills and restarts it."""
    made = MlflowServer(tmp_path)
    made.start()
    made.wait()
    yield made
    made.kill()


@pytest.fixture(autouse=True)
def no_address_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def objective(trial: Any) -> float:
    x: float = trial.suggest_float("x", 0, 1)
    for step in range(STEPS):
        trial.report(trial.number * 100 + trial.attempt * 10 + step, step)
        time.sleep(0.1)
    if trial.number == 1 and trial.attempt == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    if trial.number == 2:
        raise ValueError("never works")
    if trial.number == 3:
        raise optuna.TrialPruned
    return x


@pytest.mark.slow
def test_a_run_is_not_affected_by_a_server_that_is_killed_and_restarted(
    server_to_kill: MlflowServer, study: optuna.Study, quick: None
) -> None:
    server = server_to_kill

    def disturb(study: optuna.Study, trial: Any) -> None:
        if trial.number == 4:
            assert eventually(lambda: tracker.standing.sent > 0)
            server.kill()
        if trial.number == 5:
            server.start()  # it takes longer to come up than the rest of the run

    left: list[str] = []
    with tracked(study, server.url, patience=60, tell=left.append) as tracker:
        summary = supermax.optimize(
            study, objective, n_trials=8, progress=False, callbacks=[disturb]
        )
        assert not server.answers()
    trouble = f"MLflow: {server.url} cannot be reached. The run is not affected"
    assert [text.startswith(trouble) for text in left] in ([], [True])  # nothing is left
    assert summary.trials["COMPLETE"] == 6
    assert (summary.retries, summary.stopped_by) == (1, None)
    runs = server.trials("test")
    assert sorted(runs) == list(range(8))
    status = {number: run["info"]["status"] for number, run in runs.items()}
    assert status == {n: {2: "FAILED", 3: "KILLED"}.get(n, "FINISHED") for n in range(8)}
    for trial in study.trials:
        run = runs[trial.number]
        curve = sorted(trial.intermediate_values.items())
        assert server.history(run, "curve/value") == curve
        assert len(server.history(run, "run/seconds")) == 1
        assert metrics(run).get("value") == trial.value
        assert params(run) == {"x": repr(trial.params["x"])}
        ledger = {"ledger.json"} if trial.number in (1, 2) else set()
        assert server.files(run) == {"configuration.json"} | ledger
    assert metrics(runs[1])["run/attempts"] == 2
    assert tags(runs[1])["supermax.fault.kind"] == "signal SIGSEGV"
    assert tags(runs[2])["supermax.fault.message"] == "ValueError: never works"
    assert tags(runs[3])["supermax.state"] == "PRUNED"
    (parent,) = [run for run in server.runs("test") if "supermax.trial" not in tags(run)]
    assert parent["info"]["status"] == "FINISHED"
    assert tags(parent)["supermax.best.trial"] == str(study.best_trial.number)


def hostile() -> dict[str, Any]:
    names = ["a" * 400, "../../etc", "x\n", "ключ", "' OR 1=1", "%s{}", "a//b", "", "\ud800", "lr"]
    values = {name: f"value of {i}\0" + "v" * 9000 for i, name in enumerate(names)}
    return {
        "params": values,
        "distributions": {name: CategoricalDistribution([v]) for name, v in values.items()},
        "intermediate_values": {0: float("nan"), 1: float("inf"), 2: -0.0, 10**12: 1e-300},
    }


@pytest.mark.slow
def test_hostile_names_and_values_from_the_command_line(
    server: MlflowServer, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    name = "наука '; DROP TABLE runs; -- \N{PILE OF POO}" + "n" * 400
    study = optuna.create_study(storage=url, study_name=name)
    harmless = {k: v for k, v in hostile().items() if k == "intermediate_values"}
    study.add_trial(create_trial(value=1.0, **harmless))
    study.add_trial(create_trial(value=1.0, **_storable(hostile())))
    words = [name, "--uri", server.url, "--storage", str(tmp_path / "study.db")]
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert f"2 trials of '{name}' sent to {server.url}." in done.stdout
    assert done.returncode == 0
    runs = server.trials(name)
    assert len(params(runs[1])) == len(_storable(hostile())["params"])
    assert params(runs[1])["lr"].startswith("value of")
    steps = [step for step, _ in server.history(runs[1], "curve/value")]
    assert steps == [0, 1, 2, 10**12]


def _storable(trial: dict[str, Any]) -> dict[str, Any]:
    """Return the trial without parameters whose names SQLite rejects."""
    keep = [name for name in trial["params"] if name != "\ud800"]
    return {
        **trial,
        "params": {name: trial["params"][name] for name in keep},
        "distributions": {name: trial["distributions"][name] for name in keep},
    }


def filled(study: optuna.Study, count: int) -> None:
    space = {"x": FloatDistribution(0, 1)}
    study.add_trials(
        create_trial(
            state=TrialState.COMPLETE,
            value=0.1 * number,
            params={"x": 0.5},
            distributions=space,
            intermediate_values={step: number + step for step in range(5)},
        )
        for number in range(count)
    )


@pytest.mark.slow
def test_a_tracker_killed_repeatedly_creates_no_duplicates(
    study: optuna.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into the default: a file beside the study's, which the first one is making when it dies."""
    monkeypatch.setattr("supermax.results.tracking.process._PAUSES", (0.01,) * 10)
    filled(study, 8)
    database = tmp_path / "mlflow.db"
    with tracked(study, patience=60) as tracker:
        assert eventually((tmp_path / ".mlflow.db.new").exists, within=60)
        kill(tracker)
        assert not database.exists()
        assert eventually(lambda: done_so_far(tracker) >= 2, within=60)
        kill(tracker)
    assert tracker.unsent() == 0
    assert sorted(path.name for path in tmp_path.glob("*mlflow.db*")) == [
        "mlflow.db",
        "mlflow.db.artifacts",
    ]
    with sqlite3.connect(database) as connection:
        numbers = connection.execute(
            "select value from tags join runs using (run_uuid) "
            "where key = 'supermax.trial' and lifecycle_stage = 'active'"
        ).fetchall()
        steps = connection.execute(
            "select count(*) from metrics join runs using (run_uuid) "
            "where key = 'curve/value' and lifecycle_stage = 'active'"
        ).fetchone()
    assert Counter(int(number) for (number,) in numbers) == Counter(range(8))
    assert steps == (40,)


def kill(tracker: Tracker) -> None:
    """Kill the tracker and wait until it was restarted."""
    pid = tracker.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: tracker.pid not in (None, pid))


def done_so_far(tracker: Tracker) -> int:
    return len(tracker.folder.record(tracker._study_key).done)


def quick_objective(trial: Any) -> float:
    return float(trial.suggest_float("x", 0, 1))


@pytest.mark.slow
def test_a_server_that_never_answers_does_not_affect_the_run(
    study: optuna.Study, tmp_path: Path, quick: None
) -> None:
    left: list[str] = []
    with deaf_server() as address:
        began = time.monotonic()
        uri = f"http://me:open-sesame@{address}"
        with tracked(study, uri, patience=1, tell=left.append) as tracker:
            summary = supermax.optimize(
                study, quick_objective, 3, progress=False, reuse_cells=True
            )
            assert time.monotonic() - began < 120  # a client that waits takes ten minutes
            assert eventually(lambda: tracker.standing.trouble is not None, within=30)
            ending = time.monotonic()
        assert time.monotonic() - ending < 60
    assert summary.trials["COMPLETE"] == 3
    *trouble, sentence = left
    assert len(trouble) <= 1
    assert "open-sesame" not in str(trouble)
    assert "3 trials are not in MLflow yet" in sentence
    assert f"http://{address} does not answer within 5 s" in sentence
    assert "supermax track test --storage" in sentence
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 5
    assert not [path for path in written if b"open-sesame" in path.read_bytes()]
    assert "open-sesame" not in sentence


@pytest.mark.slow
def test_a_tracker_ends_with_its_program(tmp_path: Path, study: optuna.Study) -> None:
    filled(study, 1)
    code = (
        "import optuna, os, signal\n"
        "from supermax.results.tracking import tracked\n"
        f"study = optuna.load_study(study_name='test', storage='sqlite:///{tmp_path}/study.db')\n"
        "with tracked(study, 'http://127.0.0.1:9') as tracker:\n"
        "    while tracker.pid is None: pass\n"
        "    print(tracker.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip().isdigit()  # and the fixture proves that it is gone
