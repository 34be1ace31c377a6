"""Command line of Supermax, with one file for each group of commands."""

from __future__ import annotations

import errno
import sys
from typing import Annotated

import typer

import supermax
from supermax._util.text import in_short, printable
from supermax.engine.processes import supervisor
from supermax.errors import EnvironmentFault, Quarantined, RunHalted, SupermaxError
from supermax.ui.cli import study
from supermax.ui.cli.arguments import Command, Interrupted, Root
from supermax.ui.cli.dashboard import dashboard
from supermax.ui.cli.database import database
from supermax.ui.cli.export import export
from supermax.ui.cli.init import init
from supermax.ui.cli.inspect import best, compare, faults, show
from supermax.ui.cli.maintenance import clean, doctor
from supermax.ui.cli.models import predict, refit
from supermax.ui.cli.plan import plan
from supermax.ui.cli.push import push
from supermax.ui.cli.replay import replay
from supermax.ui.cli.report import report
from supermax.ui.cli.slurm import slurm
from supermax.ui.cli.status import status
from supermax.ui.cli.stdio import discard_output, open_streams
from supermax.ui.cli.track import track
from supermax.ui.cli.tune import tune

_ABOUT = "Hyperparameter search that runs unattended for days."
app = typer.Typer(
    name="supermax",
    cls=Root,
    help=_ABOUT,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for group in (
    (init, plan, tune),
    (status, best, show, compare, faults, export),
    (report, dashboard),
    (refit, predict, push, replay),
    (slurm, database),
    (track, clean, doctor),
):
    for command in group:
        app.command()(command)
app.add_typer(study.app, name="study")
for registered in (*app.registered_commands, *study.app.registered_commands):
    registered.cls = Command


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"supermax {supermax.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Hyperparameter search that runs unattended for days."""


def main() -> None:
    """Run the command line. An error ends in a sentence on standard error and an exit code that
    says whose fault it is."""
    open_streams()
    try:
        app()
    except BrokenPipeError:  # the reader, such as `| head`, has closed the pipe
        discard_output()
    except (KeyboardInterrupt, Interrupted) as interrupt:
        print(str(interrupt) or "Interrupted.", file=sys.stderr)
        raise SystemExit(supervisor.INTERRUPTED) from None
    except SupermaxError as error:
        print(printable(str(error)), file=sys.stderr)
        raise SystemExit(exit_code(error)) from None
    except ImportError as error:
        # A name of this package that is missing is a bug. After a restart the import has worked
        # before, so a package is being replaced right now: the supervisor tries again.
        if (error.name or "").partition(".")[0] == "supermax" or supervisor.restarts():
            raise
        print(
            f"A Python package cannot be imported: {in_short(error)}. `supermax doctor` checks "
            f"what is installed.",
            file=sys.stderr,
        )
        raise SystemExit(supervisor.ENVIRONMENT) from None
    except OSError as error:
        if isinstance(error, PermissionError) and error.filename is not None:
            print(
                f"{printable(str(error.filename))} cannot be read or written: "
                f"{error.strerror}. Name another path, or change the permissions of this one.",
                file=sys.stderr,
            )
            raise SystemExit(supervisor.ENVIRONMENT) from None
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EDQUOT):
            raise
        discard_output()
        print(f"The output cannot be written: {error.strerror}.", file=sys.stderr)
        raise SystemExit(supervisor.ENVIRONMENT) from None


def exit_code(error: SupermaxError) -> int:
    """Return the exit code for an error: halted, quarantined, environment or user."""
    if isinstance(error, RunHalted):
        return supervisor.HALTED
    if isinstance(error, Quarantined):
        return supervisor.QUARANTINED
    return supervisor.ENVIRONMENT if isinstance(error, EnvironmentFault) else supervisor.USER
