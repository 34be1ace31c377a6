"""Leases of trials on a database server: one owner for each, and no write of a former one."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
import sqlalchemy
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState
from sqlalchemy.engine import make_url

import supermax
from supermax._util.attributes import CLAIM
from supermax.engine.sharing.shared_run import SharedRun, check_versions
from supermax.engine.storage.lease_tables import (
    ENDED,
    read_owners,
    read_runs,
)
from supermax.engine.storage.leases import (
    Elsewhere,
    LeaseLost,
    RunSuperseded,
    TargetReached,
)
from supermax.engine.storage.patient import PatientStorage
from supermax.engine.storage.run_folder import TrialFolder
from supermax.engine.storage.run_history import read_history
from supermax.errors import UserError
from supermax.results.machines import owners_of
from supermax.results.records import TrialRecord
from supermax.studies import make_storage
from tests.engine.programs import short_trial
from tests.engine.storage.leasing import (
    COMPLETE,
    RUNNING,
    WAITING,
    Opener,
    backend,
    leases,
    study_id,
)


def test_a_new_trial_is_leased_until_it_is_finished(open_run: Opener) -> None:
    one = open_run("one")
    trial = one.create_new_trial(study_id(one))
    assert read_owners(backend(one), study_id(one)) == {0: "one"}
    assert one.set_trial_state_values(trial, COMPLETE, [1.0])
    assert read_owners(backend(one), study_id(one)) == {}
    assert leases(one).tokens == {}


WRITES: dict[str, Callable[[PatientStorage, int], object]] = {
    "parameter": lambda s, t: s.set_trial_param(t, "x", 0.5, FloatDistribution(0, 1)),
    "report": lambda s, t: s.set_trial_intermediate_value(t, 3, 0.5),
    "user attribute": lambda s, t: s.set_trial_user_attr(t, "late", 1),
    "system attribute": lambda s, t: s.set_trial_system_attr(t, "late", 1),
    "deletion of reports": lambda s, t: s.forget_steps(t, 0),
    "end": lambda s, t: s.set_trial_state_values(t, COMPLETE, [2.0]),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_run_that_lost_a_trial_cannot_write_to_it(
    open_run: Opener, write: Callable[[PatientStorage, int], object]
) -> None:
    slow, other = open_run("slow", seconds=-1.0), open_run("other")
    trial = slow.create_new_trial(study_id(slow))
    slow.set_trial_intermediate_value(trial, 0, 1.0)
    (lost,) = leases(other).expired()
    assert leases(other).take_over(lost)
    (before,) = other.inner.get_all_trials(study_id(other))
    with pytest.raises(LeaseLost) as caught:
        write(slow, trial)
    assert caught.value.trial_id == trial
    after = other.inner.get_trial(trial)
    assert vars(after) == vars(before)
    assert after.system_attrs[CLAIM] == "other"
    write(other, trial)  # the new owner can
    assert leases(slow).renew() == {trial}
    assert leases(slow).renew() == set()


def test_only_the_run_that_finished_a_trial_reports_it(open_run: Opener) -> None:
    slow, other = open_run("slow", seconds=-1.0), open_run("other")
    trial = slow.create_new_trial(study_id(slow))
    (lost,) = leases(other).expired()
    assert leases(other).take_over(lost)
    assert other.set_trial_state_values(trial, COMPLETE, [1.0])
    leases(other).tokens[trial] = 2
    assert other.set_trial_state_values(trial, COMPLETE, [1.0])  # its reply was lost
    for write in (WRITES["user attribute"], finish_alike):
        leases(slow).tokens[trial] = 1  # it has not heard of the takeover
        with pytest.raises(LeaseLost):
            write(slow, trial)


def finish_alike(storage: PatientStorage, trial: int) -> None:
    storage.set_trial_state_values(trial, COMPLETE, [1.0])


def test_a_trial_of_a_living_run_is_not_taken_over(open_run: Opener) -> None:
    one, other = open_run("one"), open_run("other")
    trial = one.create_new_trial(study_id(one))
    assert leases(other).expired() == []
    assert leases(other).count_elsewhere() == Elsewhere(trials=1, workers=1)
    assert leases(one).count_elsewhere() == Elsewhere(trials=0, workers=1)
    leases(one).end(release=True)
    assert leases(other).count_elsewhere() == Elsewhere(trials=1, workers=0)
    (lost,) = leases(other).expired()
    assert (lost.trial_id, lost.run, lost.takeovers) == (trial, "one", 0)
    leases(one).renew()  # it is back before the other one is done
    assert not leases(other).take_over(lost)
    one.set_trial_user_attr(trial, "mine", 1)


def run_together(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_only_one_run_takes_a_trial_over(open_run: Opener) -> None:
    gone = open_run("gone", seconds=-1.0)
    trials = [gone.create_new_trial(study_id(gone)) for _ in range(12)]
    others = [open_run(f"other-{n}") for n in range(4)]
    taken: list[list[int]] = [[] for _ in others]

    def take(place: int) -> None:
        for lost in leases(others[place]).expired():
            if leases(others[place]).take_over(lost):
                taken[place].append(lost.trial_id)

    threads = [threading.Thread(target=take, args=(place,), daemon=True) for place in range(4)]
    run_together(threads)
    assert sorted(itertools.chain(*taken)) == sorted(trials)
    assert [sorted(leases(other).tokens) for other in others] == [sorted(t) for t in taken]


def test_all_runs_together_start_no_trial_too_many(open_run: Opener) -> None:
    runs = [open_run(f"run-{n}", target=10) for n in range(4)]
    queue = runs[0]
    for _ in range(3):
        template = optuna.trial.create_trial(state=WAITING)
        queue.inner.create_new_trial(study_id(queue), template)
    waiting = [t._trial_id for t in queue.inner.get_all_trials(study_id(queue))]
    taken: list[int] = []
    created: list[int] = []

    def work(run: PatientStorage) -> None:
        taken.extend(t for t in waiting if run.set_trial_state_values(t, RUNNING))
        while True:
            try:
                trial = run.create_new_trial(study_id(run))
            except TargetReached:
                return
            created.append(trial)
            if len(created) % 2:
                run.set_trial_state_values(trial, COMPLETE, [1.0])

    threads = [threading.Thread(target=work, args=(run,), daemon=True) for run in runs]
    run_together(threads)
    assert sorted(taken) == sorted(waiting)
    assert len(taken) + len(created) == 10
    assert len(queue.inner.get_all_trials(study_id(queue))) == 10


def test_trials_are_counted_only_near_the_target(open_run: Opener) -> None:
    """All runs wait while one creates a trial: counting would take longer in a long study."""
    run = open_run("one", target=3)
    backend = run.inner._backend  # type: ignore[attr-defined]
    statements: list[str] = []
    sqlalchemy.event.listen(
        backend.engine, "before_cursor_execute", lambda *event: statements.append(event[2])
    )

    def create() -> int:
        statements.clear()
        run.create_new_trial(study_id(run))
        return sum("count(" in statement for statement in statements)

    assert [create(), create()] == [0, 0]
    assert len(statements) == 5
    waiting = optuna.trial.create_trial(state=WAITING)
    queued = [run.inner.create_new_trial(study_id(run), waiting) for _ in range(2)]
    assert create() == 1  # four trials, of which two are neither finished nor leased
    with pytest.raises(TargetReached):
        create()
    assert not run.set_trial_state_values(queued[0], RUNNING)
    assert [t.number for t in run.inner.get_all_trials(study_id(run))] == list(range(5))


def test_a_trial_of_another_program_does_not_count(open_run: Opener) -> None:
    one = open_run("one", target=1)
    one.inner.create_new_trial(study_id(one))  # by Optuna itself, RUNNING for ever
    one.create_new_trial(study_id(one))
    with pytest.raises(TargetReached):
        one.create_new_trial(study_id(one))


def test_a_run_that_starts_again_excludes_its_earlier_process(open_run: Opener) -> None:
    before = open_run("one")
    trial = before.create_new_trial(study_id(before))
    again = open_run("one")
    assert leases(again).tokens == {trial: 2}
    with pytest.raises(RunSuperseded):
        before.set_trial_user_attr(trial, "late", 1)
    again.set_trial_user_attr(trial, "mine", 1)


def test_runs_are_listed_with_their_state(open_run: Opener, tmp_path: Path) -> None:
    one, other = open_run("one"), open_run("other", seconds=-1.0)
    one.create_new_trial(study_id(one))
    leases(one).renew()
    leases(other).end(release=True)
    rows = {row.run: row for row in read_runs(backend(one), study_id(one))}
    assert rows["one"].alive
    assert rows["one"].run_dir == str(tmp_path / "one")
    assert not rows["other"].alive
    assert rows["other"].state == ENDED


def test_the_history_tells_who_finished_and_who_lost_a_trial(open_run: Opener) -> None:
    gone, also, one = open_run("gone", -1.0), open_run("also gone", -1.0), open_run("one")
    trial = gone.create_new_trial(study_id(gone))
    own = one.create_new_trial(study_id(one))
    for run in (also, one):
        (lost,) = leases(run).expired()
        assert leases(run).take_over(lost)
    for finished in (trial, own):
        one.set_trial_state_values(finished, COMPLETE, [1.0])
    history = read_history(backend(one), study_id(one))
    assert history.finished == {"one": 2}
    assert history.lost == {"gone": (0,), "also gone": (0,)}
    record = TrialRecord(one.inner.get_trial(trial), TrialFolder(Path()))
    assert owners_of(record) == ["gone", "also gone", "one"]


def test_deleting_the_study_deletes_its_leases(open_run: Opener) -> None:
    one = open_run("one")
    one.create_new_trial(study_id(one))
    one.inner.delete_study(study_id(one))
    assert read_owners(backend(one), study_id(one)) == {}
    assert read_runs(backend(one), study_id(one)) == []


def test_versions_with_other_rules_do_not_share_a_study(open_run: Opener) -> None:
    one = open_run("one")
    (row,) = read_runs(backend(one), study_id(one))
    check_versions([row])
    other = type(row)(**{**vars(row), "protocol": row.protocol + 1, "host": "far"})
    with pytest.raises(UserError, match="A run on far works on this study with Supermax"):
        check_versions([other])
    check_versions([type(row)(**{**vars(other), "expires_at": row.now - 1})])


def test_nothing_is_taken_over_right_after_an_outage(open_run: Opener) -> None:
    """All leases have expired then, and all runs are alive."""
    gone, one = open_run("gone", seconds=-1.0), open_run("one", seconds=40.0)
    gone.create_new_trial(study_id(gone))
    now = [0.0]
    shared = SharedRun(one, leases(one), clock=lambda: now[0])

    def pass_time(seconds: float, step: float = 10.0) -> None:
        for _ in range(int(seconds / step)):
            now[0] += step
            assert shared.renew_if_due() == set()

    pass_time(30)
    assert shared.expired() == []  # it has just begun
    pass_time(10)
    (waiting,) = shared.expired()
    now[0] += 300.0  # an outage, which another call has waited for
    assert shared.expired() == []
    assert not shared.take_over(waiting)
    assert shared.renew_if_due() == set()
    assert shared.expired() == []
    pass_time(30)
    assert shared.expired() == []
    pass_time(10)
    assert len(shared.expired()) == 1


def test_a_trial_that_another_program_finished_is_neither_counted_nor_taken(
    open_run: Opener,
) -> None:
    gone, one = open_run("gone", seconds=-1.0), open_run("one", target=2)
    trial = gone.create_new_trial(study_id(gone))
    (lost,) = leases(one).expired()
    one.inner.set_trial_state_values(trial, TrialState.FAIL)  # study.tell of Optuna
    assert leases(one).expired() == []
    assert not leases(one).take_over(lost)
    assert leases(one).count_elsewhere().trials == 0
    one.create_new_trial(study_id(one))
    with pytest.raises(TargetReached):
        one.create_new_trial(study_id(one))


def test_a_takeover_whose_reply_was_lost_succeeds_when_repeated(open_run: Opener) -> None:
    gone, one = open_run("gone", seconds=-1.0), open_run("one")
    trial = gone.create_new_trial(study_id(gone))
    (lost,) = leases(one).expired()
    assert leases(one).take_over(lost)
    leases(one).tokens.clear()  # as if the first call had raised
    assert leases(one).take_over(lost)
    assert leases(one).tokens == {trial: 2}


def test_a_trial_without_a_lease_is_adopted_once(open_run: Opener) -> None:
    one, other = open_run("one"), open_run("other")
    trial = one.inner.create_new_trial(study_id(one))  # as an earlier version does
    assert leases(one).adopt(trial)
    assert not leases(other).adopt(trial)
    one.set_trial_state_values(trial, COMPLETE, [1.0])
    assert not leases(one).adopt(trial)


@pytest.mark.usefixtures("quick")
def test_a_run_uses_one_connection(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    observer = sqlalchemy.create_engine(database_url)
    counts: list[int] = []
    connections = {
        "postgresql": (
            "pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend'"  # no autovacuum worker, which comes at any time
        ),
        "mysql": "information_schema.processlist WHERE db = database()",
    }[make_url(database_url).get_backend_name()]
    query = sqlalchemy.text(f"SELECT count(*) FROM {connections}")

    def count(*_: object) -> None:
        with observer.connect() as connection:
            counts.append(connection.execute(query).scalar_one() - 1)  # without this one

    storage = make_storage(database_url)
    study = optuna.create_study(storage=storage, study_name="one")
    supermax.optimize(study, short_trial, 4, workers=2, progress=False, callbacks=[count])
    assert counts == [1, 1, 1, 1]
    study._storage._backend.engine.dispose()  # type: ignore[attr-defined]
    observer.dispose()
