"""Reports in a browser, beside Optuna's dashboard: on this machine only, always as new as needed.

browser ──▶ Guard ──▶ Site ──▶ /            the studies
                          ├──▶ /report/ID   made when asked for, and when the study has changed
                          └──▶ all else     Optuna's dashboard
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import optuna
from optuna.storages import BaseStorage

from supermax.errors import EnvironmentFault, SupermaxError, UserError
from supermax.records import StudyRecord, read
from supermax.report.access import Guard, answer, refuse, tamed
from supermax.report.index import index_page, message_page
from supermax.report.overview import overview
from supermax.report.page import page, require_plotly
from supermax.words import in_short

HOST = "127.0.0.1"
_AT_MOST_EVERY = 3.0
"""Seconds between two looks at a study, however often it is asked for."""
_PATIENCE = 2.0
"""Seconds a browser waits for a newer report when an older one is there."""


@dataclass
class FreshReport:
    """The report of one study, made anew by one thread at a time when the study has changed."""

    make: Callable[[], tuple[Any, Callable[[], bytes]]]
    """What the study is like, equal as long as its report would be, and how to make that."""
    clock: Callable[[], float] = time.monotonic
    _stamp: Any = None
    _content: bytes | None = None
    _trouble: Exception | None = None
    _looked: float = float("-inf")
    _work: threading.Thread | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def content(self) -> bytes:
        """As new as can be had within a moment; the first one is waited for."""
        with self._lock:
            if self._work is None and self.clock() - self._looked >= _AT_MOST_EVERY:
                self._work = threading.Thread(target=self._renew, daemon=True)
                self._work.start()
            work, there = self._work, self._content
        if work is not None:
            work.join(None if there is None else _PATIENCE)
        with self._lock:
            if self._content is None:
                raise self._trouble or RuntimeError("no report")
            return self._content

    def _renew(self) -> None:
        trouble, stamp, content = None, self._stamp, self._content
        try:
            stamp, build = self.make()
            if stamp != self._stamp or content is None:
                content = build()
        except Exception as error:  # a storage that is away for a moment: the old report stands
            trouble = error
        with self._lock:
            self._trouble, self._stamp, self._content = trouble, stamp, content
            self._looked, self._work = self.clock(), None


@dataclass
class Site:
    """The WSGI application."""

    storage: BaseStorage
    place: str
    """The storage's name, without a password."""
    dashboard: WSGIApplication
    _reports: dict[int, FreshReport] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._first = FreshReport(lambda: (object(), self._index))  # no two are alike

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path not in ("", "/") and not path.startswith("/report"):
            return self.dashboard(environ, start)
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return refuse(start, "405 Method Not Allowed", "It can only be read.")
        status, content = self._page(path)
        return answer(start, status, content if environ["REQUEST_METHOD"] == "GET" else b"")

    def _page(self, path: str) -> tuple[str, bytes]:
        try:
            if path in ("", "/"):
                return "200 OK", self._first.content()
            number = path.removeprefix("/report/").rstrip("/")
            known = {str(study._study_id) for study in self.storage.get_all_studies()}
            if number not in known:
                return "404 Not Found", message_page("There is no such study.")
            return "200 OK", self._report(int(number)).content()
        except SupermaxError as error:
            return "503 Service Unavailable", message_page(str(error))
        except Exception as error:  # of the storage: drivers raise what they like
            why = f"{type(error).__name__}: {in_short(error)}"
            return "503 Service Unavailable", message_page(f"The studies cannot be read. {why}")

    def _index(self) -> bytes:
        names = sorted(study.study_name for study in self.storage.get_all_studies())
        found = [
            overview(optuna.load_study(study_name=name, storage=self.storage)) for name in names
        ]
        return index_page(self.place, found).encode(errors="replace")

    def _report(self, study_id: int) -> FreshReport:
        with self._lock:
            if study_id not in self._reports:
                self._reports[study_id] = FreshReport(lambda: self._made(study_id))
            return self._reports[study_id]

    def _made(self, study_id: int) -> tuple[Any, Callable[[], bytes]]:
        name = self.storage.get_study_name_from_id(study_id)
        record = read(optuna.load_study(study_name=name, storage=self.storage))
        return (
            stamp_of(record),
            lambda: page(record, self.place, time.time()).encode(errors="replace"),
        )


def stamp_of(record: StudyRecord) -> Any:
    """Equal as long as the study, and what its running trials have left on disk, are."""
    parts = []
    for trial in record.trials:
        ledger = 0 if trial.trial.state.is_finished() else len(trial.folder.records())
        parts.append((trial.number, trial.state, len(trial.trial.intermediate_values), ledger))
    return record.name, tuple(parts)


def make_site(storage: BaseStorage, place: str, *, edit: bool = False) -> Guard:
    """The reports and Optuna's dashboard of a storage, for whoever has the token. `edit`: studies
    can be changed and deleted there."""
    require_plotly()
    try:
        from optuna_dashboard import wsgi
    except ModuleNotFoundError:
        raise UserError(
            "The dashboard needs optuna-dashboard, which is not installed: "
            "pip install 'supermax[dashboard]'."
        ) from None
    return Guard(Site(storage, place, tamed(wsgi(storage))), edit)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False

    def server_bind(self) -> None:
        """Without asking a name server what this machine is called."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = HOST, self.server_address[1]
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away in the middle of an answer is no news."""


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """A line for every request would hide what matters."""


@contextmanager
def server(site: WSGIApplication, port: int) -> Iterator[WSGIServer]:
    """Bound to this machine's own address; port 0 takes a free one."""
    if not 0 <= port <= 65535:
        raise UserError(f"--port must be a number from 0 to 65535, not {port}.")
    try:
        made = _Server((HOST, port), _Handler)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(
                f"Port {port} is taken by another program. Name another one with --port, or 0 "
                f"for any that is free."
            ) from None
        why = error.strerror or error
        raise EnvironmentFault(
            f"Port {port} cannot be opened ({why}). Name another one."
        ) from None
    made.set_app(site)
    try:
        yield made
    finally:
        made.server_close()
