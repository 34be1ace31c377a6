"""`supermax.optimize`: run an objective on the engine, with a progress display."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal

import optuna

from supermax._util.attributes import LEASE
from supermax.engine.events import Listener
from supermax.engine.jobs.provision import Planner
from supermax.engine.processes.ray_cluster import RayExecutor
from supermax.engine.run.checks import check_arguments, check_pruner
from supermax.engine.run.no_gain import WhenNoGain, when_to_stop
from supermax.engine.run.options import RunOptions
from supermax.engine.run.session import run
from supermax.engine.summary import Summary
from supermax.errors import SupermaxError, UserError
from supermax.results.notifying import Notifier, check_targets
from supermax.results.tracking import check_trackers, tracked_by
from supermax.space import SpaceSampler, space_of
from supermax.ui.display import display_for
from supermax.ui.display.gauges import Gauges
from supermax.ui.display.status import StatusFile

REDRAWS = 10
"""Number of further samples for a configuration that a completed trial has had."""


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
    checkpoints: str | os.PathLike[str] | None = None,
    lease: float = LEASE,
    executor: RayExecutor | Literal["local", "ray"] = "local",
    callbacks: Iterable[Callable[[optuna.Study, optuna.trial.FrozenTrial], None]] | None = (),
    progress: bool | Listener | None = None,
    planner: Planner | None = None,
    pruner: optuna.pruners.BasePruner | None = None,
    reuse_results: bool = False,
    paused_space: int | None = None,
    stop: Literal["when_no_gain"] | WhenNoGain | None = None,
    track: str | Sequence[str] | None = (),
    notify: str | Sequence[str] | None = (),
) -> Summary:
    """Run an Optuna objective fault-tolerantly, each trial in its own process.

    Args:
        study: The study to optimize. SQLite and journal files, database servers and in-memory
            storages all work; an in-memory study survives a crash of a trial, but not the end of
            this program.
        objective: An ordinary Optuna objective. In addition to Optuna's API, its trial has
            ``trial.checkpoint_dir`` (a folder shared by all attempts of the trial),
            ``trial.attempt``, ``trial.stop_requested``, ``trial.note(epoch=3, …)`` (shown in
            the live view, not stored) and ``trial.plan`` (the execution plan that the `planner`
            made for this attempt; None without a planner).
        n_trials: Total number of finished trials of the study; calling again continues to that
            number. None: continue until `timeout`, Ctrl-C or ``study.stop()``.
        timeout: Seconds after which no new trial starts and running trials stop at their next
            report; the next call resumes them. The clock starts when the first process is ready
            for a trial, so that the imports of the objective do not count.
        deadline: Time, on the clock of ``time.monotonic()``, at which the run pauses in the same
            way, imports included. ``supermax tune --timeout`` sets it.
        workers: Number of trials that run in parallel.
        reuse_cells: Run many trials in one process, as long as it is healthy. Faster for short
            trials and for those that use joblib's processes (``n_jobs=-1``), which are then kept;
            side effects of a trial on its process reach the next trial.
        trial_timeout: Seconds that one attempt of a trial may take; then the trial is pruned and
            reported to the sampler with a violated constraint.
        stall_timeout: Seconds without a message of a trial, once it has reported, before it is
            retried.
        retries: Number of times a trial is run again after a crash, a stall or out of memory.
            Kills from outside do not count, nor do new plans of a `planner`.
        devices: GPUs over which trials are distributed, as in CUDA_VISIBLE_DEVICES.
        run_dir: Folder of logs, outcomes and checkpoints. Default: a folder beside the study's
            file, or in the user's data folder.
        checkpoints: Folder, or fsspec URL such as ``s3://bucket/folder``, of the trials'
            ``checkpoint_dir``, for a study that several machines share: the machine that takes
            over a trial continues from its checkpoint. Default: in the run folder.
        lease: Seconds without a sign of life after which other runs on the same database server
            take over the trials of this run.
        executor: Where trials run: ``"local"``: on this machine; ``"ray"``: on a Ray cluster, each
            with one CPU; ``supermax.RayExecutor(num_gpus=1, …)``: with these resources.
        callbacks: Optuna callbacks, called with the study and each finished trial.
        progress: None: a live view on a terminal, plain lines elsewhere. False: nothing. A
            function: called with each event of the run instead.
        planner: Estimates the device memory of a trial before it starts (see
            supermax.engine.jobs.provision). None: `workers` trials run in parallel.
        pruner: Replaces the pruner of the study. ``supermax.Promotion()`` pauses trials and
            continues the best ones from their checkpoints. None: the study's own.
        reuse_results: For an objective that gives a configuration the same result again: draw a
            configuration that a completed trial has had again, a few times, and if that finds no
            other, give the trial the earlier result without running it. Needs a study of
            ``supermax.open_study``; configurations that are enqueued always run.
        paused_space: Bytes on disk that checkpoints of paused trials may take. Beyond that, the
            worst trials of the lowest rung lose theirs, and start again if they continue. None:
            half of what is free on the disk.
        stop: ``"when_no_gain"``: end the run by itself, once the expected improvement of the best
            value by further trials is below 5 % of the distance from the median to the best
            value. ``supermax.WhenNoGain(noise=0.01)``: below this error of a value. None: run
            until `n_trials`.
        track: Trackers that the trials are logged to: ``"mlflow"``, ``"tensorboard"``,
            ``"wandb"``, or one with an address, such as ``"tensorboard:logs"``. A tracker that
            fails never affects the run.
        notify: Commands, or URLs of webhooks, that are given an event as JSON when the run ends,
            halts or finds a better value.

    Returns:
        Trials by state, faults by kind, retries, cells used, seconds.

    Raises:
        UserError: The arguments or the objective are invalid.
        EnvironmentFault: The machine or the storage prevents the run.
    """
    options = RunOptions(
        n_trials=n_trials,
        timeout=timeout,
        deadline=deadline,
        workers=workers,
        reuse_cells=reuse_cells,
        trial_timeout=trial_timeout,
        stall_timeout=stall_timeout,
        retries=retries,
        devices=devices if devices is not None else (),
        run_dir=run_dir,
        checkpoints=checkpoints,
        lease=lease,
        executor=cluster_of(executor),
        callbacks=callback_list(callbacks),
        progress=progress,
        planner=planner,
        paused_space=paused_space,
        stop=when_to_stop(stop),  # type: ignore[arg-type]
    )
    try:
        tracked_to, notified = _texts("track", track), _texts("notify", notify)
        check_trackers(tracked_to)
        check_targets(notified)
        if pruner is not None:
            check_pruner(study, pruner)
            study.pruner = pruner
        if reuse_results:
            options = reusing_results(study, options)
        elif isinstance(sampler := getattr(study, "sampler", None), SpaceSampler):
            sampler.redraws = 0  # of an earlier call
        if not tracked_to and not notified:
            return run_study(study, objective, options)
        check_arguments(study, objective, options)
        with (
            tracked_by(study, tracked_to, run_dir=options.run_dir, tell=_say),
            Notifier(study, notified, run_dir=options.run_dir, tell=_say) as notifier,
        ):
            options = replace(options, listeners=[notifier])
            summary = run_study(study, objective, options)
            notifier.ended(summary.stopped_by)
            return summary
    except SupermaxError as error:
        raise error.with_traceback(None) from None  # the message alone


def _texts(name: str, given: object) -> list[str]:
    """Return the values of an argument that is a text, several or None. Raises UserError."""
    found: list[object] = []
    if isinstance(given, Iterable) and not isinstance(given, str):
        found = list(given)
    elif given is not None:
        found = [given]
    texts = [each for each in found if isinstance(each, str) and each.strip()]
    if len(texts) < len(found):
        raise UserError(f"{name} must be a text or a list of texts, none of them empty.")
    return texts


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # a closed terminal must not end the run
        print(f"[supermax] {text}", file=sys.stderr, flush=True)


def reusing_results(study: optuna.Study, options: RunOptions) -> RunOptions:
    """Return options with which no configuration of the study runs again that has completed."""
    if (space := space_of(study)) is None or not isinstance(study.sampler, SpaceSampler):
        raise UserError(
            f"reuse_results needs to know all parameters of a trial before it runs, but the study "
            f"'{study.study_name}' has no search space. Open it with supermax.open_study."
        )
    study.sampler.redraws = REDRAWS
    return replace(options, configure=space.sample)


def run_study(
    study: optuna.Study, objective: Callable[[Any], object], options: RunOptions
) -> Summary:
    """Run the objective with a progress display. See `optimize`."""
    gauges, progress = Gauges(), options.progress
    try:
        if not (progress is None or isinstance(progress, bool) or callable(progress)):
            raise UserError(
                f"progress must be None, True, False or a function, but is {progress!r}."
            )
        display = (
            nullcontext(progress) if callable(progress) else display_for(progress, gauges=gauges)
        )
        with StatusFile(gauges) as status, display as listener:
            return run(study, objective, options, listeners=[listener, status, *options.listeners])
    except SupermaxError as error:
        raise error.with_traceback(None) from None  # the message alone
    except KeyboardInterrupt:
        raise KeyboardInterrupt("The run was ended at once. Call again to go on.") from None


def cluster_of(executor: object) -> RayExecutor | None:
    """Return the cluster that an executor names; None: this machine."""
    if isinstance(executor, RayExecutor):
        return executor
    if executor not in ("local", "ray"):
        raise UserError(
            f"executor must be 'local', 'ray' or a supermax.RayExecutor, but is {executor!r:.80}."
        )
    return RayExecutor() if executor == "ray" else None


def callback_list(callbacks: Any) -> Any:
    """Return callbacks as a list, since a generator can be read only once. Return a value that is
    not iterable as it is: the options are checked later."""
    if callbacks is None:
        return ()
    return list(callbacks) if isinstance(callbacks, Iterable) else callbacks
