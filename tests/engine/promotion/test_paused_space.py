"""Disk space of paused trials: the worst ones lose their checkpoints, and nothing else changes."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

import supermax
from supermax.engine import events
from supermax.engine.jobs.job import Job
from supermax.engine.promotion import paused_space
from supermax.engine.promotion.paused_space import FEWEST, PausedSpace
from supermax.engine.storage.run_folder import StudyFolder, TrialFolder
from tests import ROOT
from tests.engine.programs import loss_after, nine_epochs

SIZE = 1000


def paused(folder: StudyFolder, number: int, place: Path | None = None) -> Job:
    """Return a paused trial with a checkpoint."""
    trial: Any = SimpleNamespace(number=number)
    job = Job(trial, folder.trial(number))
    files = (place or job.folder.checkpoint) / "deep"
    files.mkdir(parents=True)
    (files / "state").write_bytes(bytes(SIZE))
    return job


Made = Callable[..., tuple[PausedSpace, list[Job], list[events.Event]]]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    def make(limit: int | None, count: int = 8) -> Any:
        folder, said = StudyFolder(tmp_path), list[events.Event]()
        space = PausedSpace(limit, folder, said.append)
        jobs = [paused(folder, number) for number in range(count)]
        for job in jobs:
            space.add(job)
        return space, jobs, said

    return make


def kept(jobs: list[Job]) -> list[int]:
    return [job.number for job in jobs if job.folder.checkpoint.exists()]


def test_worst_trials_lose_their_checkpoints(made: Made) -> None:
    space, jobs, said = made(6 * SIZE + 1)
    space.make_room(jobs)
    assert kept(jobs) == [2, 3, 4, 5, 6, 7]
    assert jobs[0].folder.records()[-1]["dropped"]
    assert jobs[0].folder.records()[-1]["paused"]  # also to the next run
    space.make_room(jobs)
    assert len(kept(jobs)) == 6
    (notice,) = said
    assert "5.9 KiB" in str(notice)
    space.discard(7)  # it is continued
    space.make_room(jobs[:7])
    assert kept(jobs[:7]) == [2, 3, 4, 5, 6]


def test_a_few_are_kept_in_any_case(made: Made) -> None:
    space, jobs, _ = made(0)
    space.make_room(jobs)
    assert kept(jobs) == [4, 5, 6, 7]
    assert len(kept(jobs)) == FEWEST


def test_without_a_limit_they_may_take_half_of_what_is_free(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    space, jobs, _ = made(None)
    usage = SimpleNamespace(free=3 * SIZE)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    space.make_room(jobs)  # (3 + 8) / 2
    assert kept(jobs) == [3, 4, 5, 6, 7]


def test_checkpoint_that_a_kill_has_left_half_removed_is_not_used(made: Made) -> None:
    space, jobs, _ = made(0)
    left = jobs[0].folder.checkpoint.with_name(".checkpoint.dropped")
    jobs[0].folder.checkpoint.rename(left)
    space.add(jobs[0])
    assert not left.exists()
    assert not jobs[0].folder.checkpoint.exists()


def test_checkpoint_is_removed_before_the_ledger_is_written(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    space, jobs, _ = made(0)
    left: list[list[str]] = []

    def append(folder: TrialFolder, _: object) -> None:  # waits where the disk is full
        left.append(sorted(path.name for path in folder.path.iterdir()))

    monkeypatch.setattr(TrialFolder, "append", append)
    space.make_room(jobs)
    assert left == [[], [], [], []]


def test_checkpoints_in_a_shared_folder_are_counted_there(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "run")
    folder.checkpoints = str(tmp_path / "shared")
    jobs = [paused(folder, n, Path(str(folder.checkpoints_of(n))) / "1") for n in range(6)]
    said: list[events.Event] = []
    space = PausedSpace(0, folder, said.append)
    for job in jobs:
        space.add(job)
    space.make_room(jobs)
    assert sorted(path.name for path in (tmp_path / "shared").iterdir()) == [
        "00002", "00003", "00004", "00005",
    ]  # fmt: skip
    assert f"on the disk of {tmp_path / 'shared'} (checkpoints)" in str(said[0])


def test_with_a_url_the_local_copies_are_counted(tmp_path: Path) -> None:
    folder, said = StudyFolder(tmp_path / "run"), list[events.Event]()
    folder.checkpoints = f"file://{tmp_path / 'elsewhere'}"
    space = PausedSpace(0, folder, said.append)
    jobs = [paused(folder, number) for number in range(6)]
    for job in jobs:
        space.add(job)
    space.make_room(jobs)
    assert kept(jobs) == [2, 3, 4, 5]
    assert "loads its checkpoint from the URL if it continues" in str(said[0])
    assert "on the disk of the run folder" in str(said[0])


@pytest.mark.usefixtures("quick")
def test_space_changes_what_trials_cost_and_not_which_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paused_space, "FEWEST", 1)
    ends, trained = [], []
    for name, space in (("wide", None), ("narrow", 0)):
        marks = tmp_path / f"{name}-marks"
        monkeypatch.setenv("MARKS", str(marks))
        study = optuna.create_study(
            storage=f"sqlite:///{tmp_path}/{name}.db",
            sampler=optuna.samplers.RandomSampler(seed=1),
        )
        summary = supermax.optimize(
            study,
            nine_epochs,
            14,
            pruner=always(),
            paused_space=space,
            progress=False,
            reuse_cells=True,
        )
        assert summary.finished == 14
        ends.append([(t.state, t.intermediate_values) for t in study.trials])
        trained.append(Counter(marks.read_text().splitlines()))
    assert ends[0] == ends[1]
    assert trained[0].most_common(1)[0][1] == 1
    assert trained[1].most_common(1)[0][1] == 2  # some started again


def always() -> supermax.Promotion:
    return supermax.Promotion(max_reports=9, min_agreement=-1, run_through=0)


KILLED = """
import os, signal, sys, optuna, supermax
from supermax.engine import events
from supermax.engine.promotion import paused_space
from tests.engine.programs import nine_epochs
from tests.engine.promotion.test_paused_space import always

paused_space.FEWEST = 1

def listen(event):
    dropped = isinstance(event, events.Notice) and "checkpoints of paused" in event.text
    if dropped and len(sys.argv) > 2:
        os.kill(os.getpid(), signal.SIGKILL)

study = optuna.create_study(
    storage=sys.argv[1], study_name="test", load_if_exists=True,
    sampler=optuna.samplers.RandomSampler(),
)
supermax.optimize(
    study, nine_epochs, 10, pruner=always(), paused_space=0, progress=listen, reuse_cells=True
)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_run_that_is_killed_after_removing_checkpoints_goes_on(url: str) -> None:
    command = [sys.executable, "-c", KILLED, url]
    killed = subprocess.run([*command, "kill"], cwd=ROOT, capture_output=True, timeout=60)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    trials = optuna.load_study(storage=url, study_name="test").trials
    assert len(trials) == 10
    assert {trial.state for trial in trials} == {TrialState.COMPLETE, TrialState.PRUNED}
    for trial in trials:
        epochs = sorted(trial.intermediate_values)
        assert epochs == list(range(1, len(epochs) + 1))
        for epoch in epochs:
            expected = loss_after(trial.params["x"], epoch)
            assert trial.intermediate_values[epoch] == pytest.approx(expected)
