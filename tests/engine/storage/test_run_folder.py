"""Run folders: one study each, and no file of the user is changed."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState

import supermax
from supermax.engine.storage import run_folder
from supermax.engine.storage.logs import tail_of
from tests.conftest import eventually

pytestmark = pytest.mark.usefixtures("quick")


def run(study: optuna.Study, n_trials: int, objective: Any = None, **options: Any) -> Any:
    return supermax.optimize(study, objective or constant, n_trials, progress=False, **options)


def constant(trial: Trial) -> float:
    return 1.0


def leave_a_mark(trial: Trial) -> float:
    mark = trial.checkpoint_dir / "mark"
    trial.set_user_attr("found", mark.exists())
    mark.touch()
    return 1.0


def test_recreated_study_starts_with_an_empty_folder(url: str) -> None:
    run(optuna.create_study(storage=url, study_name="s"), 2, leave_a_mark)
    optuna.delete_study(storage=url, study_name="s")
    again = optuna.create_study(storage=url, study_name="s")
    run_dir = run(again, 3, leave_a_mark).run_dir
    assert [trial.user_attrs["found"] for trial in again.trials] == [False] * 3
    assert len(list(run_dir.glob("trials/*/checkpoint/mark"))) == 3
    assert len(list(run_dir.parent.rglob("checkpoint/mark"))) == 5  # moved aside, not removed


@pytest.mark.slow
def test_study_can_be_recreated_twice_within_a_second(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder.time, "strftime", lambda _: "20260101-000000")
    for _ in range(3):
        study = optuna.create_study(storage=url, study_name="s")
        run_dir = run(study, 1, leave_a_mark).run_dir
        assert study.trials[0].user_attrs["found"] is False
        optuna.delete_study(storage=url, study_name="s")
    assert len(list(run_dir.parent.rglob("checkpoint/mark"))) == 3


def test_a_study_may_be_named_like_anothers_lock(url: str) -> None:
    for name in ("s", "s.lock", "s.lock.lock"):
        study = optuna.create_study(storage=url, study_name=name)
        run(study, 1)
        assert study.trials[0].state is TrialState.COMPLETE


def test_a_folder_of_the_users_is_never_moved(study: optuna.Study, tmp_path: Path) -> None:
    """`run_dir` may be any folder, also one with a run.json of another program."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "precious.txt").write_text("mine")
    (project / "run.json").write_text('{"mine": true}')
    with contextlib.suppress(supermax.UserError):  # to refuse is fine
        run(study, 1, run_dir=project)
    assert (project / "precious.txt").read_text() == "mine"
    assert (project / "run.json").read_text() == '{"mine": true}'


def test_two_studies_cannot_share_a_run_dir(url: str, tmp_path: Path) -> None:
    """`run_dir="."` for two studies must not move the working directory aside."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("print()")
    run(optuna.create_study(storage=url, study_name="a"), 1, leave_a_mark, run_dir=project)
    other = optuna.create_study(storage=url, study_name="b")
    with contextlib.suppress(supermax.UserError):
        run(other, 1, leave_a_mark, run_dir=project)
    assert (project / "train.py").exists()
    assert len(list(project.rglob("checkpoint/mark"))) == 1 + len(other.trials)


def test_a_run_dir_in_use_is_refused_to_another_study(url: str, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    first = optuna.create_study(storage=url, study_name="a")
    second = optuna.create_study(storage=url, study_name="b")
    refused: list[supermax.UserError] = []

    def intrude(_: optuna.Study, trial: FrozenTrial) -> None:
        if trial.number == 0:
            with pytest.raises(supermax.UserError) as caught:
                run(second, 1, run_dir=shared)
            refused.append(caught.value)

    run(first, 3, leave_a_mark, run_dir=shared, callbacks=[intrude])
    assert len(refused) == 1
    assert len(list(shared.glob("trials/*/checkpoint/mark"))) == 3
    assert not second.trials


def test_advice_for_a_lock_that_cannot_be_written_works(
    study: optuna.Study, tmp_path: Path
) -> None:
    (tmp_path / "study.db.supermax").write_text("a file where the folder would be")
    with pytest.raises(supermax.EnvironmentFault) as caught:
        run(study, 1)
    if "run_dir" in str(caught.value):
        assert run(study, 1, run_dir=tmp_path / "elsewhere").finished == 1


def test_newer_folder_format_is_refused_and_not_changed(
    study: optuna.Study, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"format": 99, "identity": "x"}')
    with pytest.raises(supermax.UserError, match=r"newer Supermax.*Upgrade"):
        run(study, 1, run_dir=tmp_path / "run")
    assert (tmp_path / "run" / "run.json").read_text() == '{"format": 99, "identity": "x"}'
    assert not study.trials


def test_a_study_in_memory_keeps_its_folder_from_call_to_call(tmp_path: Path) -> None:
    """A stopped trial of a study in memory resumes too, with its attempt and checkpoint."""
    study = optuna.create_study()
    started, on = tmp_path / "started", tmp_path / "on"

    def objective(trial: Trial) -> float:
        leave_a_mark(trial)
        trial.set_user_attr("attempt", trial.attempt)
        if trial.number == 1:
            started.touch()
        assert eventually((started if trial.number == 0 else on).exists, within=60)
        return 1.0

    def give_up(*_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(study, 2, objective, workers=2, callbacks=[give_up])
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE, TrialState.RUNNING]
    on.touch()
    run(study, 2, objective)
    assert study.trials[1].user_attrs["found"] is True
    assert study.trials[1].user_attrs["attempt"] == 2


def test_an_sqlite_address_written_as_a_uri_is_a_file_too(tmp_path: Path) -> None:
    storage = RDBStorage(f"sqlite:///file:{tmp_path}/study.db?uri=true")
    study = optuna.create_study(storage=storage, study_name="s")
    assert run(study, 1).run_dir == tmp_path / "study.db.supermax" / "s"


def test_a_tail_has_the_last_output_before_a_crash_with_many_modules(tmp_path: Path) -> None:
    modules = ", ".join(f"torch._C.part_{i}" for i in range(600))
    crash = f"Fatal Python error: Segmentation fault\n\nExtension modules: {modules}\n"
    (tmp_path / "log.txt").write_text(f"{'x' * 50_000}\nlast words\n{crash}")
    assert tail_of(tmp_path / "log.txt").endswith(
        "last words\nFatal Python error: Segmentation fault\n\n"
    )
