"""The report as a file: whole or not at all, and never over something that is no report."""

from __future__ import annotations

import os
import time
from pathlib import Path

from supermax.errors import EnvironmentFault, UserError
from supermax.files import write_whole
from supermax.records import StudyRecord
from supermax.report.page import page

_START = b"<!doctype html>"


def write_report(
    record: StudyRecord, path: str | os.PathLike[str], *, storage: str | None = None
) -> Path:
    """Make the report of a study and write it to `path`; an older report is replaced."""
    target = Path(path).expanduser()
    check_target(target)
    target = target.resolve()  # a link stays one
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
    """Before the work: somebody's database is not overwritten by a slip of the keyboard."""
    try:
        if target.is_dir():
            raise UserError(
                f"{target} is a folder. Name a file in it: -o {target / 'report.html'}"
            )
        if not target.parent.is_dir():
            raise UserError(f"There is no folder {target.parent}. Make it, or name another file.")
        if target.exists() and not (target.is_file() and _is_page(target)):
            raise UserError(
                f"{target} is there already and is no report, so it is left alone. Name another "
                f"file with -o, or remove it."
            )
    except OSError as error:
        raise EnvironmentFault(f"{target} cannot be read ({error.strerror or error}).") from error


def _is_page(target: Path) -> bool:
    with target.open("rb") as file:
        start = file.read(len(_START))
    return not start or start.lower() == _START
