"""Access control of the dashboard: host, token, read-only.

    request ──▶ Host of this machine? ──▶ token? ──▶ read-only, or --edit? ──▶ application
                       └──────────────┬─┴────────────┘
                                      ▼ error page

A port on this machine can be reached by all its users and by every page in their browsers. The
printed address contains a token, which the browser gets as a cookie on its first request.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from supermax.results.report.index import message_page

_READ_METHODS = ("GET", "HEAD")
_HOST = re.compile(r"(?:127\.0\.0\.1|localhost)(?::[0-9]{1,5})?", re.IGNORECASE)
_INVALID_PATH = re.compile(r"[\x00-\x1f\x7f\\]|(?:^|/)\.{1,2}(?:/|$)")
"""Control characters, backslashes and dot segments: no served path contains them, and Optuna's
dashboard fails on some."""
_ELSEWHERE = (
    "Only browsers on this machine are served, at http://127.0.0.1 or http://localhost. From "
    "another machine, forward the port first: ssh -L PORT:127.0.0.1:PORT HOST."
)
SECURITY_HEADERS = [
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
]


@dataclass(frozen=True)
class Guard:
    """WSGI middleware that passes on only permitted requests."""

    application: WSGIApplication
    edit: bool = False
    """Permission for requests that change studies."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        reading = environ["REQUEST_METHOD"] in _READ_METHODS
        if not is_local(environ):
            return refuse(start, "403 Forbidden", _ELSEWHERE)
        if reading and (token := _query_token(environ)) is not None and self._is_token(token):
            return self._set_cookie(environ, start)
        if not self._is_token(_cookie(environ)):
            return refuse(
                start,
                "403 Forbidden",
                "The token is missing or wrong. Open the whole address that `supermax dashboard` "
                "printed in its terminal, with ?token=… at the end. A restart prints a new one.",
            )
        if not reading and not self.edit:
            return refuse(
                start,
                "405 Method Not Allowed",
                "Studies are read-only. To change them, start `supermax dashboard --edit`.",
                ("Allow", ", ".join(_READ_METHODS)),
            )
        if _INVALID_PATH.search(environ.get("PATH_INFO", "")):
            return refuse(start, "404 Not Found", "There is no such page.")
        return self.application(environ, start)

    def address(self, port: int, path: str = "/") -> str:
        """Return an address on this machine that contains the token."""
        return f"http://127.0.0.1:{port}{path}?token={self.token}"

    def _is_token(self, given: str) -> bool:
        """Compare in constant time, so that timing reveals nothing of the token."""
        return hmac.compare_digest(given.encode(errors="replace"), self.token.encode())

    def _set_cookie(self, environ: WSGIEnvironment, start: StartResponse) -> list[bytes]:
        """Set the cookie, and redirect to the same page without the token."""
        rest = [pair for pair in _query(environ) if pair[0] != "token"]
        where = "/" + quote(environ.get("PATH_INFO", ""), encoding="latin-1").lstrip("/")
        where += f"?{urlencode(rest)}" if rest else ""
        cookie = f"{_cookie_name(environ)}={self.token}; Path=/; HttpOnly; SameSite=Strict"
        return answer(start, "303 See Other", b"", ("Location", where), ("Set-Cookie", cookie))


def is_local(environ: WSGIEnvironment) -> bool:
    """Return whether the request comes from this site: not from a page elsewhere whose name
    resolves to this machine (DNS rebinding), nor from a cross-site form."""
    host = environ.get("HTTP_HOST", "")
    if _HOST.fullmatch(host) is None:
        return False
    if environ["REQUEST_METHOD"] in _READ_METHODS or "HTTP_ORIGIN" not in environ:
        return True
    return bool(environ["HTTP_ORIGIN"] == f"http://{host}")


def _query(environ: WSGIEnvironment) -> list[tuple[str, str]]:
    try:
        return parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True)
    except ValueError:  # too many fields
        return []


def _query_token(environ: WSGIEnvironment) -> str | None:
    return dict(_query(environ)).get("token")


def _cookie_name(environ: WSGIEnvironment) -> str:
    """Return a cookie name with the port: browsers share cookies between the ports of a host, so
    two dashboards need two names."""
    return f"supermax-{environ['SERVER_PORT']}"


def _cookie(environ: WSGIEnvironment) -> str:
    for part in environ.get("HTTP_COOKIE", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == _cookie_name(environ):
            return str(value)
    return ""


def refuse(start: StartResponse, status: str, message: str, *more: tuple[str, str]) -> list[bytes]:
    """Respond with an error page."""
    return answer(start, status, message_page(message), *more)


def answer(
    start: StartResponse, status: str, content: bytes, *more: tuple[str, str]
) -> list[bytes]:
    """Respond with HTML, security headers and `more` headers."""
    headers = [
        ("Content-Type", "text/html; charset=utf-8"),
        ("Content-Length", str(len(content))),
        ("Cache-Control", "no-store"),
    ]
    start(status, [*headers, *SECURITY_HEADERS, *more])
    return [content]


def hardened(dashboard: WSGIApplication) -> WSGIApplication:
    """Return Optuna's dashboard with defaults for headers that it requires, security headers, and
    an error page instead of an internal server error."""

    def application(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        environ.setdefault("HTTP_ACCEPT_ENCODING", "identity")
        response: list[Any] = []

        def record_response(*status_and_headers: Any) -> Callable[[bytes], object]:
            response[:] = status_and_headers
            return response.append  # WSGI's `write`, which the dashboard does not use

        content = dashboard(environ, record_response)
        status, headers = response[:2]
        if not status.startswith("500"):
            start(status, [*headers, *SECURITY_HEADERS])
            return content
        if close := getattr(content, "close", None):
            close()
        message = "Optuna's dashboard failed on this request."
        return refuse(start, "503 Service Unavailable", message)

    return application
