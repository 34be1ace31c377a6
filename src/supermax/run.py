"""`supermax.optimize`: the engine with a display, behind one function."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import optuna

from supermax.display import display_for
from supermax.display.gauges import Gauges
from supermax.display.status import StatusFile
from supermax.engine.coordinator import Options
from supermax.engine.events import Listener
from supermax.engine.optimize import run
from supermax.engine.provision import Planner
from supermax.engine.summary import Summary
from supermax.errors import SupermaxError, UserError


def optimize(
    study: optuna.Study,
    objective: Callable[[Any], float | Sequence[float]],
    n_trials: int | None = None,
    *,
    timeout: float | None = None,
    deadline: float | None = None,
    workers: int = 1,
    reuse_cells: bool = False,
    trial_timeout: float | None = None,
    stall_timeout: float | None = None,
    retries: int = 2,
    devices: Sequence[int | str] | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    callbacks: Iterable[Callable[[optuna.Study, optuna.trial.FrozenTrial], None]] | None = (),
    progress: bool | Listener | None = None,
    planner: Planner | None = None,
) -> Summary:
    """Run an Optuna objective crash-proof, each trial in a process of its own.

    Args:
        study: The study to work on. SQLite and journal files, servers and in-memory studies all
            work; an in-memory study survives whatever happens to a trial, not the end of this
            program.
        objective: An ordinary Optuna objective. Beyond Optuna's trial it finds
            ``trial.checkpoint_dir`` (a folder that all attempts of the trial see),
            ``trial.attempt``, ``trial.stop_requested``, ``trial.note(epoch=3, …)`` (shown in
            the live view, not stored) and ``trial.plan`` (how the `planner` wants this attempt
            executed; None without one).
        n_trials: How many finished trials the study shall hold in all; calling again goes on to
            that number. None: go on until `timeout`, Ctrl-C or ``study.stop()``.
        timeout: Seconds after which no new trial starts and running ones stop at their next
            report; they go on the next time. They count from when the first process is ready for
            a trial, so that loading what the objective imports costs no trial its time.
        deadline: Moment, as ``time.monotonic()`` counts, at which the run pauses in the same way,
            however far it has come: a budget of wall time. ``supermax tune --timeout`` sets it.
        workers: Trials at a time.
        reuse_cells: Let a healthy process serve many trials. Faster for short trials and for
            those that use joblib's processes (``n_jobs=-1``), which are then kept; what a trial
            does to its process reaches the next.
        trial_timeout: Seconds one attempt at a trial may take; then it is pruned, with a
            constraint that the sampler learns from.
        stall_timeout: Seconds a trial may be silent once it has reported; then it is tried again.
        retries: How often a trial is run again after a fault of the machine.
        devices: GPUs to spread the trials over, as CUDA_VISIBLE_DEVICES knows them.
        run_dir: Where logs, outcomes and checkpoints go. Default: a folder beside the study's
            file, or in the user's data folder.
        callbacks: Optuna callbacks, called with the study and each finished trial.
        progress: None: a live view on a terminal, plain lines elsewhere. False: nothing. A
            function: called with each event of the run instead.
        planner: Knows what a trial needs of a device's memory before it starts (see
            supermax.engine.provision). None: as many trials run as there are workers.

    Returns:
        A summary: trials by state, faults by kind, retries, cells used, seconds.

    Raises:
        UserError: The call, or the objective, cannot work as it is.
        EnvironmentFault: The machine or the storage does not allow the run to go on.
    """
    options = Options(
        n_trials=n_trials,
        timeout=timeout,
        deadline=deadline,
        workers=workers,
        reuse_cells=reuse_cells,
        trial_timeout=trial_timeout,
        stall_timeout=stall_timeout,
        retries=retries,
        devices=devices if devices is not None else (),
        callbacks=_listed(callbacks),
        planner=planner,
    )
    gauges = Gauges()
    try:
        if not (progress is None or isinstance(progress, bool) or callable(progress)):
            raise UserError(
                f"progress must be None, True, False or a function, but is {progress!r}."
            )
        shown = (
            nullcontext(progress) if callable(progress) else display_for(progress, gauges=gauges)
        )
        with StatusFile(gauges) as status, shown as listener:
            return run(study, objective, options, run_dir=run_dir, listeners=[listener, status])
    except SupermaxError as error:
        raise error.with_traceback(None) from None  # the sentence, not our insides
    except KeyboardInterrupt:
        raise KeyboardInterrupt("The run was ended at once. Call again to go on.") from None


def _listed(callbacks: Any) -> Any:
    """A generator is used up by looking at it; what is no iterable is left for the check."""
    if callbacks is None:
        return ()
    return list(callbacks) if isinstance(callbacks, Iterable) else callbacks
