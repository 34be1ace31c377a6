"""Notifications to a real HTTP server and to real commands: once, late, hanging, refused."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import optuna
import pytest
from sqlalchemy.exc import OperationalError

import supermax
from supermax.engine.events import TrialFinished
from supermax.errors import EnvironmentFault, Quarantined, RunHalted, UserError
from supermax.results.notifying import Notifier, channel, notify_halted, reason_of, targets
from supermax.results.notifying.targets import check_targets
from tests.conftest import eventually

pytestmark = pytest.mark.usefixtures("engine_preloaded")
HANG = f"sleep 60.{os.getpid()}"
"""Command of this test run alone."""


@dataclass
class Receiver:
    """HTTP server that keeps what it is sent."""

    status: int = 200
    events: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    def of(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == name]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.events.append(json.loads(body))
            found.headers.append(dict(self.headers))
            self._answer()

        def do_GET(self) -> None:
            found.events.append({"event": "GET"})
            self._answer()

        def _answer(self) -> None:
            self.send_response(found.status)
            if found.status // 100 == 3:
                self.send_header("Location", f"{found.url}/moved")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_port}/services/T0/very-secret"
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "TIMEOUT", 0.5)
    monkeypatch.setattr(channel, "TIMEOUT", 0.5)
    monkeypatch.setattr(channel, "PATIENCE", 3.0)
    monkeypatch.setattr(channel, "_PAUSES", (0.05,))
    monkeypatch.setattr(channel, "_TICK", 0.05)


def objective(trial: Any) -> float:
    return float(trial.suggest_float("x", 0, 1))


def failing(trial: Any) -> float:
    raise ValueError(f"no such column {trial.number * 0}")


def command(tmp_path: Path, code: str = "") -> str:
    """Return a command that appends its input to a file."""
    program = f"import sys; {code}open({str(tmp_path / 'got')!r}, 'a').write(sys.stdin.read())"
    return shlex.join([sys.executable, "-c", program])


def lines(tmp_path: Path) -> list[dict[str, Any]]:
    place, found = tmp_path / "got", []
    text = place.read_text() if place.exists() else ""
    decoder = json.JSONDecoder()
    while text:
        event, at = decoder.raw_decode(text)
        found.append(event)
        text = text[at:]
    return found


def test_a_run_notifies_a_webhook_and_a_command_of_its_end(
    study: optuna.Study, receiver: Receiver, tmp_path: Path, quick: None
) -> None:
    notify = [receiver.url, command(tmp_path)]
    supermax.optimize(study, objective, 3, progress=False, notify=notify)
    (event,) = receiver.of("ended")
    assert event["study"] == "test"
    assert event["trials"] == {"COMPLETE": 3}
    assert event["stopped_by"] is None
    assert event["best"] == {
        "trial": study.best_trial.number,
        "value": study.best_value,
        "params": study.best_params,
    }
    assert receiver.headers[0]["Content-Type"] == "application/json"
    assert [each["id"] for each in lines(tmp_path) if each["event"] == "ended"] == [event["id"]]
    outbox = (Path(event["run_dir"]) / "notify.jsonl").read_text()
    assert "very-secret" not in outbox


def test_wrong_arguments_are_named_first() -> None:
    with pytest.raises(UserError, match="study must be"):
        supermax.optimize(None, objective, 1, progress=False, notify="true")  # type: ignore[arg-type]


def test_a_run_notifies_of_its_halt(study: optuna.Study, receiver: Receiver, quick: None) -> None:
    with pytest.raises(RunHalted):
        supermax.optimize(study, failing, 9, progress=False, notify=receiver.url)
    (event,) = receiver.of("halted")
    assert event["reason"] == "failing trials"
    assert "no such column" in event["message"]
    assert event["trials"] == {"FAIL": 3}
    assert receiver.of("ended") == []


def test_a_study_that_is_removed_halts_the_run(
    study: optuna.Study, receiver: Receiver, tmp_path: Path, quick: None
) -> None:
    def remove(study: optuna.Study, trial: Any) -> None:
        for path in tmp_path.glob("study.db*"):
            if path.is_file():
                path.unlink()

    with pytest.raises(EnvironmentFault, match="was removed"):
        supermax.optimize(
            study, objective, 5, progress=False, notify=receiver.url, callbacks=[remove]
        )
    (event,) = receiver.of("halted")
    assert event["reason"] == "database"


def test_a_run_folder_that_cannot_be_written_halts_the_run(
    receiver: Receiver, tmp_path: Path
) -> None:
    study = optuna.create_study()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "trials").touch()
    with pytest.raises(EnvironmentFault, match="cannot be written"):
        supermax.optimize(
            study,
            objective,
            1,
            progress=False,
            notify=receiver.url,
            run_dir=tmp_path / "run",
        )
    assert [event["reason"] for event in receiver.of("halted")] == ["disk"]


def test_what_is_not_accepted_is_sent_by_the_next_run_once(
    study: optuna.Study, receiver: Receiver, short: None, quick: None, capfd: Any
) -> None:
    receiver.status = 503
    supermax.optimize(study, objective, 1, progress=False, notify=receiver.url)
    first = receiver.of("ended")[0]["id"]
    words = capfd.readouterr().err
    assert words.count("HTTP status 503") == 1
    assert "http://127.0.0.1" in words
    assert "very-secret" not in words
    receiver.status = 200
    receiver.events.clear()
    for trials in (2, 3):
        supermax.optimize(study, objective, trials, progress=False, notify=receiver.url)
    ids = [event["id"] for event in receiver.of("ended")]
    assert ids[0] == first
    assert len(ids) == len(set(ids)) == 3


def test_a_target_that_is_added_later_gets_no_earlier_events(
    study: optuna.Study, receiver: Receiver, tmp_path: Path
) -> None:
    with Notifier(study, ["exit 0"]) as notifier:
        notifier.ended(None)
    for _ in range(2):
        with Notifier(study, ["exit 0", receiver.url]) as notifier:
            notifier.ended(None)
    assert len(receiver.of("ended")) == 2


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(receiver: Receiver, status: int) -> None:
    """A redirected POST becomes a GET without the event, which a server may well accept."""
    receiver.status = status
    target = check_targets([receiver.url])[0]
    with pytest.raises(RuntimeError, match=f"HTTP status {status}: name the URL") as raised:
        target.send({"event": "ended"})
    assert receiver.events == [{"event": "ended"}]
    assert "very-secret" not in str(raised.value)


def test_arguments_without_texts(study: optuna.Study, quick: None) -> None:
    summary = supermax.optimize(study, objective, 1, progress=False, notify=None, track=None)
    assert summary.trials["COMPLETE"] == 1
    for name in ("notify", "track"):
        for wrong in (3, [None], [3], ["true", ""]):
            with pytest.raises(UserError, match=f"{name} must be a text or a list of texts"):
                supermax.optimize(study, objective, 1, progress=False, **{name: wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "words"),
    [(f"{HANG} & {HANG}", "it took longer than 0.5 s"), ("exit 3", "exit code 3")],
    ids=["hangs", "fails"],
)
def test_a_command_that_hangs_or_fails_is_reported_once(
    study: optuna.Study, short: None, quick: None, capfd: Any, code: str, words: str
) -> None:
    began = time.monotonic()
    for trials in (1, 2):
        supermax.optimize(study, objective, trials, progress=False, notify=[code])
        told = capfd.readouterr().err
        assert told.count("notify:") == told.count(words) == 1
        assert "The run is not affected" in told
    assert time.monotonic() - began < 60
    assert eventually(lambda: subprocess.run(["pgrep", "-f", f"^{HANG}$"]).returncode == 1)


def test_a_server_that_never_answers_delays_the_end_only_so_long(
    study: optuna.Study, short: None, quick: None, capfd: Any
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=50) as server:
        url = f"http://me:open-sesame@127.0.0.1:{server.getsockname()[1]}/hook"
        with Notifier(study, [url], tell=print) as notifier:
            ending = time.monotonic()
            notifier.ended(None)
            assert time.monotonic() - ending < 2 * channel.PATIENCE
    told = capfd.readouterr().out
    assert told.count("notify:") == 1
    assert "timed out" in told
    assert "open-sesame" not in told


def finished(number: int, value: float) -> TrialFinished:
    return TrialFinished(number, "COMPLETE", (value,), {"x": value}, 1, 0.1, number + 1)


def test_better_values_are_limited_and_the_latest_is_sent(
    study: optuna.Study, receiver: Receiver, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "BETTER_INTERVAL", 1.0)
    with Notifier(study, [receiver.url]) as notifier:
        notifier._sign = -1
        notifier(finished(0, 0.9))
        assert eventually(lambda: len(receiver.events) == 1)
        for number, value in enumerate((0.8, 0.85, 0.7, float("nan"), 0.75), 1):
            notifier(finished(number, value))
        assert eventually(lambda: len(receiver.events) == 2)
        assert len(receiver.events) == 2
    assert [event["value"] for event in receiver.of("better")] == [0.9, 0.7]
    assert receiver.events[1]["previous"] == 0.8
    assert receiver.events[1]["params"] == {"x": 0.7}


def test_the_supervisor_notifies_of_a_search_that_it_gives_up(receiver: Receiver) -> None:
    from supermax.search.settings import resolve  # cells import this file
    from supermax.search.settings.resolving import Value
    from supermax.space.presets import presets
    from supermax.ui.cli.tune import _notify_of_deaths

    flags = {"notify": Value([receiver.url], "--notify"), "name": Value("mine", "--study")}
    found = resolve("criteria", flags=flags, presets=presets(), parameters={})
    _notify_of_deaths([found])
    (event,) = receiver.events
    assert (event["event"], event["study"], event["reason"]) == ("halted", "mine", "deaths")


def test_login_of_a_url_becomes_a_header(study: optuna.Study, receiver: Receiver) -> None:
    notify_halted([receiver.url.replace("//", "//me:p%40ss@")], "s", "died")
    assert receiver.headers[0]["Authorization"] == "Basic bWU6cEBzcw=="
    assert receiver.events[0]["reason"] == "deaths"


def test_secrets_are_not_shown() -> None:
    shown = [
        target.shown
        for target in check_targets(
            ["https://me:pw@hooks.test/services/abc?token=x", "curl -H 'Auth: x' y", "./go.sh"]
        )
    ]
    assert shown == ["https://hooks.test/***", "curl …", "./go.sh"]
    assert "pw" not in repr(check_targets(["https://me:pw@hooks.test"]))


@pytest.mark.parametrize(
    "value",
    [
        "http://",
        "ftp://me:secret@host",
        "'secret",
        "https://x:y:z/secret",
        "https://host/my secret",
        "https://host/my\nsecret",
        "https://host/é/secret",
    ],
)
def test_targets_that_are_neither_command_nor_url(value: str) -> None:
    with pytest.raises(UserError, match=r"^notify: ") as raised:
        check_targets([value])
    assert "secret" not in str(raised.value)


def test_reasons_of_halts() -> None:
    def raised(cause: Exception) -> EnvironmentFault:
        try:
            try:
                raise cause
            except Exception as error:
                raise EnvironmentFault("it failed") from error
        except EnvironmentFault as error:
            try:
                raise error.with_traceback(None) from None  # as optimize does
            except EnvironmentFault as again:
                return again

    assert reason_of(raised(OSError(28, "No space left"))) == "disk"
    assert reason_of(raised(OperationalError("select", {}, Exception("down")))) == "database"
    assert reason_of(Quarantined("x")) == "quarantine"
    assert reason_of(RunHalted("x")) == "failing trials"
    assert reason_of(KeyboardInterrupt()) == "interrupt"
    assert reason_of(UserError("x")) == "input"
    assert reason_of(EnvironmentFault("x")) == "machine"
