"""`supermax replay`: a trial run again in the foreground.

replay ──▶ the same command in a child ──▶ values, a traceback, or the signal it died of
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Annotated

import typer

from supermax import replaying
from supermax.cli.looking import Study, Trial
from supermax.cli.opening import Storage, the_study
from supermax.errors import UserError
from supermax.naming import STORAGE
from supermax.records import read

_FAILED = 1
_BLOCKING = "CUDA_LAUNCH_BLOCKING"


def replay(
    trial: Trial,
    study: Study = None,
    objective: Annotated[
        str | None,
        typer.Option(help="FILE.py:FUNCTION, for a study that `tune` did not make."),
    ] = None,
    storage: Storage = STORAGE,
) -> None:
    """Run a trial again in the foreground, every launch on a GPU waited for, to the exact line.

    Nothing is written to the study. What it raises is shown whole; the exit code is 1 then. Where
    it dies of a signal, its Python stack and the signal are shown; the exit code is 128 and the
    signal's number.

    \b
    Examples:
      supermax replay 0
      supermax replay 1 --storage study.db --objective program.py:objective
    """
    record = read(the_study(storage, study))
    found = record.trial(trial)
    if not found.params:
        raise UserError(f"Trial {trial} has no parameters: it never got as far as asking for any.")
    if not replaying.is_child():
        command = [sys.executable, "-P", "-m", "supermax", *sys.argv[1:]]
        raise typer.Exit(replaying.run_child(command, f"Trial {trial}"))
    replaying.be_child()
    if objective:
        run = replaying.load_objective(objective)
    else:
        from supermax.search import replayed

        run = replayed(record, found)
    print(f"Trial {trial} of '{record.name}', which was {found.state.lower()}, again:", flush=True)
    try:
        with _blocking_launches():
            values = replaying.replay(run, found, _say_step)
    except Exception:
        traceback.print_exc()
        raise typer.Exit(_FAILED) from None
    was = f" (it was {found.values})" if found.values else ""
    print(f"It came to {values}{was}." if values else "It pruned itself.")


@contextlib.contextmanager
def _blocking_launches() -> Iterator[None]:
    """CUDA reads it when the first tensor goes to the device, which is later than this."""
    before = os.environ.get(_BLOCKING)
    os.environ[_BLOCKING] = "1"
    try:
        yield
    finally:
        del os.environ[_BLOCKING]
        if before is not None:
            os.environ[_BLOCKING] = before


def _say_step(step: int, value: float) -> None:
    print(f"  step {step}: {value:.6g}", flush=True)
