"""Trials in memory: the same as in the storage, at a cost that does not grow with the study."""

from __future__ import annotations

import enum
import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages._cached_storage import _CachedStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

import supermax
from supermax._util.attributes import ORIGIN
from supermax.engine.run import progress
from supermax.engine.storage import history as history_module
from supermax.engine.storage import patient
from supermax.engine.storage.history import TrialHistory, fill_cache, reader
from supermax.engine.storage.patience import Patience
from supermax.engine.storage.patient import PatientStorage
from supermax.space.migration.bulk_write import add_trials

STATES = [c for n in range(1, 6) for c in combinations(TrialState, n)]
STORAGES: dict[str, Callable[[Path], BaseStorage]] = {
    "SQLite": lambda path: optuna.storages.get_storage(f"sqlite:///{path}/study.db"),
    "memory": lambda path: optuna.storages.InMemoryStorage(),
    "journal": lambda path: optuna.storages.JournalStorage(JournalFileBackend(f"{path}/log")),
}


class Key(enum.StrEnum):
    RATE = "rate"


def completed(n: int) -> list[FrozenTrial]:
    space = {"x": optuna.distributions.FloatDistribution(0, 1)}
    return [
        create_trial(
            value=i / n,
            params={"x": i / n},
            distributions=space,
            system_attrs={ORIGIN: {"study": "elsewhere", "number": i}},
        )
        for i in range(n)
    ]


def wrapped(study: optuna.Study) -> PatientStorage:
    storage = PatientStorage(study._storage, study, file=None, patience=Patience(print))
    study._storage = storage
    return storage


@pytest.mark.parametrize("kind", STORAGES)
def test_history_has_what_the_storage_has(kind: str, tmp_path: Path) -> None:
    study = optuna.create_study(storage=STORAGES[kind](tmp_path))
    storage, study_id = study._storage, study._study_id
    history, chance = TrialHistory(study_id), random.Random(0)
    read, running = reader(storage, history, {}), []
    for _ in range(40):
        match chance.choice(["ask", "ask", "enqueue", "tell", "tell", "read"]):
            case "ask":
                running.append(study.ask())
            case "enqueue":
                study.enqueue_trial({"x": chance.random()})
            case "tell" if running:
                trial = running.pop(chance.randrange(len(running)))
                trial.suggest_float("x", 0, 1)
                state = chance.choice([s for s in TrialState if s.is_finished()])
                study.tell(trial, 1.0 if state is TrialState.COMPLETE else None, state)
            case _:
                history.update(read())
    history.update(read())
    for states in (None, *STATES):
        assert history.select(states) == storage.get_all_trials(study_id, states=states)
    finished = [trial for trial in storage.get_all_trials(study_id) if trial.state.is_finished()]
    assert sorted(history.finished) == sorted(finished)


@pytest.fixture
def many(url: str, monkeypatch: pytest.MonkeyPatch) -> optuna.Study:
    """Study that another program has filled with more trials than are read at once."""
    monkeypatch.setattr(history_module, "_BLOCK", 4)
    study = optuna.create_study(storage=url, study_name="test")
    for i in range(14):
        trial = study.ask()
        trial.suggest_float("x", 0, 1)
        trial.suggest_categorical("flag", [False, True] if i % 2 else [0, 1])
        trial.set_user_attr("result", {"parts": [{"size": i}]})
        if i % 5:
            study.tell(trial, float(i))
    return study


def test_a_study_is_read_in_blocks_and_equal_parts_are_kept_once(
    many: optuna.Study, url: str
) -> None:
    storage = optuna.storages.get_storage(url)
    history = TrialHistory(many._study_id)
    read = reader(storage, history, {})
    history.update(read())
    assert history.trials == many.trials
    assert {t.number for t in history.unfinished()} == {0, 5, 10}
    odd = [trial for trial in history.finished if trial.number % 2]
    assert len({id(trial.distributions["x"]) for trial in history.finished}) == 1
    assert len({id(trial.distributions["flag"]) for trial in odd}) == 1
    assert odd[0].distributions["flag"].choices == (False, True)  # equal to 0 and 1, and another
    many.tell(5, 1.0)
    many.enqueue_trial({"x": 0.5})
    history.update(read())
    assert history.trials == many.trials


def test_names_that_are_no_plain_text_stay_in_a_storage_in_memory() -> None:
    study = optuna.create_study(storage=optuna.storages.InMemoryStorage())
    trial = study.ask()
    trial.suggest_float(Key.RATE, 0, 1)
    trial.set_user_attr("counts", {0: 5, Key.RATE: [{1: 2}]})
    study.tell(trial, 1.0)
    history = TrialHistory(study._study_id)
    history.update(reader(study._storage, history, {})())
    assert history.finished == study.trials
    assert history.finished[0].user_attrs == {"counts": {0: 5, "rate": [{1: 2}]}}


def test_a_read_that_fails_midway_leaves_nothing_and_is_done_again(
    many: optuna.Study, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads read the same cache meanwhile: they must find all of the trials, or none."""
    storage = optuna.storages.get_storage(url)
    assert isinstance(storage, _CachedStorage)
    real, calls = storage._backend._get_trials, itertools.count()
    seen = []

    def failing(*args: Any, **options: Any) -> list[FrozenTrial]:
        seen.append(len(storage._studies[many._study_id].trials))
        if next(calls) == 2:
            raise sqlalchemy.exc.OperationalError("SELECT", {}, Exception("locked"))
        return real(*args, **options)

    monkeypatch.setattr(storage._backend, "_get_trials", failing)
    with pytest.raises(sqlalchemy.exc.OperationalError):
        fill_cache(storage, many._study_id)
    first = many.trials[0]
    assert storage.get_trial(first._trial_id) == first
    fill_cache(storage, many._study_id)
    assert set(seen) == {0}
    monkeypatch.setattr(storage._backend, "_get_trials", real)
    assert storage.get_all_trials(many._study_id) == many.trials


def test_own_writes_are_seen_at_once_and_those_of_others_soon(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = optuna.create_study(storage=url, study_name="test")
    other = optuna.load_study(storage=url, study_name="test")
    storage = wrapped(study)
    trial = study.ask()
    trial.suggest_float("x", 0, 1)
    (seen,) = study.get_trials(deepcopy=False)
    assert seen.params == trial.params
    study.tell(trial, 1.0)
    assert [t.state for t in study.get_trials(deepcopy=False)] == [TrialState.COMPLETE]
    other.enqueue_trial({"x": 0.5})
    assert len(storage.history().trials) == 1
    assert len(storage.history(now=True).trials) == 2
    other.enqueue_trial({"x": 0.7})
    monkeypatch.setattr(patient, "_FRESH", 0.0)
    assert len(study.get_trials(deepcopy=False)) == 3


@pytest.mark.parametrize("kind", STORAGES)
def test_a_read_after_a_write_has_it(kind: str, tmp_path: Path) -> None:
    study = optuna.create_study(storage=STORAGES[kind](tmp_path))
    storage = wrapped(study)
    trial = study.ask()
    taken_over = storage.inner.create_new_trial(study._study_id)
    assert len(storage.history(now=True).trials) == 2
    trial.suggest_float("x", 0, 1)
    trial.report(0.5, step=1)
    storage.set_trial_user_attr(taken_over, "key", "value")
    own, other = study.get_trials(deepcopy=False)
    assert (own.params, own.intermediate_values) == (trial.params, {1: 0.5})
    assert other.user_attrs == {"key": "value"}


@contextmanager
def counted(storage: BaseStorage, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Count SQL statements, and trials that are read from the database."""
    assert isinstance(storage, _CachedStorage)
    backend, counts = storage._backend, {"statements": 0, "trials": 0}
    build = backend._build_frozen_trial_from_trial_model

    def built(model: object) -> FrozenTrial:
        counts["trials"] += 1
        return build(model)  # type: ignore[arg-type]

    def executed(*_: object) -> None:
        counts["statements"] += 1

    with monkeypatch.context() as patch:
        patch.setattr(backend, "_build_frozen_trial_from_trial_model", built)
        sqlalchemy.event.listen(backend.engine, "before_cursor_execute", executed)
        yield counts
        sqlalchemy.event.remove(backend.engine, "before_cursor_execute", executed)


def one(trial: optuna.Trial) -> float:
    return trial.suggest_float("x", 0, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_trial_costs_the_same_in_a_long_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second read of the history, for any reason, would be seen as well."""
    monkeypatch.setattr(patient, "_FRESH", 600.0)
    monkeypatch.setattr(progress, "_RECOUNT", 600.0)
    costs = []
    for n in (30, 600):
        study = optuna.create_study(
            storage=f"sqlite:///{tmp_path}/{n}.db", sampler=optuna.samplers.TPESampler(seed=0)
        )
        add_trials(study, completed(n))
        marks: list[dict[str, int]] = []
        with counted(study._storage, monkeypatch) as counts:
            supermax.optimize(
                study,
                one,
                n + 4,
                progress=False,
                callbacks=[lambda *_, counts=counts, marks=marks: marks.append(dict(counts))],
            )
        costs.append({name: marks[3][name] - marks[1][name] for name in counts})
    assert costs[0] == costs[1]
    assert (
        costs[0]["trials"] <= 2 * 2
    )  # of two trials, each at its end and not more than once more
    assert costs[0]["statements"] < 2 * 45


def test_the_backend_is_not_read_again_for_a_finished_trial(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(study._storage, _CachedStorage)
    assert isinstance(study._storage._backend, RDBStorage)
    storage = PatientStorage(study._storage, study, file=None, patience=Patience(print))
    storage.history()
    trial_id = storage.create_new_trial(study._study_id)
    storage.set_trial_state_values(trial_id, TrialState.COMPLETE, [1.0])
    with counted(study._storage, monkeypatch) as counts:
        assert storage.get_trial(trial_id).values == [1.0]
        assert storage.get_all_trials(study._study_id)[0].values == [1.0]
        assert counts["statements"] == 0


def test_the_end_of_a_trial_reads_that_trial_alone_however_many_are_running(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, storage = study._storage, wrapped(study)
    assert isinstance(inner, _CachedStorage)
    trials = [study.ask() for _ in range(20)]  # 19 of them stay RUNNING, as paused ones do
    storage.history(now=True)
    with counted(inner, monkeypatch) as counts:
        for trial in trials[:10]:
            study.tell(trial, 1.0)
            assert storage.get_trial(trial._trial_id).state is TrialState.COMPLETE
            assert storage.history().finished[-1].number == trial.number
    assert counts["trials"] <= 10 + 20  # each by itself, and all at most once within a second
    ended = [t.number for t in inner.get_all_trials(study._study_id) if t.state.is_finished()]
    assert [t.number for t in storage.history(now=True).finished] == ended == list(range(10))
    cached = inner._studies[study._study_id].trials
    assert all(cached[t.number] is t for t in storage.history().finished)  # in memory once


def test_own_running_trials_are_not_read_until_another_program_ends_them(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, storage = study._storage, wrapped(study)
    assert isinstance(inner, _CachedStorage)
    study.tell(study.ask(), 1.0)
    trials = [study.ask() for _ in range(20)]
    study.tell(study.ask(), 1.0)  # the newest: Optuna always reads the trials after it
    storage.history(now=True)
    elsewhere = optuna.load_study(
        study_name=study.study_name, storage=str(inner._backend.engine.url)
    )
    elsewhere._storage.set_trial_state_values(trials[3]._trial_id, TrialState.FAIL)
    with counted(inner, monkeypatch) as counts:
        assert [t.number for t in storage.history(now=True).finished][-1] == trials[3].number
    assert counts["trials"] <= 3
    assert len(storage.history().unfinished()) == 19


def test_parameters_that_are_sampled_together_are_one_transaction(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, storage = study._storage, wrapped(study)
    space = {f"x{n}": optuna.distributions.FloatDistribution(0, 1) for n in range(20)}
    study.ask(space)  # the first value of each parameter is Optuna's business
    trial = study.ask()
    with counted(inner, monkeypatch) as counts, storage.parameters_together(trial._trial_id):
        values = {name: trial._suggest(name, one) for name, one in space.items()}
        assert not counts["statements"]
        assert study.trials[trial.number].params == values
    assert counts["statements"] == 3
    (stored,) = [t for t in inner.get_all_trials(study._study_id) if t.number == trial.number]
    assert stored.params == values
    assert stored.distributions == space


def test_parameters_that_a_lost_reply_has_left_are_not_written_twice(study: optuna.Study) -> None:
    inner, storage = study._storage, wrapped(study)
    study.ask({"x": optuna.distributions.FloatDistribution(0, 1)})
    trial = study.ask()
    with storage.parameters_together(trial._trial_id):
        inner.set_trial_param(
            trial._trial_id, "x", 0.25, optuna.distributions.FloatDistribution(0, 1)
        )
        trial.suggest_float("x", 0, 1)
        trial.suggest_float("y", 0, 1)
    stored = inner.get_trial(trial._trial_id).params
    assert stored["x"] == 0.25
    assert stored["y"] == trial.params["y"]
    with (
        pytest.raises(ValueError, match="different distribution"),
        storage.parameters_together((other := study.ask())._trial_id),
    ):
        other.suggest_categorical("x", ["a"])
    assert not inner.get_trial(other._trial_id).params
