"""Web server of reports and Optuna's dashboard, for this machine only.

browser ──▶ Guard ──▶ Site ──▶ /            list of studies
                          ├──▶ /report/ID   report, rendered again when the study has changed
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
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import optuna
from optuna.storages import BaseStorage

from supermax._util.attributes import RACE, is_race
from supermax._util.text import in_short
from supermax.errors import EnvironmentFault, SupermaxError, UserError
from supermax.results.records import StudyRecord, read_record
from supermax.results.report.access import Guard, answer, hardened, refuse
from supermax.results.report.index import index_page, message_page
from supermax.results.report.overview import overview
from supermax.results.report.page import page, require_plotly

HOST = "127.0.0.1"
_MIN_INTERVAL = 3.0
"""Seconds between two reads of a study, at least, however often it is requested."""
_MAX_WAIT = 2.0
"""Seconds that a request waits for a newer report before it gets the cached one."""


@dataclass
class CachedReport:
    """Cached report of a study. One thread at a time renders it again if the study has changed."""

    make: Callable[[], tuple[object, Callable[[], bytes]]]
    """Function that returns a stamp of the study, which is equal as long as the report would be,
    and a function that renders the report."""
    clock: Callable[[], float] = time.monotonic
    _stamp: object = None
    _content: bytes | None = None
    _error: Exception | None = None
    _checked: float = float("-inf")
    _renewal: threading.Thread | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def content(self) -> bytes:
        """Return the report, renewed if that takes only a moment. The first one is waited for.

        Raises the error of the renewal while there is no report at all.
        """
        with self._lock:
            if self._renewal is None and self.clock() - self._checked >= _MIN_INTERVAL:
                self._renewal = threading.Thread(target=self._renew, daemon=True)
                self._renewal.start()
            renewal, cached = self._renewal, self._content
        if renewal is not None:
            renewal.join(None if cached is None else _MAX_WAIT)
        with self._lock:
            if self._content is None:
                raise self._error or RuntimeError("no report")
            return self._content

    def _renew(self) -> None:
        failure, stamp, content = None, self._stamp, self._content
        try:
            stamp, render = self.make()
            if stamp != self._stamp or content is None:
                content = render()
        except Exception as error:  # such as a storage outage: the cached report is kept
            failure = error
        with self._lock:
            self._error, self._stamp, self._content = failure, stamp, content
            self._checked, self._renewal = self.clock(), None


@dataclass
class Site:
    """WSGI application of the studies, their reports and Optuna's dashboard."""

    storage: BaseStorage
    place: str
    """Displayed address of the storage, without a password."""
    dashboard: WSGIApplication
    _reports: dict[int, CachedReport] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        # No two objects are equal, so the index is rendered again every time.
        self._index = CachedReport(lambda: (object(), self._render_index))

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path not in ("", "/") and not path.startswith("/report"):
            return self.dashboard(environ, start)
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return refuse(start, "405 Method Not Allowed", "This page is read-only.")
        status, content = self._page(path)
        return answer(start, status, content if environ["REQUEST_METHOD"] == "GET" else b"")

    def _page(self, path: str) -> tuple[str, bytes]:
        try:
            if path in ("", "/"):
                return "200 OK", self._index.content()
            number = path.removeprefix("/report/").rstrip("/")
            known = {str(study._study_id) for study in self.storage.get_all_studies()}
            if number not in known:
                return "404 Not Found", message_page("There is no such study.")
            return "200 OK", self._report(int(number)).content()
        except SupermaxError as error:
            return "503 Service Unavailable", message_page(str(error))
        except Exception as error:  # database drivers raise exceptions of any type
            why = f"{type(error).__name__}: {in_short(error)}"
            return "503 Service Unavailable", message_page(f"The studies cannot be read. {why}")

    def _render_index(self) -> bytes:
        stored = (study.study_name for study in self.storage.get_all_studies())
        names = sorted(name for name in stored if not is_race(name))
        found = [
            overview(optuna.load_study(study_name=name, storage=self.storage)) for name in names
        ]
        return index_page(self.place, found).encode(errors="replace")

    def _report(self, study_id: int) -> CachedReport:
        with self._lock:
            if study_id not in self._reports:
                self._reports[study_id] = CachedReport(lambda: self._make_report(study_id))
            return self._reports[study_id]

    def _make_report(self, study_id: int) -> tuple[object, Callable[[], bytes]]:
        name = self.storage.get_study_name_from_id(study_id)
        record = read_record(optuna.load_study(study_name=name, storage=self.storage))
        return (
            stamp_of(record),
            lambda: page(record, self.place, time.time()).encode(errors="replace"),
        )


def stamp_of(record: StudyRecord) -> object:
    """Return a value that changes with the study and with the ledgers of its running trials."""
    parts = []
    for trial in record.trials:
        ledger = 0 if trial.trial.state.is_finished() else len(trial.folder.records())
        parts.append((trial.number, trial.state, len(trial.trial.intermediate_values), ledger))
    return record.name, tuple(parts), str(record.note(RACE))


def make_site(storage: BaseStorage, place: str, *, edit: bool = False) -> Guard:
    """Return the application with reports and Optuna's dashboard of a storage, behind a token.
    `edit` allows studies to be changed and deleted."""
    require_plotly()
    try:
        from optuna_dashboard import wsgi
    except ModuleNotFoundError:
        raise UserError(
            "The dashboard needs optuna-dashboard, which is not installed: "
            "pip install 'supermax[dashboard]'."
        ) from None
    return Guard(Site(storage, place, hardened(wsgi(storage))), edit)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False

    def server_bind(self) -> None:
        """Bind without a DNS lookup of this machine's name, which the base class does."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = HOST, self.server_address[1]
        self.setup_environ()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors, such as a browser that closed the connection."""


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a line per request would hide the addresses above."""


@contextmanager
def server(site: WSGIApplication, port: int) -> Iterator[WSGIServer]:
    """Yield a server bound to the loopback address; port 0 takes a free one."""
    if not 0 <= port <= 65535:
        raise UserError(f"--port must be a number from 0 to 65535, not {port}.")
    try:
        made = _Server((HOST, port), _Handler)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(
                f"Port {port} is in use by another program. Choose another with --port, or 0 for "
                f"any free one."
            ) from None
        why = error.strerror or error
        raise EnvironmentFault(
            f"Port {port} cannot be opened ({why}). Choose another with --port."
        ) from None
    made.set_app(site)
    try:
        yield made
    finally:
        made.server_close()
