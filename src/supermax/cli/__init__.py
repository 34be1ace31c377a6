"""The command line: one file a group of commands."""

from __future__ import annotations

import sys

import typer

from supermax.cli import study
from supermax.cli.dashboard import dashboard
from supermax.cli.report import report
from supermax.errors import SupermaxError

app = typer.Typer(
    name="supermax",
    help="Hyperparameter search that runs for days without a person.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(study.app, name="study")
app.command()(report)
app.command()(dashboard)


@app.callback()
def _root() -> None:
    """Hyperparameter search that runs for days without a person."""


def main() -> None:
    try:
        app()
    except SupermaxError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
