"""`supermax report`: report of a study in one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from supermax._util.attributes import STORAGE
from supermax.results.records import read_record
from supermax.results.report.writing import check_target, write_report
from supermax.studies import without_password
from supermax.ui.cli.opening import Storage, Which, the_study

Output = Annotated[Path, typer.Option("--out", "--output", "-o", help="HTML file to write.")]


def report(
    study: Which = None, output: Output = Path("report.html"), storage: Storage = STORAGE
) -> None:
    """Write the report of a study to one self-contained HTML file.

    \b
    Example:
      supermax report criteria -o report.html
    """
    check_target(output.expanduser())
    record = read_record(the_study(storage, study))
    path = write_report(record, output, storage=without_password(storage))
    print(f"The report of '{record.name}' is in {path} ({path.stat().st_size / 1e6:.1f} MB).")
