"""Targets of notifications: a command, or the URL of a webhook."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import shlex
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit, urlunsplit

from supermax._util.text import finite
from supermax.errors import UserError

TIMEOUT = 10.0
"""Seconds that a target may take."""


@dataclass(frozen=True)
class Receiver:
    """Command, or URL of a webhook."""

    text: str = field(repr=False)

    @property
    def is_url(self) -> bool:
        return self.text.lower().startswith(("http://", "https://"))

    @property
    def shown(self) -> str:
        """Name without secrets: these may be anywhere in the path of a webhook, and in the
        arguments of a command."""
        if self.is_url:
            parts = urlsplit(self.text)
            return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/***"
        first = shlex.split(self.text, posix=True)[0]
        return first if first == self.text.strip() else f"{first} …"

    @property
    def key(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def send(self, event: Mapping[str, object]) -> None:
        """Deliver an event. Raises an exception unless it is accepted within TIMEOUT."""
        data = json.dumps(finite(dict(event)), default=str).encode()
        if self.is_url:
            self._post(data)
        else:
            self._run(data)

    def _post(self, data: bytes) -> None:
        parts = urlsplit(self.text)
        login, _, host = parts.netloc.rpartition("@")
        request = urllib.request.Request(
            urlunsplit((parts.scheme, host, parts.path, parts.query, "")),
            data,
            {"Content-Type": "application/json", "User-Agent": "supermax"},
        )
        if login:
            coded = base64.b64encode(unquote(login).encode()).decode()
            request.add_header("Authorization", f"Basic {coded}")
        try:
            with _OPENER.open(request, timeout=TIMEOUT):
                pass
        except urllib.error.HTTPError as error:
            error.close()
            moved = ": name the URL that it redirects to" if error.code // 100 == 3 else ""
            raise RuntimeError(f"HTTP status {error.code}{moved}") from None
        except urllib.error.URLError as error:
            raise RuntimeError(str(error.reason)) from None

    def _run(self, data: bytes) -> None:
        """Run the command with the data on its standard input, in a session of its own."""
        process = subprocess.Popen(
            ["/bin/sh", "-c", self.text],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            with contextlib.suppress(BrokenPipeError):
                process.communicate(data, timeout=TIMEOUT)
            process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"it took longer than {TIMEOUT:g} s and was killed") from None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode:
            raise RuntimeError(f"exit code {process.returncode}")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refusal of redirects: urllib would repeat the request without the event, and send the login
    to another host."""

    def redirect_request(self, *_: object) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


def check_targets(notify: Sequence[str]) -> list[Receiver]:
    """Return the targets of the setting `notify`. Raises UserError for one that is neither a
    command nor a URL of HTTP."""
    targets = [Receiver(text.strip()) for text in notify]
    if not all(map(_is_valid, targets)):
        raise UserError(
            "notify: one value is neither a command nor a URL with http:// or https://, in ASCII "
            "and without spaces (not shown here: it may contain a password)."
        )
    return targets


def _is_valid(target: Receiver) -> bool:
    try:
        if target.is_url:
            parts = urlsplit(target.text)
            _ = parts.port  # raises ValueError for one that is no number
            clean = target.text.isascii() and target.text.isprintable() and " " not in target.text
            return clean and bool(parts.hostname)  # http.client would quote another one
        return "://" not in shlex.split(target.text)[0]
    except (ValueError, IndexError):
        return False
