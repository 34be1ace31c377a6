"""Names, values and addresses for MLflow, and texts that are never sent."""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState, create_trial

import supermax
from supermax._util.attributes import RACE
from supermax.engine.storage.locations import Location
from supermax.engine.storage.run_folder import TrialFolder
from supermax.errors import EnvironmentFault, UserError
from supermax.results.race import Contestant, RaceRecord
from supermax.results.records import TrialRecord, read_record
from supermax.results.tracking import names, tracked
from supermax.results.tracking.backends.mlflow import SETTINGS
from supermax.results.tracking.backends.mlflow_address import mlflow_destination as destination
from supermax.results.tracking.content import About, content, is_superseded
from supermax.results.tracking.following import due, pause, study_tags
from supermax.results.tracking.process import _environment
from supermax.results.tracking.record import TrackingFolder
from supermax.results.tracking.source import (
    StudySource,
    ensure_identity,
    identity_of,
    open_tracked_study,
    source_of,
)

ABOUT = About("identity", "study", ["f1"], {"data": "made up"})
PASSWORD = "p@ss w/rd%"
QUOTED = "p%40ss%20w%2Frd%25"


@given(some.text())
@settings(max_examples=300, deadline=None)
def test_every_name_becomes_a_valid_mlflow_key(name: str) -> None:
    key = names.key(name)
    assert names.key(key) == key  # it is fine as it is
    assert 0 < len(key) <= names.MOST_KEY
    key.encode()


@given(some.lists(some.text(min_size=1), unique=True, max_size=20))
@settings(max_examples=100, deadline=None)
def test_keys_are_unique(found: list[str]) -> None:
    assert len({names.key(name) for name in found}) == len(found)


@pytest.mark.parametrize("name", ["lr", "encoder.name", "a/b", "value 0", "f1:macro", "größe"])
def test_valid_names_are_unchanged(name: str) -> None:
    assert names.key(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/x", "a//b", "a/", "a\n", "x@[1]"])
def test_path_traversal_is_replaced(name: str) -> None:
    assert names.key(name) != name


@given(some.text(max_size=2000))
@settings(max_examples=100, deadline=None)
def test_values_are_short_and_printable(value: str) -> None:
    text = names.stored_text(value)
    assert len(text) <= names.MOST_VALUE
    assert "\0" not in text
    text.encode()


def trial(folder: Path, **changes: Any) -> TrialRecord:
    made: dict[str, Any] = {
        "state": TrialState.COMPLETE,
        "value": 0.5,
        "params": {"lr": 0.1, "kind": "x" * 9000},
        "distributions": {
            "lr": FloatDistribution(0, 1),
            "kind": CategoricalDistribution(["x" * 9000]),
        },
        "intermediate_values": {0: 0.1, 3: math.inf, 2: 0.2},
        "user_attrs": {
            "note": "what somebody wrote",
            "result": {"metrics": {"f1": 0.4, "recall": 0.3}, "train_loss": [3.0, 2.0]},
            "supermax": {
                "attempts": 2,
                "seconds": 4.5,
                "peak_rss": 1000,
                "device_allocated": 2000,
                "traceback": "what somebody wrote",
            },
        },
        **changes,
    }
    return TrialRecord(create_trial(**made), TrialFolder(folder))


def with_fault(folder: Path) -> TrialRecord:
    found = trial(folder)
    found.folder.append({"launch": 1, "cell": 1})
    fault = {
        "kind": "exception",
        "culprit": "code",
        "message": f"cannot open postgresql://me:{QUOTED}@host/db " + "x" * 1000,
        "advice": "",
        "signature": "s",
    }
    texts = {"traceback": "what somebody wrote", "log_tail": "what somebody wrote"}
    found.folder.append({"fault": fault, "attempt": 1, "decision": "retry", **texts})
    return found


def test_content_of_a_trial(tmp_path: Path) -> None:
    said = content(ABOUT, trial(tmp_path))
    assert said.status == "FINISHED"
    assert said.end is not None
    points = {point.key: point.value for point in said.points if "/train" not in point.key}
    assert points == {
        "f1": 0.5,  # the objective's own value, not the rounded one of the result
        "recall": 0.3,
        "run/seconds": 4.5,
        "run/attempts": 2,
        "run/peak_host_bytes": 1000,
        "run/peak_device_bytes": 2000,
    }
    losses = [(p.step, p.value) for p in said.points if p.key == "curve/train_loss"]
    assert losses == [(1, 3.0), (2, 2.0)]
    assert list(said.curve) == [0, 2, 3]
    assert said.params["lr"] == 0.1
    assert said.params["kind"] == "x" * 9000
    assert json.loads(said.files["configuration.json"])["parameters"]["kind"] == "x" * 9000
    assert content(ABOUT, trial(tmp_path, state=TrialState.PRUNED)).status == "KILLED"
    failed = content(ABOUT, trial(tmp_path, state=TrialState.FAIL, value=None))
    assert failed.status == "FAILED"


def test_no_text_and_no_password_is_sent(tmp_path: Path) -> None:
    said = content(ABOUT, with_fault(tmp_path))
    assert said.tags["supermax.fault.kind"] == "exception"
    assert said.tags["supermax.fault.culprit"] == "code"
    assert len(said.tags["supermax.fault.message"]) == 300
    ledger = json.loads(said.files["ledger.json"])
    assert [list(line) for line in ledger] == [
        ["launch", "cell", "at"],
        ["attempt", "decision", "at", "fault"],
    ]
    assert "what somebody wrote" not in repr(said)
    assert QUOTED not in repr(said)


def test_superseded_steps() -> None:
    assert not is_superseded({}, {0: 1.0})
    assert not is_superseded({0: 1.0, 1: math.nan}, {0: 1.0, 1: math.nan, 2: 3.0})
    assert is_superseded({0: 1.0, 1: 2.0}, {0: 1.0})
    assert is_superseded({0: 1.0}, {0: 1.5})


@pytest.fixture
def home(tmp_path: Path) -> Location:
    file = tmp_path / "study.db"
    return Location(str(file), tmp_path / "study.db.supermax" / "s", file, volatile=False)


def test_addresses(home: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert destination(None, home).uri == f"sqlite:///{tmp_path}/mlflow.db"
    assert destination(str(tmp_path / "other.db"), home).file == tmp_path / "other.db"
    server = destination(f"https://me:{QUOTED}@host:5000/x?key=1", home)
    assert (server.uri, server.shown) == ("https://host:5000/x", "https://host:5000/x")
    assert server.environment == {
        "MLFLOW_TRACKING_USERNAME": "me",
        "MLFLOW_TRACKING_PASSWORD": PASSWORD,
    }
    assert server.digest == destination("https://host:5000/x", home).digest
    database = destination(f"postgresql://me:{QUOTED}@host/db", home)
    for found in (server, database):
        assert PASSWORD not in repr(found)
        assert QUOTED not in repr(found)
        masked = found.mask_secrets(f"cannot log in with {PASSWORD} or {QUOTED}")
        assert masked == "cannot log in with *** or ***"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere")
    assert destination(None, home).uri == "http://elsewhere"


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("ftp://me:secret@host", "not an MLflow address"),
        ("http://:secret@", "not the address of a server"),
        ("http://me:secret@host:x", "not the address of a server"),
        ("file:///somewhere", "would duplicate runs"),
        (".", "would duplicate runs"),
        ("sqlite://", "in memory"),
        ("sqlite:////no/such/folder/m.db", "There is no folder"),
    ],
)
def test_invalid_addresses_are_user_errors(home: Location, uri: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as raised:
        destination(uri, home)
    assert "secret" not in str(raised.value)


def test_a_study_in_memory_is_a_user_error() -> None:
    with pytest.raises(UserError, match="is in memory"), tracked(optuna.create_study()):
        pass


def test_another_process_can_open_the_study(tmp_path: Path) -> None:
    file = str(tmp_path / "study.log")
    journal = JournalStorage(JournalFileBackend(file))
    for storage in (journal, f"sqlite:///{tmp_path}/study.db"):
        study = optuna.create_study(storage=storage, study_name="s")
        study.add_trial(create_trial(value=1.0))
        source = source_of(study)
        assert [t.value for t in open_tracked_study(source).trials] == [1.0]
        assert identity_of(open_tracked_study(source)) == identity_of(study)
        ensure_identity(study)
        known = identity_of(study)
        ensure_identity(study)
        assert identity_of(open_tracked_study(source)) == known == identity_of(study)
        with pytest.raises(UserError, match="not in its storage any more"):
            open_tracked_study(replace(source, study="t"))
    Path(file).unlink()
    with pytest.raises(EnvironmentFault, match="There is no file"):
        open_tracked_study(replace(source, storage=f"journal:///{file}"))
    assert not Path(file).exists()


def test_the_tracker_process_imports_this_copy_of_the_package(home: Location) -> None:
    source = StudySource("sqlite:///study.db", "s", str(home.run_dir))
    path = _environment(source, destination("http://localhost:5000", home))["PYTHONPATH"].split(
        os.pathsep
    )[0]
    assert Path(path) == Path(supermax.__file__).parent.parent


def test_mlflow_knows_the_settings() -> None:
    """Telemetry above all: a setting of another name would switch nothing off."""
    spec = importlib.util.find_spec("mlflow")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    known = (package / "environment_variables.py").read_text()
    ours = [name for name in SETTINGS if name.startswith("MLFLOW")]
    assert "MLFLOW_DISABLE_TELEMETRY" in ours
    assert [name for name in ours if f'"{name}"' not in known] == []
    assert '"DO_NOT_TRACK"' in (package / "telemetry" / "utils.py").read_text()


def test_the_run_of_the_study_names_the_best_trial_and_the_winner_of_the_race(
    study: optuna.Study,
) -> None:
    study.add_trials([create_trial(value=value) for value in (0.1, 0.2, 0.3)])
    tags = study_tags(read_record(study))
    assert tags["supermax.trials"] == "3 complete"
    assert (tags["supermax.best.trial"], tags["supermax.best.value"]) == ("0", "0.1")
    assert "supermax.race.winner" not in tags
    raced = [Contestant(0, 0.1, (0.4, 0.5), 0.45, 0.1, False)]
    raced.append(Contestant(1, 0.2, (0.2, 0.4), 0.3, 0.1, False))
    study.set_user_attr(RACE, RaceRecord((1, 2), tuple(raced), winner=1).data())
    tags = study_tags(read_record(study))
    assert tags["supermax.best.trial"] == "0"
    assert (tags["supermax.race.winner"], tags["supermax.race.mean"]) == ("1", "0.3")
    assert tags["supermax.race"] == "0.20 in the search, 0.30 ± 0.10 over 2 seeds"


def test_the_version_of_a_study_is_sent(tmp_path: Path) -> None:
    for name, version in (("notes", "1"), ("notes@3", "3"), ("notes@race", "1")):
        said = content(replace(ABOUT, name=name), trial(tmp_path))
        assert (said.tags["supermax.study"], said.tags["supermax.version"]) == (name, version)


def test_backoff_grows_with_jitter() -> None:
    assert pause(0, 0.5) == 2.0
    assert [pause(n, 0.5) for n in (1, 2, 3, 50)] == [1.0, 2.0, 4.0, 60.0]
    assert pause(3, 0.0) < pause(3, 1.0)


def test_trials_that_failed_before_are_sent_last(tmp_path: Path) -> None:
    trials = [trial(tmp_path).trial for _ in range(4)]
    for number, one in enumerate(trials):
        one.number = number
    trials[3].state = TrialState.WAITING
    record = TrackingFolder(tmp_path, "x").record("study")
    record.note_done(1)
    assert [t.number for t in due(trials, record, Counter({0: 1}))] == [2, 0]


def test_a_record_of_another_study_of_the_same_name_is_ignored(tmp_path: Path) -> None:
    folder = TrackingFolder(tmp_path, "x")
    record = folder.record("first")
    record.note_parent("1", "parent")
    record.note_requested(0)
    record.note_created(0, "run")
    record.note_done(0)
    with record.path.open("a") as file:
        file.write('{"trial": 1, "do')  # a kill while it was written
    assert folder.record("first").done == {0}
    assert folder.record("first").parent == "parent"
    assert folder.record("first").unconfirmed[0] == 0
    second = folder.record("second")
    assert (second.parent, second.done, second.runs) == (None, set(), {})
    second.note_parent("1", "other")
    assert folder.record("second").parent == "other"
    assert folder.record("first").parent is None
