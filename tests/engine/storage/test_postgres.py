"""Connections to a database server that are lost at the worst moment, or hang."""

from __future__ import annotations

import pickle
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy.exc
from optuna.distributions import FloatDistribution
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

import supermax
from supermax import EnvironmentFault
from supermax.engine.events import Event, Notice
from supermax.engine.storage import patience, rdb
from supermax.engine.storage.patience import Patience
from supermax.engine.storage.patient import PatientStorage
from tests import ROOT
from tests.conftest import eventually
from tests.engine.programs import short_trial, value_of
from tests.engine.storage.postgres import Loss, Proxy, Server
from tests.few import quick_are

pytestmark = pytest.mark.usefixtures("quick")
RUNNING, WAITING, COMPLETE = TrialState.RUNNING, TrialState.WAITING, TrialState.COMPLETE


@pytest.fixture
def proxy(database: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    proxy = Proxy(database.path)
    yield proxy
    proxy.close()


@pytest.fixture
def study(proxy: Proxy, tmp_path: Path) -> Iterator[optuna.Study]:
    study = optuna.create_study(storage=proxy.url, study_name=tmp_path.name)
    yield study
    study._storage._backend.engine.dispose()  # type: ignore[attr-defined]


def stored(proxy: Proxy, name: str) -> list[FrozenTrial]:
    """Return the study's trials as another process reads them."""
    storage = RDBStorage(proxy.url)
    try:
        return storage.get_all_trials(storage.get_study_id_from_name(name))
    finally:
        storage.engine.dispose()


def lose_commit(proxy: Proxy) -> None:
    """Lose the reply to the next COMMIT, which succeeds."""

    def judge(data: bytes) -> Loss | None:
        return Loss.ANSWERED if b"COMMIT" in data and not proxy.losses else None

    proxy.judge = judge


# Lost connections.


@pytest.mark.parametrize("seed", quick_are([0], range(3)))
def test_lost_connections_lose_no_trial(study: optuna.Study, proxy: Proxy, seed: int) -> None:
    dice = random.Random(seed)

    def judge(_: bytes) -> Loss | None:
        lost = len(proxy.losses) < 15 and dice.random() < 0.08
        return dice.choice(list(Loss)) if lost else None

    for x in (1.0, 2.0):
        study.enqueue_trial({"x": x})
    proxy.judge = judge
    summary = supermax.optimize(study, short_trial, 6, workers=2, progress=False)
    assert len(proxy.losses) > 5
    assert summary.faults == {}
    proxy.judge = lambda _: None
    assert [trial.number for trial in study.trials] == list(range(6))
    for trial in study.trials:
        assert trial.state is COMPLETE
        assert trial.value == value_of(**trial.params)
        assert list(trial.intermediate_values) == [0, 1, 2]
    assert [trial.params["x"] for trial in study.trials[:2]] == [1.0, 2.0]


def test_connection_lost_in_optunas_fallback_query_is_transient(
    study: optuna.Study, proxy: Proxy
) -> None:
    """Optuna retries a failed query for many trials with another on the failed session."""
    study.add_trial(optuna.trial.create_trial(value=1.0))

    def judge(data: bytes) -> Loss | None:
        return Loss.SENT if b"trials.study_id" in data and not proxy.losses else None

    proxy.judge = judge
    with pytest.raises(StorageInternalError) as caught:
        study.get_trials()
    assert isinstance(caught.value.__cause__, sqlalchemy.exc.PendingRollbackError)
    assert rdb.is_transient(caught.value)
    assert "connection" in rdb.reason(caught.value)


Write = Callable[[PatientStorage, int], Any]
"""A write to a trial that is RUNNING, or WAITING for `take`."""


def take(storage: PatientStorage, trial_id: int) -> bool:
    return storage.set_trial_state_values(trial_id, RUNNING)


def draw(storage: PatientStorage, trial_id: int) -> None:
    storage.set_trial_param(trial_id, "x", 0.5, FloatDistribution(0, 1))


def tell(storage: PatientStorage, trial_id: int) -> bool:
    return storage.set_trial_state_values(trial_id, COMPLETE, [1.5])


WRITES: dict[str, tuple[Write, Callable[[FrozenTrial], bool]]] = {
    "take": (take, lambda t: t.state is RUNNING and t.system_attrs["supermax:claim"] == "ours"),
    "draw": (draw, lambda t: t.params == {"x": 0.5}),
    "report": (
        lambda storage, trial: storage.set_trial_intermediate_value(trial, 1, 2.0),
        lambda t: t.intermediate_values == {0: 1.0, 1: 2.0},
    ),
    "forget": (
        lambda storage, trial: storage.forget_steps(trial, 0),
        lambda t: t.last_step is None,
    ),
    "user attribute": (
        lambda storage, trial: storage.set_trial_user_attr(trial, "a", [1]),
        lambda t: t.user_attrs == {"a": [1]},
    ),
    "system attribute": (
        lambda storage, trial: storage.set_trial_system_attr(trial, "a", 1),
        lambda t: t.system_attrs["a"] == 1,
    ),
    "tell": (tell, lambda t: t.state is COMPLETE and t.values == [1.5]),
}


@pytest.fixture
def patient(study: optuna.Study) -> PatientStorage:
    storage = PatientStorage(study._storage, study, file=None, patience=Patience(print))
    storage.claim = "ours"
    return storage


@pytest.mark.parametrize("name", WRITES)
def test_write_with_a_lost_reply_is_applied_once(
    study: optuna.Study, patient: PatientStorage, proxy: Proxy, name: str
) -> None:
    write, expected = WRITES[name]
    if name == "take":
        study.enqueue_trial({"x": 0.5})
        trial_id = study.get_trials()[0]._trial_id
    else:
        trial_id = patient.create_new_trial(study._study_id)
        patient.set_trial_intermediate_value(trial_id, 0, 1.0)
    lose_commit(proxy)
    assert write(patient, trial_id) in (None, True)
    assert proxy.losses == [Loss.ANSWERED]
    (trial,) = stored(proxy, study.study_name)
    assert expected(trial)
    if trial.state is RUNNING and name != "take":
        assert patient.get_trial(trial_id) == trial


@pytest.mark.parametrize(
    "template", [None, optuna.trial.create_trial(value=3.0, user_attrs={"a": 1})]
)
def test_trial_creation_with_a_lost_reply_is_applied_once(
    study: optuna.Study, patient: PatientStorage, proxy: Proxy, template: FrozenTrial | None
) -> None:
    patient.create_new_trial(study._study_id)
    lose_commit(proxy)
    trial_id = patient.create_new_trial(study._study_id, template)
    assert proxy.losses == [Loss.ANSWERED]
    first, second = stored(proxy, study.study_name)
    assert (first.number, second.number, second._trial_id) == (0, 1, trial_id)
    assert second.state is (RUNNING if template is None else COMPLETE)
    assert patient.get_trial(trial_id).number == 1
    patient.inner.get_trial_id_from_study_id_trial_number(study._study_id, 1)


def test_queued_trial_taken_by_another_run_is_left_to_it(
    study: optuna.Study, patient: PatientStorage
) -> None:
    study.enqueue_trial({"x": 0.5})
    trial = study.get_trials()[0]
    other = PatientStorage(study._storage, study, file=None, patience=Patience(print))
    other.claim = "theirs"
    assert take(other, trial._trial_id)
    assert not take(patient, trial._trial_id)
    assert study.get_trials()[0].system_attrs["supermax:claim"] == "theirs"


def test_finished_trial_keeps_its_values(study: optuna.Study, patient: PatientStorage) -> None:
    trial_id = patient.create_new_trial(study._study_id)
    study._storage.set_trial_state_values(trial_id, COMPLETE, [2.0])  # another program
    with pytest.raises(optuna.exceptions.UpdateFinishedTrialError):
        tell(patient, trial_id)


# Silent connections.


def test_run_waits_for_a_silent_server_and_emits_a_notice(
    study: optuna.Study, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "_QUIET", 1.0)
    said: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, Notice):
            said.append(event.text)
            proxy.frozen.clear()

    def freeze(_: optuna.Study, trial: FrozenTrial) -> None:
        if trial.number == 1:
            proxy.frozen.set()

    summary = supermax.optimize(study, short_trial, 4, progress=listen, callbacks=[freeze])
    assert summary.trials["COMPLETE"] == 4
    assert {*said} == {"Waiting for the study's storage: its server is silent."}  # or machine


def test_silent_server_ends_the_run_with_a_message_and_the_next_resumes(
    study: optuna.Study, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Patience, "default", 0.5)
    threads = threading.active_count()

    def freeze(*_: object) -> None:
        proxy.frozen.set()

    with pytest.raises(EnvironmentFault, match=r"has not answered for \d+ s .* call again"):
        supermax.optimize(study, short_trial, 3, progress=False, callbacks=[freeze])
    proxy.frozen.clear()
    assert eventually(lambda: threading.active_count() <= threads + 4)
    monkeypatch.setattr(Patience, "default", 60.0)
    summary = supermax.optimize(study, short_trial, 3, progress=False)
    assert summary.trials == {"RUNNING": 0, "COMPLETE": 3, "PRUNED": 0, "FAIL": 0, "WAITING": 0}


PATIENT_WITH_STOPS = (
    "import sys; from supermax.engine.storage import patience; "
    "patience._STOPPING = float(sys.argv[1]); "
    "from tests.engine.programs import staged; staged(*sys.argv[2:5], name=sys.argv[5])"
)


@pytest.mark.slow
@pytest.mark.parametrize(("signals", "stopping"), quick_are([(1, 0.5)], [(1, 0.5), (2, 600.0)]))
def test_ctrl_c_ends_a_run_whose_server_is_silent(
    proxy: Proxy, tmp_path: Path, signals: int, stopping: float
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    name = f"staged-{signals}"
    arguments = [str(stopping), proxy.url, str(marks), "13", name]
    command = [sys.executable, "-c", PATIENT_WITH_STOPS, *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        try:
            assert eventually((marks / "12-1-1").exists, within=60)
            proxy.frozen.set()
            (marks / "go").touch()
            assert eventually(proxy.stuck.is_set, within=60)
            program.send_signal(signal.SIGINT)
            if signals == 2:
                with pytest.raises(subprocess.TimeoutExpired):
                    program.wait(1.0)
                program.send_signal(signal.SIGINT)
            said = program.communicate(timeout=30)[1]
        finally:
            program.kill()
            proxy.frozen.clear()
    assert ("has not answered" if signals == 1 else "Call again to go on") in said
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    assert [trial.state for trial in stored(proxy, name)] == [COMPLETE] * 13


@pytest.mark.slow
def test_keepalives_are_set_on_connections(study: optuna.Study, proxy: Proxy) -> None:
    supermax.optimize(study, short_trial, 1, progress=False)
    connection = study._storage._backend.engine.raw_connection()  # type: ignore[attr-defined]
    with socket.socket(fileno=connection.fileno()) as used:
        assert used.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert used.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
        used.detach()
    connection.close()


@pytest.mark.slow
def test_keepalives_are_set_for_an_unpickled_storage(study: optuna.Study) -> None:
    """Unpickling creates a new engine."""
    here = rdb.server_of(study._storage)
    assert here is not None
    rdb.enable_keepalives(here)
    for storage in (here, pickle.loads(pickle.dumps(here))):
        rdb.enable_keepalives(storage)
        rdb.enable_keepalives(storage)
        with storage.engine.connect() as connection:
            kept = connection.connection.driver_connection.info.get_parameters()
        assert kept["tcp_user_timeout"] == "60000"
        storage.engine.dispose()
