"""Dashboard: only for its user on this machine, read-only, and up to date."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import pytest

import supermax
from supermax._util.attributes import SETTINGS
from supermax.engine.storage import locks
from supermax.engine.storage.locations import find_location
from supermax.errors import UserError
from supermax.results.records import read_record
from supermax.results.report import serving as reports
from supermax.results.report.access import Guard
from supermax.results.report.index import index_page
from supermax.results.report.overview import overview
from supermax.results.report.serving import CachedReport, make_site, server, stamp_of

Ask = Callable[..., tuple[int, str]]


@pytest.fixture
def study(tmp_path: Path) -> optuna.Study:
    study = optuna.create_study(storage=f"sqlite:///{tmp_path}/s.db", study_name="<i>s</i>")
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
    return study


@contextmanager
def serving(site: Guard) -> Iterator[int]:
    with server(site, 0) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield listening.server_port
        finally:
            listening.shutdown()
            thread.join()


@pytest.fixture
def site(study: optuna.Study) -> Guard:
    return make_site(study._storage, "s.db")


@pytest.fixture
def port(site: Guard) -> Iterator[int]:
    with serving(site) as port:
        yield port


@pytest.fixture
def ask(site: Guard, port: int) -> Ask:
    """Return a function that sends requests with the cookie of the dashboard."""
    cookie = f"supermax-{port}={site.token}"

    def asked(path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
        status, _, content = answered(port, path, method, **{"Cookie": cookie, **headers})
        return status, content

    return asked


def answered(
    port: int, path: str, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    content = answer.read().decode(errors="replace")
    connection.close()
    return answer.status, {k.lower(): v for k, v in answer.getheaders()}, content


def test_an_index_a_report_and_optunas_dashboard(ask: Ask, study: optuna.Study) -> None:
    status, text = ask("/")
    assert status == 200
    assert "&lt;i&gt;s&lt;/i&gt;" in text
    assert f'href="/report/{study._study_id}"' in text
    assert f'href="/dashboard/studies/{study._study_id}"' in text
    status, text = ask(f"/report/{study._study_id}")
    assert status == 200
    assert "3 complete trials" in text
    assert ask("/dashboard")[0] == 200
    assert "study_summaries" in ask("/api/studies")[1]
    for path in ("/report/99", "/report/x", "/report/../etc", "/report", "/report/%C2%B2"):
        assert ask(path)[0] == 404


HOSTS = [
    "evil.example",
    "evil.example:80",
    "",
    "127.0.0.1.evil.example",
    "[::1",
    "evil@localhost",
    "localhost@evil.example",
    "localhost:80@evil.example",
    "localhost:x",
    "localhost/",
    "localhost evil",
]


def test_a_foreign_host_header_is_refused(ask: Ask, site: Guard) -> None:
    for host in HOSTS:
        for path in ("/", "/report/1", "/api/studies", f"/?token={site.token}"):
            status, text = ask(path, Host=host)
            assert status == 403, host
            assert "forward the port first: ssh -L" in text


def test_local_host_headers_are_accepted(ask: Ask, port: int) -> None:
    for host in (f"localhost:{port}", "127.0.0.1", "LOCALHOST"):
        assert ask("/", Host=host)[0] == 200
    assert ask("/", "HEAD") == (200, "")


def test_a_request_without_the_token_is_refused(
    port: int, site: Guard, study: optuna.Study
) -> None:
    there = f"/api/studies/{study._study_id}"
    cookies = ["", "x", f"supermax-{port}=", f"supermax-{port}={site.token[:-1]}", "supermax=é"]
    for cookie in cookies:
        for method, path in (
            ("GET", "/"),
            ("GET", "/api/studies"),
            ("GET", "/static/bundle.js"),
            ("GET", f"/?token={site.token[:-1]}"),
            ("GET", "/?token="),
            ("GET", "/%00"),
            ("POST", f"{there}?token={site.token}"),
            ("DELETE", there),
        ):
            status, headers, text = answered(port, path, method, Cookie=cookie)
            assert (status, "set-cookie" in headers) == (403, False), path
            assert "Open the whole address that `supermax dashboard` printed" in text
            assert "?token=" in text
            assert site.token not in text
    assert optuna.get_all_study_names(study._storage) == ["<i>s</i>"]


def test_the_address_with_the_token_sets_a_cookie(port: int, site: Guard) -> None:
    for path in ("/", "/report/1", "/dashboard", "//evil.example", "/%C3%A9"):
        status, headers, text = answered(port, f"{path}?token={site.token}&a=b+c")
        assert (status, text) == (303, "")
        assert headers["location"] == f"/{path.lstrip('/')}?a=b+c"
        value, *attributes = headers["set-cookie"].split("; ")
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} == set(attributes)
        assert value == f"supermax-{port}={site.token}"
        assert headers["referrer-policy"] == "no-referrer"
    assert answered(port, "/", Cookie=f"other=1; {value}")[0] == 200


def test_every_dashboard_has_a_token(site: Guard, study: optuna.Study) -> None:
    assert len(site.token) > 40
    assert make_site(study._storage, "s.db").token != site.token
    assert site.token not in repr(site)


def test_studies_are_read_only(ask: Ask, study: optuna.Study) -> None:
    there = f"/api/studies/{study._study_id}"
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "NONSENSE"):
        for path in ("/", f"/report/{study._study_id}", there, f"{there}/rename", "/api/studies"):
            status, text = ask(path, method)
            assert status == 405
            assert "supermax dashboard --edit" in text
    assert ask(there)[0] == 200
    assert optuna.get_all_study_names(study._storage) == ["<i>s</i>"]


def test_with_edit_studies_can_be_changed_from_its_own_pages(study: optuna.Study) -> None:
    site = make_site(study._storage, "s.db", edit=True)
    there = f"/api/studies/{study._study_id}"
    with serving(site) as port:
        cookie = {"Cookie": f"supermax-{port}={site.token}"}
        for origin in ("http://evil.example", f"http://localhost:{port}", "http://[", "null"):
            assert answered(port, there, "DELETE", Origin=origin, **cookie)[0] == 403
        assert answered(port, there, "DELETE")[0] == 403
        assert answered(port, "/", "DELETE", **cookie)[0] == 405
        own = f"http://127.0.0.1:{port}"
        assert answered(port, there, "DELETE", Origin=own, **cookie)[0] == 204
    assert optuna.get_all_study_names(study._storage) == []


ODD = [
    "/static/..",
    "/static/../../setup.py",
    "/static/%2e%2e/%2e%2e/_app.py",
    "/static/..%2f_app.py",
    "/static/%00",
    "/static/x%00y",
    "/static/.",
    "/static/" + "a" * 5000,
    "/static/..%5c_app.py",
    "/%00",
    "/%ff%fe",
    "/static/%ff",
    "/static/%0d%0aSet-Cookie:x=y",
    "/api/studies/99999999999999999999999",
    "/api/studies/-1",
    "/api/studies/1?after=x",
    "/api/studies/1/plot/x",
    "/artifacts/1/../x",
    "/report/",
    "/report/1/../2",
    "/report/%D9%A3",
    "//",
    "*",
]


def test_invalid_paths_are_not_found(ask: Ask) -> None:
    for path in ODD:
        for headers in ({}, {"Accept-Encoding": "gzip"}):
            status, text = ask(path, **headers)
            assert status in (200, 302, 400, 404, 503), path
            assert "import optuna" not in text
    assert ask("/")[0] == 200


def test_a_changed_study_has_a_new_report(
    ask: Ask, study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "_MIN_INTERVAL", 0.0)
    monkeypatch.setattr(reports, "_MAX_WAIT", 60.0)
    path = f"/report/{study._study_id}"
    assert "3 complete trials" in ask(path)[1]
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    assert "4 complete trials" in ask(path)[1]


def test_a_report_is_made_only_when_the_study_has_changed_and_not_too_often() -> None:
    now, state, made = [0.0], ["a"], []

    def make() -> tuple[str, object]:
        stamp = state[0]
        return stamp, lambda: made.append(stamp) or stamp.encode()

    report = CachedReport(make, clock=lambda: now[0])  # type: ignore[arg-type]
    assert report.content() == b"a"
    state[0] = "b"
    assert report.content() == b"a"  # looked at just now
    now[0] = 10.0
    assert report.content() == b"b"
    now[0] = 20.0
    assert report.content() == b"b"
    assert made == ["a", "b"]


def test_a_request_does_not_wait_long_for_a_newer_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "_MIN_INTERVAL", 0.0)
    monkeypatch.setattr(reports, "_MAX_WAIT", 0.05)
    go_on, state = threading.Event(), ["a"]

    def make() -> tuple[str, object]:
        stamp = state[0]

        def build() -> bytes:
            if stamp == "b":
                go_on.wait(30)
            return stamp.encode()

        return stamp, build

    report = CachedReport(make)  # type: ignore[arg-type]
    assert report.content() == b"a"
    state[0] = "b"
    assert report.content() == b"a"
    go_on.set()
    monkeypatch.setattr(reports, "_MAX_WAIT", 30.0)
    assert report.content() == b"b"


def test_the_cached_report_is_kept_during_a_storage_outage() -> None:
    now, away = [0.0], [True]

    def make() -> tuple[str, object]:
        if away[0]:
            raise OSError("away")
        return "a", lambda: b"a"

    report = CachedReport(make, clock=lambda: now[0])  # type: ignore[arg-type]
    with pytest.raises(OSError, match="away"):
        report.content()
    now[0], away[0] = 10.0, False
    assert report.content() == b"a"
    now[0], away[0] = 20.0, True
    assert report.content() == b"a"


def test_the_stamp_changes_with_the_study(study: optuna.Study) -> None:
    before = stamp_of(read_record(study))
    assert stamp_of(read_record(study)) == before
    study.ask()
    assert stamp_of(read_record(study)) != before


def test_a_bad_port_is_a_user_error(study: optuna.Study) -> None:
    site = make_site(study._storage, "s.db")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"Port {number} is in use"), server(site, number):
            pass
    for number in (-1, 70_000):
        with pytest.raises(UserError, match="from 0 to 65535"), server(site, number):
            pass


@pytest.mark.slow
def test_the_index_shows_the_state_of_each_study(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    study = optuna.create_study(storage=url, study_name="mine", direction="maximize")
    new = overview(study)
    assert (new.state, new.progress, new.best, new.fault) == ("new", "0", "", "")

    def objective(trial: Any) -> float:
        if trial.number == 1:
            raise ValueError("always")
        return float(trial.number)

    supermax.optimize(study, objective, n_trials=3, progress=False)
    done = overview(study)
    assert (done.state, done.progress) == ("finished", "3")
    assert done.best == "value 2 (trial 2)"
    assert done.fault == "exception (trial 1)"
    study.set_user_attr(SETTINGS, {"trials": 9})
    paused = overview(study)
    assert (paused.state, paused.progress) == ("paused", "3 of 9")
    lock = find_location(study).lock
    with contextlib.ExitStack() as stack:
        held = locks.Lock(lock, "mine")
        stack.callback(held.release)
        assert overview(study).state == "running"
    text = index_page("s.db", [paused])
    assert 'http-equiv="refresh"' in text
    assert "value 2 (trial 2)" in text
