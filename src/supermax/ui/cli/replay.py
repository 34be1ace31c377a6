"""`supermax replay`: run a trial of a study again in the foreground.

replay ──▶ the same command in a child ──▶ values, a traceback, or the signal that killed it
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Annotated

import typer

from supermax._util.attributes import STORAGE
from supermax.errors import UserError
from supermax.results.records import read_record
from supermax.search.replay import (
    be_child,
    import_objective,
    is_child,
    replay_trial,
    run_child,
)
from supermax.ui.cli.inspect import Study, Trial
from supermax.ui.cli.opening import Storage, the_study

_FAILED = 1
_LAUNCH_BLOCKING = "CUDA_LAUNCH_BLOCKING"


def replay(
    trial: Trial,
    study: Study = None,
    objective: Annotated[
        str | None,
        typer.Option(help="FILE.py:FUNCTION, for a study that `tune` did not create."),
    ] = None,
    storage: Storage = STORAGE,
) -> None:
    """Run a trial again in the foreground, with synchronous CUDA kernel launches.

    Nothing is written to the study. An exception is shown with its full traceback, which names
    the exact line; the exit code is then 1. If a signal kills the trial, its Python stack and the
    signal are shown; the exit code is then 128 plus the number of the signal.

    \b
    Examples:
      supermax replay 0
      supermax replay 1 --storage study.db --objective program.py:objective
    """
    record = read_record(the_study(storage, study))
    found = record.trial(trial)
    if not found.params:
        raise UserError(f"Trial {trial} has no parameters: it ended before it suggested any.")
    if not is_child():
        command = [sys.executable, "-P", "-m", "supermax", *sys.argv[1:]]
        raise typer.Exit(run_child(command, f"Trial {trial}"))
    be_child()
    if objective:
        run = import_objective(objective)
    else:
        from supermax.search.refit import replay_objective

        run = replay_objective(record, found)
    state = found.state.lower()
    print(f"Replaying trial {trial} of '{record.name}', whose state is {state}:", flush=True)
    try:
        with _synchronous_launches():
            values = replay_trial(run, found, _print_step)
    except Exception:
        traceback.print_exc()
        raise typer.Exit(_FAILED) from None
    before = f" (in the study: {found.values})" if found.values else ""
    print(f"Values: {values}{before}." if values else "The trial pruned itself.")


@contextlib.contextmanager
def _synchronous_launches() -> Iterator[None]:
    """Set CUDA_LAUNCH_BLOCKING. CUDA reads it when it initialises, at the first tensor on the
    device, which is later than this."""
    before = os.environ.get(_LAUNCH_BLOCKING)
    os.environ[_LAUNCH_BLOCKING] = "1"
    try:
        yield
    finally:
        del os.environ[_LAUNCH_BLOCKING]
        if before is not None:
            os.environ[_LAUNCH_BLOCKING] = before


def _print_step(step: int, value: float) -> None:
    print(f"  step {step}: {value:.6g}", flush=True)
