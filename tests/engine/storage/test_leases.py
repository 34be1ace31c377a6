"""Leases of trials on a database server: one owner for each, and no write of a former one."""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import optuna
import pytest
import sqlalchemy
from optuna.distributions import FloatDistribution
from optuna.storages import RDBStorage
from optuna.trial import TrialState
from sqlalchemy.engine import make_url

import supermax
from supermax._util.attributes import CLAIM
from supermax.engine.jobs.job import Job
from supermax.engine.sharing.shared_run import SharedRun, check_versions
from supermax.engine.storage.lease_tables import (
    ENDED,
    QUARANTINED,
    create_tables,
    read_owners,
    read_runs,
)
from supermax.engine.storage.leases import (
    Elsewhere,
    LeaseLost,
    Leases,
    RunSuperseded,
    TargetReached,
)
from supermax.engine.storage.patience import Patience
from supermax.engine.storage.patient import PatientStorage
from supermax.engine.storage.run_folder import TrialFolder
from supermax.engine.storage.run_history import read_history
from supermax.engine.trial.faults import Evidence, classify
from supermax.errors import Quarantined, UserError
from supermax.results.machines import owners_of
from supermax.results.records import TrialRecord
from supermax.studies import make_storage
from tests.engine.programs import short_trial
from tests.engine.storage.postgres import Proxy

RUNNING, WAITING, COMPLETE = TrialState.RUNNING, TrialState.WAITING, TrialState.COMPLETE
LONG = 600.0


@pytest.fixture
def url(proxy: Proxy) -> str:
    return proxy.url


Opener = Callable[..., PatientStorage]


@pytest.fixture
def opened(url: str, tmp_path: Path) -> Iterator[Opener]:
    """Function that opens the study as a run of the given name does."""
    with_checks = []

    def open_(run: str, seconds: float = LONG, target: int | None = None) -> PatientStorage:
        study = optuna.create_study(storage=url, study_name=tmp_path.name, load_if_exists=True)
        inner = study._storage
        backend = inner._backend  # type: ignore[attr-defined]
        storage = PatientStorage(inner, study, file=None, patience=Patience(lambda _: None))
        storage.claim = run
        create_tables(backend)
        leases = Leases(backend, study._study_id, run, seconds, target)
        leases.register(tmp_path / run, 1, "0.1")
        storage.leases = leases
        checks = leases.enforced()
        checks.__enter__()
        with_checks.append((checks, backend))
        return storage

    yield open_
    for checks, backend in with_checks:
        checks.__exit__(None, None, None)
        backend.engine.dispose()
    if with_checks:  # through a connection whose transactions may take their time
        storage = RDBStorage(url)
        with contextlib.suppress(KeyError):  # the test has deleted it
            optuna.delete_study(study_name=tmp_path.name, storage=storage)
        storage.engine.dispose()


def study_id(storage: PatientStorage) -> int:
    return storage._study_id


def leases(storage: PatientStorage) -> Leases:
    assert storage.leases is not None
    return storage.leases


def backend(storage: PatientStorage) -> RDBStorage:
    found = storage._server
    assert found is not None
    return found


def test_a_new_trial_is_leased_until_it_is_finished(opened: Opener) -> None:
    one = opened("one")
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
    opened: Opener, write: Callable[[PatientStorage, int], object]
) -> None:
    slow, other = opened("slow", seconds=-1.0), opened("other")
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


def test_only_the_run_that_finished_a_trial_reports_it(opened: Opener) -> None:
    slow, other = opened("slow", seconds=-1.0), opened("other")
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


def test_a_trial_of_a_living_run_is_not_taken_over(opened: Opener) -> None:
    one, other = opened("one"), opened("other")
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


def test_only_one_run_takes_a_trial_over(opened: Opener) -> None:
    gone = opened("gone", seconds=-1.0)
    trials = [gone.create_new_trial(study_id(gone)) for _ in range(12)]
    others = [opened(f"other-{n}") for n in range(4)]
    taken: list[list[int]] = [[] for _ in others]

    def take(place: int) -> None:
        for lost in leases(others[place]).expired():
            if leases(others[place]).take_over(lost):
                taken[place].append(lost.trial_id)

    threads = [threading.Thread(target=take, args=(place,), daemon=True) for place in range(4)]
    run_together(threads)
    assert sorted(itertools.chain(*taken)) == sorted(trials)
    assert [sorted(leases(other).tokens) for other in others] == [sorted(t) for t in taken]


def test_all_runs_together_start_no_trial_too_many(opened: Opener) -> None:
    runs = [opened(f"run-{n}", target=10) for n in range(4)]
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


def test_trials_are_counted_only_near_the_target(opened: Opener) -> None:
    """All runs wait while one creates a trial: counting would take longer in a long study."""
    run = opened("one", target=3)
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


def test_a_trial_of_another_program_does_not_count(opened: Opener) -> None:
    one = opened("one", target=1)
    one.inner.create_new_trial(study_id(one))  # by Optuna itself, RUNNING for ever
    one.create_new_trial(study_id(one))
    with pytest.raises(TargetReached):
        one.create_new_trial(study_id(one))


def test_a_run_that_starts_again_excludes_its_earlier_process(opened: Opener) -> None:
    before = opened("one")
    trial = before.create_new_trial(study_id(before))
    again = opened("one")
    assert leases(again).tokens == {trial: 2}
    with pytest.raises(RunSuperseded):
        before.set_trial_user_attr(trial, "late", 1)
    again.set_trial_user_attr(trial, "mine", 1)


def test_runs_are_listed_with_their_state(opened: Opener, tmp_path: Path) -> None:
    one, other = opened("one"), opened("other", seconds=-1.0)
    one.create_new_trial(study_id(one))
    leases(one).renew()
    leases(other).end(release=True)
    rows = {row.run: row for row in read_runs(backend(one), study_id(one))}
    assert rows["one"].alive
    assert rows["one"].run_dir == str(tmp_path / "one")
    assert not rows["other"].alive
    assert rows["other"].state == ENDED


def test_the_history_tells_who_finished_and_who_lost_a_trial(opened: Opener) -> None:
    gone, also, one = opened("gone", -1.0), opened("also gone", -1.0), opened("one")
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


def test_deleting_the_study_deletes_its_leases(opened: Opener) -> None:
    one = opened("one")
    one.create_new_trial(study_id(one))
    one.inner.delete_study(study_id(one))
    assert read_owners(backend(one), study_id(one)) == {}
    assert read_runs(backend(one), study_id(one)) == []


def test_versions_with_other_rules_do_not_share_a_study(opened: Opener) -> None:
    one = opened("one")
    (row,) = read_runs(backend(one), study_id(one))
    check_versions([row])
    other = type(row)(**{**vars(row), "protocol": row.protocol + 1, "host": "far"})
    with pytest.raises(UserError, match="A run on far works on this study with Supermax"):
        check_versions([other])
    check_versions([type(row)(**{**vars(other), "expires_at": row.now - 1})])


def test_nothing_is_taken_over_right_after_an_outage(opened: Opener) -> None:
    """All leases have expired then, and all runs are alive."""
    gone, one = opened("gone", seconds=-1.0), opened("one", seconds=40.0)
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
    opened: Opener,
) -> None:
    gone, one = opened("gone", seconds=-1.0), opened("one", target=2)
    trial = gone.create_new_trial(study_id(gone))
    (lost,) = leases(one).expired()
    one.inner.set_trial_state_values(trial, TrialState.FAIL)  # study.tell of Optuna
    assert leases(one).expired() == []
    assert not leases(one).take_over(lost)
    assert leases(one).count_elsewhere().trials == 0
    one.create_new_trial(study_id(one))
    with pytest.raises(TargetReached):
        one.create_new_trial(study_id(one))


def test_a_takeover_whose_reply_was_lost_succeeds_when_repeated(opened: Opener) -> None:
    gone, one = opened("gone", seconds=-1.0), opened("one")
    trial = gone.create_new_trial(study_id(gone))
    (lost,) = leases(one).expired()
    assert leases(one).take_over(lost)
    leases(one).tokens.clear()  # as if the first call had raised
    assert leases(one).take_over(lost)
    assert leases(one).tokens == {trial: 2}


def test_a_trial_without_a_lease_is_adopted_once(opened: Opener) -> None:
    one, other = opened("one"), opened("other")
    trial = one.inner.create_new_trial(study_id(one))  # as an earlier version does
    assert leases(one).adopt(trial)
    assert not leases(other).adopt(trial)
    one.set_trial_state_values(trial, COMPLETE, [1.0])
    assert not leases(one).adopt(trial)


@pytest.mark.usefixtures("quick")
def test_a_run_uses_one_connection(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    observer = sqlalchemy.create_engine(url)
    counts: list[int] = []
    connections = {
        "postgresql": "pg_stat_activity WHERE datname = current_database()",
        "mysql": "information_schema.processlist WHERE db = database()",
    }[make_url(url).get_backend_name()]
    query = sqlalchemy.text(f"SELECT count(*) FROM {connections}")

    def count(*_: object) -> None:
        with observer.connect() as connection:
            counts.append(connection.execute(query).scalar_one() - 1)  # without this one

    storage = make_storage(url)
    study = optuna.create_study(storage=storage, study_name="one")
    supermax.optimize(study, short_trial, 4, workers=2, progress=False, callbacks=[count])
    assert counts == [1, 1, 1, 1]
    study._storage._backend.engine.dispose()  # type: ignore[attr-defined]
    observer.dispose()


def test_an_offered_trial_is_taken_by_another_run_at_once(opened: Opener) -> None:
    one, other = opened("one"), opened("other", target=1)
    trial = one.create_new_trial(study_id(one))
    leases(one).offer(trial)
    with pytest.raises(LeaseLost):
        one.set_trial_user_attr(trial, "late", 1)
    assert leases(one).renew() == set()
    assert leases(one).expired() == []  # while another run is alive
    assert leases(one).count_elsewhere().trials == 1
    with pytest.raises(TargetReached):  # it still counts
        other.create_new_trial(study_id(other))
    assert read_owners(backend(one), study_id(one), offered=False) == {}
    (lost,) = leases(other).expired()
    assert (lost.trial_id, lost.offered, lost.takeovers) == (trial, True, 0)
    assert leases(other).take_over(lost)
    assert leases(other).take_over(lost)  # the first reply was lost
    assert leases(other).second_hand == {trial}
    assert leases(one).expired() == []
    assert leases(other).register(Path("run"), 1, "0.1")  # it starts again
    assert leases(other).second_hand == {trial}
    assert other.set_trial_state_values(trial, COMPLETE, [1.0])


def test_an_offered_trial_is_taken_back_if_no_other_run_is_left(opened: Opener) -> None:
    one, other = opened("one"), opened("other")
    trial = one.create_new_trial(study_id(one))
    assert leases(one).has_others()
    leases(one).offer(trial)
    with pytest.raises(LeaseLost):
        leases(one).offer(trial)
    leases(other).end(release=False)
    assert not leases(one).has_others()
    (lost,) = leases(one).expired()
    assert leases(one).take_over(lost)
    one.set_trial_user_attr(trial, "mine", 1)
    assert leases(one).second_hand == {trial}


def test_a_trial_is_offered_to_other_machines_first(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.node", lambda: "bad")
    one, neighbour = opened("one"), opened("neighbour")
    leases(one).offer(one.create_new_trial(study_id(one)))
    assert len(leases(neighbour).expired()) == 1
    monkeypatch.setattr("platform.node", lambda: "good")
    far = opened("far")
    assert len(leases(far).expired()) == 1
    monkeypatch.setattr("platform.node", lambda: "bad")
    assert leases(neighbour).expired() == []


def failed_in(storage: PatientStorage, trial_id: int) -> Job:
    number = storage.get_trial_number_from_id(trial_id)
    trial = SimpleNamespace(_trial_id=trial_id, number=number)
    fault = classify(Evidence(signum=signal.SIGSEGV))
    return cast(Job, SimpleNamespace(trial=trial, number=number, faults=[fault]))


@pytest.mark.parametrize("elsewhere", [COMPLETE, TrialState.FAIL])
def test_a_run_is_quarantined_by_trials_that_succeed_elsewhere(
    opened: Opener, elsewhere: TrialState
) -> None:
    bad, good = opened("bad"), opened("good")
    values = [1.0] if elsewhere is COMPLETE else None
    now = itertools.count(step=10.0)
    run = SharedRun(bad, leases(bad), clock=lambda: next(now))
    for count in (1, 2, 3):
        run.judge()
        assert run.allowed_workers(4) == 4
        job = failed_in(bad, bad.create_new_trial(study_id(bad)))
        assert run.may_offer(job)
        run.offer(job)
        (lost,) = leases(good).expired()
        assert leases(good).take_over(lost)
        again = SharedRun(good, leases(good))
        assert not again.may_offer(failed_in(good, lost.trial_id)), "a trial is offered once"
        if count < 3:
            good.set_trial_state_values(lost.trial_id, elsewhere, values)
    run.judge()
    assert run.allowed_workers(4) == (1 if elsewhere is COMPLETE else 4)
    good.set_trial_state_values(lost.trial_id, elsewhere, values)
    if elsewhere is TrialState.FAIL:
        run.judge()
        return
    with pytest.raises(Quarantined, match=r"trials 0, 1, 2 failed here \(signal SIGSEGV\) and"):
        run.judge()
    run.succeeded_here()
    run.judge()
    run.note("GPU 1 is out of service")
    run.end(release=True, quarantined="why")
    (row,) = [row for row in read_runs(backend(bad), study_id(bad)) if row.run == "bad"]
    assert (row.state, row.note, row.alive) == (QUARANTINED, "why", False)
