"""Names of earlier studies in settings: STUDY, STORAGE#STUDY or STORAGE."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from supermax._util.attributes import STORAGE
from supermax._util.text import is_url

_SUFFIXES = (".db", ".sqlite", ".sqlite3", ".journal", ".log")
_VERSION = re.compile(r"@[1-9]\d*$")


def parted(text: str, folder: Path = Path()) -> tuple[str | None, str | None]:
    """Return storage and study of STORAGE#STUDY, STORAGE, or STUDY. A storage is a URL, or the
    path, relative to `folder`, of a file or of a folder that `outdir` has named. No file of a
    database has # in its name, so the study begins after the first # that follows a storage."""
    for place, name in (*_splits(text), (text, None)):
        if is_url(place):
            return place, name
        if (file := _storage_file(place, folder)) is not None:
            return str(file), name
    return None, text


def unreadable(text: str) -> str | None:
    """Return the path of a storage in the name of an earlier study that this user may not read;
    None: there is none."""
    for place in (*(place for place, _ in _splits(text)), text):
        try:
            path = Path(place).expanduser()
            wanted = os.R_OK | os.X_OK if path.is_dir() else os.R_OK
            if path.exists() and not os.access(path, wanted):
                return place
        except PermissionError:
            return place
        except (OSError, RuntimeError, ValueError):
            continue
    return None


def without_storage(text: str) -> str | None:
    """Return why the name of an earlier study that looks like a path names no storage; None: it
    does not look like one."""
    for place in (*(place for place, _ in _splits(text)), text):
        try:
            if Path(place).expanduser().is_dir():
                return f"The folder {place} has no {STORAGE}"
        except (OSError, RuntimeError, ValueError):
            continue
        if os.sep in place or Path(place).suffix in _SUFFIXES:
            return f"There is no file {place}"
    return None


def _splits(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield the parts before and after each # that can end a storage."""
    for found in re.finditer("#", text):
        place, name = text[: found.start()], text[found.end() :]
        if place and name and not (is_url(place) and _in_password(place, name)):
            yield place, name


def _in_password(place: str, name: str) -> bool:
    """Return whether the # after `place` is part of a URL's password: the host is still to come,
    or the database is."""
    rest = place.partition("://")[2]
    if rest.startswith("/"):  # a file
        return False
    return "/" not in rest or ("@" not in rest and "@" in _VERSION.sub("", name))


def next_to(text: str, folder: Path) -> str:
    """Return the name of an earlier study with the path of its storage made absolute, if there is
    such a storage in `folder`; otherwise it is the name of a study, and stays."""
    place, study = parted(text, folder)
    if place is None or is_url(place):
        return text
    named = "" if study is None else f"#{study}"
    return str(folder / Path(text.removesuffix(named)).expanduser()) + named


def _storage_file(text: str, folder: Path) -> Path | None:
    """Return the file of a storage: the path itself, relative to `folder`, or the database in a
    folder that `outdir` has named. None: there is none, and the text may be a study's name."""
    if not text:
        return None
    try:
        path = folder / Path(text).expanduser()
        if path.is_dir():
            path /= STORAGE
        return path if path.is_file() else None
    except (OSError, RuntimeError, ValueError):  # too long, no such user after ~, a null byte
        return None
