"""Report file, written atomically and never over a file that is not a report."""

from __future__ import annotations

import os
import time
from pathlib import Path

from supermax._util.files import write_whole
from supermax.errors import EnvironmentFault, UserError
from supermax.results.records import StudyRecord
from supermax.results.report.page import page

_START = b"<!doctype html>"


def write_report(
    record: StudyRecord, path: str | os.PathLike[str], *, storage: str | None = None
) -> Path:
    """Write the report of a study to `path` and return its absolute path. An older report is
    replaced."""
    target = Path(path).expanduser()
    check_target(target)
    target = target.resolve()  # replaces the target of a symbolic link, not the link
    content = page(record, storage, time.time()).encode(errors="replace")
    try:
        write_whole(target, content, shared=True)
    except OSError as error:
        raise EnvironmentFault(
            f"The report cannot be written to {target} ({error.strerror or error}). Name another "
            f"file with -o."
        ) from error
    return target


def check_target(target: Path) -> None:
    """Raise UserError if the path is not writable as a report, such as a database named by
    mistake. Called before the report is made."""
    try:
        if target.is_dir():
            raise UserError(
                f"{target} is a folder. Name a file in it: -o {target / 'report.html'}"
            )
        if not target.parent.is_dir():
            raise UserError(
                f"There is no folder {target.parent}. Create it, or name another file."
            )
        if target.exists() and not (target.is_file() and _is_page(target)):
            raise UserError(
                f"{target} exists already and is not a report, so it is kept. Name another file "
                f"with -o, or remove it."
            )
    except OSError as error:
        raise EnvironmentFault(f"{target} cannot be read ({error.strerror or error}).") from error


def _is_page(target: Path) -> bool:
    with target.open("rb") as file:
        start = file.read(len(_START))
    return not start or start.lower() == _START
