"""`supermax report`: a study as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from supermax.cli.opening import Storage, Which, the_study
from supermax.naming import STORAGE
from supermax.records import read
from supermax.report.writing import check_target, write_report
from supermax.study import without_password

Output = Annotated[Path, typer.Option("--out", "--output", "-o", help="The file to write.")]


def report(
    study: Which = None, output: Output = Path("report.html"), storage: Storage = STORAGE
) -> None:
    """Write a study's report: one HTML file that needs no network and no other file.

    \b
    Example:
      supermax report criteria -o report.html
    """
    check_target(output.expanduser())
    record = read(the_study(storage, study))
    path = write_report(record, output, storage=without_password(storage))
    print(f"The report of '{record.name}' is in {path} ({path.stat().st_size / 1e6:.1f} MB).")
