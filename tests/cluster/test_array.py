"""Job arrays on a stand-in for Slurm: preempted, killed and at their time limit, with a database
server that exists, and with one that the first task runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from supermax.cluster.database import DatabaseFolder
from tests.cluster.stand_in import JOB, Cluster
from tests.cluster.test_database import serving
from tests.conftest import eventually
from tests.engine.storage.postgres import restartable_server
from tests.ui.cli.helping import sm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
EPOCHS = 40
SEARCH = (
    *("--set", "trials=4", "--set", f"epochs={EPOCHS}", "--set", f"patience={EPOCHS}"),
    *("--set", "pruner=none", "--set", "data.posts=150"),
)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    cluster = Cluster(tmp_path / "cluster")
    monkeypatch.setenv("PATH", str(cluster.bin), prepend=":")
    return cluster


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    with restartable_server() as server:
        folder = Path(server.path).parent
        yield f"postgresql+psycopg://postgres@/postgres?host={folder}"


def submit(*more: str) -> Path:
    array = ("slurm", "criteria", "--nodes", "2", "--time", "60", *SEARCH, *more)
    assert f"Submitted as job {JOB}." in sm(*array, "--submit")
    return Path("slurm-criteria").absolute()


def trials(url: str) -> list[FrozenTrial]:
    storage = RDBStorage(url)
    try:
        return storage.get_all_trials(storage.get_study_id_from_name("criteria"))
    except KeyError:
        return []
    finally:
        storage.engine.dispose()


def check(url: str) -> None:
    """Each trial was finished, once, with its whole curve."""
    found = trials(url)
    assert [trial.number for trial in found] == [0, 1, 2, 3]
    assert {trial.state for trial in found} == {TrialState.COMPLETE}
    for trial in found:
        assert sorted(trial.intermediate_values) == list(range(1, EPOCHS + 1))


def curve(folder: Path, task: int) -> dict[int, list[tuple[int, int]]]:
    """Return attempt and epoch of each report, by trial, of a task's run."""
    files = sorted((folder / "runs" / f"{JOB}_{task}" / "trials").glob("*/curve.jsonl"))
    return {
        int(file.parent.name): [
            tuple(json.loads(line)[:2]) for line in file.read_text().splitlines()
        ]
        for file in files
    }


def first_steps(folder: Path) -> list[int]:
    """Return the first epoch of each attempt after the first, in all runs."""
    found = []
    for task in (0, 1):
        for reports in curve(folder, task).values():
            attempts = sorted({attempt for attempt, _ in reports} - {1})
            found += [min(step for a, step in reports if a == attempt) for attempt in attempts]
    return found


def trains(folder: Path, task: int, epochs: int = 5) -> bool:
    return any(reports[-1][1] >= epochs for reports in curve(folder, task).values() if reports)


def test_interrupted_tasks_go_on_with_their_trials(
    cluster: Cluster, server_url: str, tmp_path: Path
) -> None:
    """One is preempted, the other reaches its time limit, then both are killed."""
    folder = submit("--storage", server_url)
    with cluster.running():
        assert eventually(lambda: trains(folder, 0) and trains(folder, 1), within=60)
        cluster.preempt(0, grace=60)
        cluster.announce_time_limit(1)
        assert eventually(lambda: cluster.starts == {0: 2, 1: 2}, within=60)
        for task in (0, 1):
            assert "Stopped by interrupt" in cluster.log(task)
            assert "killed from outside" not in cluster.log(task)
            assert f"Task {JOB}_{task} is requeued." in cluster.log(task)
        assert eventually(lambda: len(first_steps(folder)) >= 2, within=60)
        assert min(first_steps(folder)) > 1, curve(folder, 0)  # from the checkpoint
        cluster.requeue(0)
        assert eventually(lambda: cluster.starts[0] == 3, within=60)
        assert eventually(lambda: cluster.codes == {0: 0, 1: 0}, within=120), cluster.log(0)
    check(server_url)


@pytest.mark.skipif(os.geteuid() == 0, reason="PostgreSQL does not run as root")
def test_a_database_of_the_job_moves_with_its_task(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = submit("--database", "database")
    with cluster.running():
        assert eventually(lambda: trains(folder, 0) and trains(folder, 1), within=90)
        cluster.preempt(0, grace=60)
        assert eventually(lambda: cluster.starts[0] == 2, within=60)
        assert "database system is shut down" in cluster.log(0)
        assert eventually(lambda: cluster.codes == {0: 0, 1: 0}, within=180), cluster.log(0)
    assert cluster.starts == {0: 2, 1: 1}  # the other task waited for the database
    assert (cluster.folder / "cancelled").exists()
    place = DatabaseFolder(tmp_path / "database")
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    with serving(place):
        check(os.environ["SUPERMAX_STORAGE"])
