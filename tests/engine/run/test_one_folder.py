"""Two processes in one run folder, on two machines: the lock of the folder is not seen there."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
import sqlalchemy
from optuna.trial import TrialState

from supermax.engine.sharing.shared_run import register
from supermax.engine.storage.lease_tables import PROTOCOL, create_tables, read_runs
from supermax.engine.storage.leases import FolderInUse, RunSuperseded
from supermax.engine.storage.patient import PatientStorage
from supermax.engine.storage.run_folder import StudyFolder
from supermax.errors import UserError
from tests.conftest import eventually
from tests.engine.sharing.shared_runs import (
    Run,
    check,
    finished,
    running,
)
from tests.engine.storage.leasing import (
    Opener,
    backend,
    leases,
    study_id,
)
from tests.engine.storage.postgres import Proxy

NEAR, FAR = {"HOST": "near"}, {"HOST": "far"}


def take_queued(storage: PatientStorage, queued: int) -> object:
    return storage.set_trial_state_values(queued, TrialState.RUNNING)


ACTIONS: dict[str, Callable[[PatientStorage, int], object]] = {
    "renewal": lambda run, _: leases(run).renew(),
    "new trial": lambda run, _: run.create_new_trial(study_id(run)),
    "queued trial": take_queued,
    "report": lambda run, _: run.set_trial_intermediate_value(min(leases(run).tokens), 0, 1.0),
    "takeover": lambda run, _: leases(run).take_over(leases(run).expired()[0]),
}


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
def test_an_earlier_process_of_a_run_writes_nothing_more(
    open_run: Opener,
    action: Callable[[PatientStorage, int], object],
) -> None:
    gone = open_run("gone", seconds=-1.0)
    gone.create_new_trial(study_id(gone))
    before = open_run("one")
    before.create_new_trial(study_id(before))
    template = optuna.trial.create_trial(state=TrialState.WAITING)
    queued = before.inner.create_new_trial(study_id(before), template)
    again = open_run("one")

    def found() -> list[object]:
        trials = [vars(trial) for trial in again.inner.get_all_trials(study_id(again))]
        rows = read_runs(backend(again), study_id(again))
        return [trials, [{**vars(row), "now": 0} for row in rows], leases(again).count_elsewhere()]

    stored = found()
    with pytest.raises(RunSuperseded, match=r"^Process \d+ on .* has continued this run in the"):
        action(before, queued)
    leases(before).note("late")
    leases(before).end(release=True)
    assert found() == stored
    assert leases(again).renew() == set()
    action(again, queued)


def test_a_trial_of_a_later_process_is_not_offered(open_run: Opener) -> None:
    before = open_run("one")
    trial = before.create_new_trial(study_id(before))
    again = open_run("one")
    with pytest.raises(Exception, match=f"trial id {trial} is lost"):
        leases(before).offer(trial)
    assert leases(again).tokens == {trial: 2}


def test_a_folder_is_free_once_the_lease_of_the_other_machine_has_expired(
    open_run: Opener,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    open_run("one")
    monkeypatch.setattr("platform.node", lambda: "far")
    other = open_run("other")
    notices: list[str] = []

    def notify(text: str) -> None:
        notices.append(text)
        with backend(other).engine.begin() as connection:
            expire = "UPDATE supermax_runs SET expires_at = 0 WHERE run = 'one'"
            connection.execute(sqlalchemy.text(expire))

    other.patience.notify = notify
    leases(other).run = "one"
    with pytest.raises(FolderInUse):
        leases(other).register(tmp_path / "one", 1, "0.1")
    assert len(register(other, leases(other), StudyFolder(tmp_path / "one"), 1)) == 1
    assert len(notices) == 1
    assert "if that process has died" in notices[0]
    rows = {row.run: row.host for row in read_runs(backend(other), study_id(other))}
    assert rows["one"] == "far"


def test_a_folder_that_another_machine_uses_is_refused(
    open_run: Opener,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    one = open_run("one")
    monkeypatch.setattr("platform.node", lambda: "far")
    other = open_run("other")
    other.patience.notify = lambda _: leases(one).renew() and None
    leases(other).run = "one"
    with pytest.raises(UserError, match=r"is used by process \d+ on .*folder of its own"):
        register(other, leases(other), StudyFolder(tmp_path / "one"), 1)
    assert leases(one).renew() == set()


def test_a_version_with_other_rules_is_refused_before_it_is_registered(
    open_run: Opener,
    tmp_path: Path,
) -> None:
    one, other = open_run("one"), open_run("other")
    newer = f"UPDATE supermax_runs SET protocol = {PROTOCOL + 1} WHERE run = 'one'"
    with backend(one).engine.begin() as connection:
        connection.execute(sqlalchemy.text(newer))
    leases(other).run = "another"
    with pytest.raises(UserError, match="which cannot share a study with this version"):
        register(other, leases(other), StudyFolder(tmp_path / "another"), 1)
    assert {row.run for row in read_runs(backend(one), study_id(one))} == {"one", "other"}


def test_tables_of_an_earlier_version_get_the_column(open_run: Opener) -> None:
    one = open_run("one")
    with backend(one).engine.begin() as connection:
        connection.execute(sqlalchemy.text("ALTER TABLE supermax_runs DROP COLUMN epoch"))
    assert len(read_runs(backend(one), study_id(one))) == 1  # `supermax status` reads them
    create_tables(backend(one))
    assert leases(open_run("one")).renew() == set()


@pytest.mark.slow
def test_one_of_two_processes_in_a_folder_ends(proxy: Proxy, tmp_path: Path) -> None:
    one = Run(proxy, tmp_path / "one", 12, pace=0.3, env=NEAR)
    refused = Run(proxy, tmp_path / "refused", 12, env=FAR)
    far = Run(proxy, tmp_path / "far", 12, env=FAR)
    for run in (refused, far):
        run.folder.mkdir()
        (run.folder / "run").symlink_to(one.folder / "run")
    with running(one):
        assert eventually(lambda: finished(proxy) > 0)
        (one.folder / "run" / "lock").unlink()  # as on a disk whose locks other machines ignore
        with running(refused):
            assert refused.process.wait(30) != 0
        assert "give this run a folder of its own" in refused.output
        assert one.process.poll() is None
        one.process.send_signal(signal.SIGSTOP)
        with running(far):
            assert eventually(lambda: finished(proxy) == 12, within=60)
            one.process.send_signal(signal.SIGCONT)
            assert one.process.wait(30) != 0
            far.finish(30)
    assert one.output.count("has continued this run in the same run folder") == 1
    assert "taken over" not in one.output
    check(proxy, 12)
