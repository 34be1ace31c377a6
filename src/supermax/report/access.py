"""Access to the dashboard: host, token, read-only.

    request ──▶ Host of this machine? ──▶ token? ──▶ only reading, or --edit? ──▶ application
                       └──────────────┬─┴────────────┘
                                      ▼ a sentence

A port on this machine can be reached by all its users and by every page in their browsers. The
address that is printed holds a token, which the browser gets as a cookie on its first request.
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

from supermax.report.index import message_page

_READING = ("GET", "HEAD")
_HOST = re.compile(r"(?:127\.0\.0\.1|localhost)(?::[0-9]{1,5})?", re.IGNORECASE)
_ODD = re.compile(r"[\x00-\x1f\x7f\\]|(?:^|/)\.{1,2}(?:/|$)")
"""In a path: nothing that is served has it, and some of what serves stumbles over it."""
SAFETY = [
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
]


@dataclass(frozen=True)
class Guard:
    """A WSGI application that passes on what may be asked."""

    application: WSGIApplication
    edit: bool = False
    """Let requests pass that change studies."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        reading = environ["REQUEST_METHOD"] in _READING
        if not is_local(environ):
            return refuse(start, "403 Forbidden", "Only from this machine.")
        if reading and (given := _given(environ)) is not None and self._is_right(given):
            return self._let_in(environ, start)
        if not self._is_right(_cookie(environ)):
            return refuse(
                start,
                "403 Forbidden",
                "This page is for whoever started the dashboard. Open the address that "
                "`supermax dashboard` printed, with its token.",
            )
        if not reading and not self.edit:
            return refuse(
                start,
                "405 Method Not Allowed",
                "It can only be read. To change studies, start it with `supermax dashboard "
                "--edit`.",
                ("Allow", ", ".join(_READING)),
            )
        if _ODD.search(environ.get("PATH_INFO", "")):
            return refuse(start, "404 Not Found", "There is no such page.")
        return self.application(environ, start)

    def address(self, port: int, path: str = "/") -> str:
        """An address on this machine that lets a browser in."""
        return f"http://127.0.0.1:{port}{path}?token={self.token}"

    def _is_right(self, given: str) -> bool:
        """Compared in a time that says nothing of how much of it was right."""
        return hmac.compare_digest(given.encode(errors="replace"), self.token.encode())

    def _let_in(self, environ: WSGIEnvironment, start: StartResponse) -> list[bytes]:
        """Give the browser a cookie, and send it on to the page without the token."""
        rest = [pair for pair in _query(environ) if pair[0] != "token"]
        where = "/" + quote(environ.get("PATH_INFO", ""), encoding="latin-1").lstrip("/")
        where += f"?{urlencode(rest)}" if rest else ""
        cookie = f"{_cookie_name(environ)}={self.token}; Path=/; HttpOnly; SameSite=Strict"
        return answer(start, "303 See Other", b"", ("Location", where), ("Set-Cookie", cookie))


def is_local(environ: WSGIEnvironment) -> bool:
    """True when the browser was sent here by its user: a page elsewhere may have had its own name
    point to this machine (DNS rebinding), or may send a form across."""
    host = environ.get("HTTP_HOST", "")
    if _HOST.fullmatch(host) is None:
        return False
    if environ["REQUEST_METHOD"] in _READING or "HTTP_ORIGIN" not in environ:
        return True
    return bool(environ["HTTP_ORIGIN"] == f"http://{host}")


def _query(environ: WSGIEnvironment) -> list[tuple[str, str]]:
    try:
        return parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True)
    except ValueError:  # more fields than anybody sends
        return []


def _given(environ: WSGIEnvironment) -> str | None:
    return dict(_query(environ)).get("token")


def _cookie_name(environ: WSGIEnvironment) -> str:
    """Browsers give a cookie to all ports of a host, so that two dashboards need two names."""
    return f"supermax-{environ['SERVER_PORT']}"


def _cookie(environ: WSGIEnvironment) -> str:
    for part in environ.get("HTTP_COOKIE", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == _cookie_name(environ):
            return str(value)
    return ""


def refuse(start: StartResponse, status: str, message: str, *more: tuple[str, str]) -> list[bytes]:
    return answer(start, status, message_page(message), *more)


def answer(
    start: StartResponse, status: str, content: bytes, *more: tuple[str, str]
) -> list[bytes]:
    headers = [
        ("Content-Type", "text/html; charset=utf-8"),
        ("Content-Length", str(len(content))),
        ("Cache-Control", "no-store"),
    ]
    start(status, [*headers, *SAFETY, *more])
    return [content]


def tamed(dashboard: WSGIApplication) -> WSGIApplication:
    """Optuna's dashboard, which takes for granted what browsers send, and breaks without."""

    def asked(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        environ.setdefault("HTTP_ACCEPT_ENCODING", "identity")
        said: list[Any] = []

        def note(*status_and_headers: Any) -> Callable[[bytes], object]:
            said[:] = status_and_headers
            return said.append  # for applications that write instead of returning; this does not

        content = dashboard(environ, note)
        status, headers = said[:2]
        if not status.startswith("500"):
            start(status, [*headers, *SAFETY])
            return content
        if close := getattr(content, "close", None):
            close()
        message = "Optuna's dashboard has no answer to that."
        return refuse(start, "503 Service Unavailable", message)

    return asked
