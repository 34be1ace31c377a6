"""Ends of runs that share a study: other runs reach the target, or the study is deleted."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import optuna
import pytest
from optuna.study import StudyDirection

import supermax
from supermax.engine import events
from supermax.engine.run import session
from supermax.engine.run.other_runs import OtherRuns
from supermax.engine.run.progress import StudyProgress
from supermax.engine.storage.history import TrialHistory
from supermax.engine.storage.lease_tables import create_tables, session_of
from supermax.engine.storage.leases import Leases
from supermax.engine.storage.patience import Patience
from supermax.engine.storage.patient import PatientStorage
from supermax.engine.storage.run_folder import StudyFolder
from tests.conftest import eventually
from tests.engine.programs import short_trial
from tests.engine.sharing.shared_runs import (
    Run,
    check,
    created,
    finished,
    opened,
    running,
    stored,
)
from tests.engine.storage.postgres import Proxy
from tests.engine.storage.test_folder_down import fill, small_disk


@pytest.mark.parametrize(("finished", "waits"), [(2, True), (3, False)])
def test_a_suspect_run_waits_for_its_offered_trials_until_the_target(
    finished: int,
    waits: bool,
) -> None:
    shared = SimpleNamespace(may_start_new=lambda: False)
    storage = SimpleNamespace(patience=Patience(lambda _: None))
    progress = StudyProgress(cast(Any, storage), 3, [StudyDirection.MINIMIZE], lambda _: None)
    progress.finished = finished
    nothing: Any = None
    others = OtherRuns(
        cast(Any, shared), nothing, cast(Any, storage), nothing, progress, nothing, nothing
    )
    assert others.are_awaited() == waits


def test_trials_that_other_runs_finish_are_announced_with_the_best_one() -> None:
    study = optuna.create_study(direction="maximize")
    history = TrialHistory(study._study_id)
    storage = SimpleNamespace(check_file=lambda: None, history=lambda now: history, leases=None)
    emitted: list[events.Event] = []
    progress = StudyProgress(cast(Any, storage), 3, study.directions, emitted.append)

    def finish(value: float) -> None:
        study.add_trial(optuna.create_trial(value=value))
        history.update(study.get_trials())

    finish(0.5)
    progress.recount()  # the start of the run announces these
    finish(0.25)
    progress.add(success=True)  # its own
    progress.recount()
    assert emitted == []
    for value, best in ((0.75, (2, 0.75)), (0.75, (2, 0.75)), (0.1, (2, 0.75))):
        finish(value)
        progress.recount()
        assert emitted.pop() == events.StudyChanged(progress.finished, best)


def test_timeout_ends_a_run_that_only_waits_for_others(
    proxy: Proxy,
    tmp_path: Path,
) -> None:
    """It has no trial of its own, and starts no cell."""
    limit = threading.Timer(10, os.kill, (os.getpid(), signal.SIGINT))
    with created(proxy) as study:
        trial_id = study._storage.create_new_trial(study._study_id)
        with opened(proxy) as storage:
            create_tables(storage)
            other = Leases(storage, study._study_id, "awaited", 600.0, None)
            other.register(tmp_path / "other", 1, "")
            with session_of(storage) as session:
                other.add(session, trial_id)
        limit.start()
        summary = supermax.optimize(
            study, short_trial, 1, run_dir=tmp_path / "own", timeout=0.5, progress=False
        )
        limit.cancel()
    assert summary.stopped_by == "timeout"


@pytest.mark.slow
def test_runs_end_at_their_own_numbers_of_trials(proxy: Proxy, tmp_path: Path) -> None:
    few = Run(proxy, tmp_path / "few", 4, pace=0.2)
    many = Run(proxy, tmp_path / "many", 60, pace=0.2)
    with running(few, many):
        few.finish()
        assert 4 <= finished(proxy) < 30
        many.finish()
    assert finished(proxy) == 60


@pytest.mark.slow
def test_a_deleted_study_ends_its_runs_with_one_sentence(proxy: Proxy, tmp_path: Path) -> None:
    runs = [
        Run(proxy, tmp_path / "busy", 1000, pace=0.5),  # longer than a deletion takes
        Run(proxy, tmp_path / "silent", 1000, pace=60.0),
    ]
    with running(*runs):
        assert eventually(lambda: finished(proxy) > 4, within=30)
        assert eventually(lambda: deleted(proxy), within=30)
        for run in runs:
            assert run.process.wait(30) == 1, run.output
    for run in runs:
        assert run.output.count("The study 'shared' is not in its storage any more.") == 1


@pytest.mark.slow
def test_a_run_with_a_full_disk_ends_when_others_have_finished_the_study(
    proxy: Proxy, tmp_path: Path
) -> None:
    full = Run(proxy, tmp_path / "full", 3, pace=1.0)
    other = Run(proxy, tmp_path / "other", 3)
    full.folder.mkdir()
    with small_disk(tmp_path / "small"):
        (tmp_path / "small" / "run").mkdir()
        (full.folder / "run").symlink_to(tmp_path / "small" / "run")
        with running(full):
            assert eventually(lambda: len(stored(proxy)) == 2, within=30)
            fill(tmp_path / "small" / "ballast")
            with running(other):
                other.finish()
                full.finish(30)
    check(proxy, 3)
    assert "without waiting for its run folder" in full.output


def deleted(proxy: Proxy) -> bool:
    """Delete the study as `optuna delete-study` does; return whether it is gone. Optuna ignores
    that a trial was added meanwhile, and keeps the study then."""
    with opened(proxy) as storage:
        try:
            storage.delete_study(storage.get_study_id_from_name("shared"))
        except KeyError:
            return True
    return False


@pytest.mark.parametrize("ended", [True, False])
def test_trial_that_another_run_ends_meanwhile_is_not_shown_as_left_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    study = optuna.create_study()
    trial = study.ask()
    trials = study.get_trials()
    if ended:
        study.tell(trial, 1.0)
    said: list[Any] = []
    storage = PatientStorage(study._storage, study, file=None, patience=Patience(said.append))
    coordinator = SimpleNamespace(
        storage=storage,
        study=study,
        folder=StudyFolder(tmp_path),
        emit=said.append,
        others=SimpleNamespace(split_arriving=list),
    )
    monkeypatch.setattr(session, "_started", lambda *_: "started")
    assert session._leftovers(cast(Any, coordinator), trials) == []
    assert ["Not touched" in getattr(event, "text", "") for event in said] == (
        [False] if ended else [False, True]
    )
