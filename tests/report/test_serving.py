"""The dashboard: on this machine only, read only, as new as needed."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest

from supermax.errors import UserError
from supermax.records import read
from supermax.report import serving
from supermax.report.serving import FreshReport, make_site, server, stamp_of


@pytest.fixture
def study(tmp_path: Path) -> optuna.Study:
    study = optuna.create_study(storage=f"sqlite:///{tmp_path}/s.db", study_name="<i>s</i>")
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
    return study


@pytest.fixture
def port(study: optuna.Study) -> Iterator[int]:
    with server(make_site(study._storage, "s.db"), 0) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield listening.server_port
        listening.shutdown()
        thread.join()


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer.status, content


def test_an_index_a_report_and_optunas_dashboard(port: int, study: optuna.Study) -> None:
    status, text = ask(port, "/")
    assert status == 200
    assert "&lt;i&gt;s&lt;/i&gt;" in text
    assert f'href="/report/{study._study_id}"' in text
    assert f'href="/dashboard/studies/{study._study_id}"' in text
    status, text = ask(port, f"/report/{study._study_id}")
    assert status == 200
    assert "3 complete trials" in text
    assert ask(port, "/dashboard")[0] == 200
    assert "study_summaries" in ask(port, "/api/studies")[1]
    for path in ("/report/99", "/report/x", "/report/../etc", "/report", "/report/%C2%B2"):
        assert ask(port, path)[0] == 404


def test_strangers_and_writers_are_refused(port: int, study: optuna.Study) -> None:
    for host in ("evil.example", f"evil.example:{port}", "", "127.0.0.1.evil.example", "[::1"):
        for path in ("/", f"/report/{study._study_id}", "/api/studies", "/dashboard"):
            assert ask(port, path, Host=host)[0] == 403
    for host in (f"localhost:{port}", "127.0.0.1"):
        assert ask(port, "/", Host=host)[0] == 200
    for method in ("POST", "PUT", "DELETE"):
        assert ask(port, "/", method)[0] == 405
        assert ask(port, f"/report/{study._study_id}", method)[0] == 405
    there = f"/api/studies/{study._study_id}"
    assert ask(port, there, "DELETE", Origin="http://evil.example")[0] == 403
    assert ask(port, "/", "HEAD") == (200, "")


def test_a_changed_study_has_a_new_report(
    port: int, study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_AT_MOST_EVERY", 0.0)
    monkeypatch.setattr(serving, "_PATIENCE", 60.0)
    path = f"/report/{study._study_id}"
    assert "3 complete trials" in ask(port, path)[1]
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    assert "4 complete trials" in ask(port, path)[1]


def test_a_report_is_made_only_when_the_study_has_changed_and_not_too_often() -> None:
    now, state, made = [0.0], ["a"], []

    def make() -> tuple[str, object]:
        stamp = state[0]
        return stamp, lambda: made.append(stamp) or stamp.encode()

    report = FreshReport(make, clock=lambda: now[0])  # type: ignore[arg-type]
    assert report.content() == b"a"
    state[0] = "b"
    assert report.content() == b"a"  # looked at just now
    now[0] = 10.0
    assert report.content() == b"b"
    now[0] = 20.0
    assert report.content() == b"b"
    assert made == ["a", "b"]


def test_nobody_waits_long_for_a_newer_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_AT_MOST_EVERY", 0.0)
    monkeypatch.setattr(serving, "_PATIENCE", 0.05)
    go_on, state = threading.Event(), ["a"]

    def make() -> tuple[str, object]:
        stamp = state[0]

        def build() -> bytes:
            if stamp == "b":
                go_on.wait(30)
            return stamp.encode()

        return stamp, build

    report = FreshReport(make)  # type: ignore[arg-type]
    assert report.content() == b"a"
    state[0] = "b"
    assert report.content() == b"a"
    go_on.set()
    monkeypatch.setattr(serving, "_PATIENCE", 30.0)
    assert report.content() == b"b"


def test_a_storage_that_is_away_leaves_the_old_report() -> None:
    now, away = [0.0], [True]

    def make() -> tuple[str, object]:
        if away[0]:
            raise OSError("away")
        return "a", lambda: b"a"

    report = FreshReport(make, clock=lambda: now[0])  # type: ignore[arg-type]
    with pytest.raises(OSError, match="away"):
        report.content()
    now[0], away[0] = 10.0, False
    assert report.content() == b"a"
    now[0], away[0] = 20.0, True
    assert report.content() == b"a"


def test_the_stamp_follows_the_study(study: optuna.Study) -> None:
    before = stamp_of(read(study))
    assert stamp_of(read(study)) == before
    study.ask()
    assert stamp_of(read(study)) != before


def test_a_bad_port_is_a_sentence(study: optuna.Study) -> None:
    site = make_site(study._storage, "s.db")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"Port {number} is taken"), server(site, number):
            pass
    for number in (-1, 70_000):
        with pytest.raises(UserError, match="from 0 to 65535"), server(site, number):
            pass
