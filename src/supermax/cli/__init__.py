"""The command line: one file a group of commands."""

from __future__ import annotations

import errno
import sys
from typing import Annotated

import typer

import supermax
from supermax import supervise
from supermax.cli import study
from supermax.cli.arguments import Command, Interrupted, Root
from supermax.cli.care import clean, doctor
from supermax.cli.dashboard import dashboard
from supermax.cli.init import init
from supermax.cli.looking import best, compare, export, faults, show
from supermax.cli.plan import plan
from supermax.cli.replay import replay
from supermax.cli.report import report
from supermax.cli.status import status
from supermax.cli.stdio import let_go_of_output, mend_streams
from supermax.cli.track import track
from supermax.cli.tune import tune
from supermax.cli.using import predict, refit
from supermax.errors import EnvironmentFault, RunHalted, SupermaxError
from supermax.words import in_short, printable

app = typer.Typer(
    name="supermax",
    cls=Root,
    help="Hyperparameter search that runs for days without a person.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for group in (
    (init, plan, tune),
    (status, best, show, compare, faults, export),
    (report, dashboard),
    (refit, predict, replay),
    (track, clean, doctor),
):
    for command in group:
        app.command()(command)
app.add_typer(study.app, name="study")
for registered in (*app.registered_commands, *study.app.registered_commands):
    registered.cls = Command


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"supermax {supermax.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Say which this is.", callback=_say_version, is_eager=True),
    ] = False,
) -> None:
    """Hyperparameter search that runs for days without a person."""


def main() -> None:
    """Whoever's fault it is, a sentence on standard error and an exit code that says so."""
    mend_streams()
    try:
        app()
    except BrokenPipeError:  # `| head`: it has read enough
        let_go_of_output()
    except (KeyboardInterrupt, Interrupted) as interrupt:
        print(str(interrupt) or "Interrupted.", file=sys.stderr)
        raise SystemExit(supervise.INTERRUPTED) from None
    except SupermaxError as error:
        print(printable(str(error)), file=sys.stderr)
        raise SystemExit(exit_code(error)) from None
    except ImportError as error:
        if supervise.restarts():  # it could be imported before: a package is being replaced
            raise
        print(
            f"A Python package cannot be imported: {in_short(error)}. `supermax doctor` checks "
            f"what is installed.",
            file=sys.stderr,
        )
        raise SystemExit(supervise.ENVIRONMENT) from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EDQUOT):
            raise
        let_go_of_output()
        print(f"The output cannot be written: {error.strerror}.", file=sys.stderr)
        raise SystemExit(supervise.ENVIRONMENT) from None


def exit_code(error: SupermaxError) -> int:
    if isinstance(error, RunHalted):
        return supervise.HALTED
    return supervise.ENVIRONMENT if isinstance(error, EnvironmentFault) else supervise.USER
