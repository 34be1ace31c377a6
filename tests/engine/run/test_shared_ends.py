"""Ends of runs that share a study: other runs reach the target, or the study is deleted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import optuna
import pytest
from optuna.study import StudyDirection

from supermax.engine import events
from supermax.engine.run.other_runs import OtherRuns
from supermax.engine.run.progress import StudyProgress
from supermax.engine.storage.history import TrialHistory
from supermax.engine.storage.patience import Patience
from tests.conftest import eventually
from tests.engine.run.test_sharing import (
    Run,
    check,
    finished,
    opened,
    proxy,  # noqa: F401
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


@pytest.mark.slow
def test_runs_end_at_their_own_numbers_of_trials(
    proxy: Proxy,  # noqa: F811
    tmp_path: Path,
) -> None:
    few = Run(proxy, tmp_path / "few", 4, pace=0.2)
    many = Run(proxy, tmp_path / "many", 60, pace=0.2)
    with running(few, many):
        assert few.process.wait(60) == 0, few.output
        assert 4 <= finished(proxy) < 30
        assert many.process.wait(60) == 0, many.output
    assert finished(proxy) == 60


@pytest.mark.slow
def test_a_deleted_study_ends_its_runs_with_one_sentence(
    proxy: Proxy,  # noqa: F811
    tmp_path: Path,
) -> None:
    runs = [
        Run(proxy, tmp_path / "busy", 1000, pace=0.1),
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
    proxy: Proxy,  # noqa: F811
    tmp_path: Path,
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
                assert other.process.wait(60) == 0, other.output
                assert full.process.wait(30) == 0, full.output
    check(proxy, 3)
    assert "without waiting for its run folder" in full.output


def deleted(proxy: Proxy) -> bool:  # noqa: F811
    """Delete the study as `optuna delete-study` does; return whether it is gone. Optuna ignores
    that a trial was added meanwhile, and keeps the study then."""
    with opened(proxy) as storage:
        try:
            storage.delete_study(storage.get_study_id_from_name("shared"))
        except KeyError:
            return True
    return False
