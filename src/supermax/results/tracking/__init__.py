"""Tracking of studies: one run per trial at MLflow, TensorBoard or Weights & Biases.

    study, run folder ──▶ tracker process ──Backend──▶ tracker
                                │
                        run_dir/tracking: record of what was sent

A tracker process only reads, and each tracker has one of its own. One that is down, slow or broken
does not affect the run: missing trials are sent when it is back, by the next run, or by
`supermax track`.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from optuna.study import Study

from supermax.engine.storage.locations import find_location
from supermax.results.tracking.destination import MLFLOW, Destination
from supermax.results.tracking.following import Follower, send_all
from supermax.results.tracking.kinds import (
    check_installed,
    check_trackers,
    find_destination,
    make_backend,
    title_of,
)
from supermax.results.tracking.process import Tracker
from supermax.results.tracking.record import Standing, TrackingFolder
from supermax.results.tracking.source import describe_study, ensure_identity, source_of

__all__ = ["Standing", "Tracker", "check_trackers", "send_missing", "tracked", "tracked_by"]

PATIENCE = 10.0  # seconds


@contextlib.contextmanager
def tracked_by(
    study: Study,
    track: Sequence[str],
    *,
    run_dir: str | os.PathLike[str] | None = None,
    patience: float = PATIENCE,
    tell: Callable[[str], None] = print,
) -> Iterator[list[Tracker]]:
    """Log the trials of a study to trackers while the block runs.

    Args:
        study: Study in a database or a journal file. A tracker cannot read one in memory.
        track: Trackers: ``mlflow``, ``mlflow:ADDRESS`` or an address of MLflow,
            ``tensorboard``, ``tensorboard:FOLDER``, ``wandb``, ``wandb:PROJECT`` or
            ``wandb:ENTITY/PROJECT``.
        run_dir: Run folder, as given to supermax.optimize.
        patience: Seconds to wait at the end for trials that are not sent yet, for all trackers.
        tell: Function that is called with a sentence for each tracker that is in trouble, and at
            the end if some trials are left. It may be called from another thread.

    Raises:
        UserError: A tracker is not installed, or study or address cannot be used.
    """
    check_trackers(track)
    folder = Path(run_dir) if run_dir is not None else None
    trackers: list[Tracker] = []
    if track:
        source = source_of(study, folder)
        targets = [_target(study, each) for each in track]
        ensure_identity(study)
        key = describe_study(study).key
        for target in targets:
            trials = lambda: study.get_trials(deepcopy=False)  # noqa: E731
            trackers.append(Tracker(source, target, study_key=key, trials=trials, tell=tell))
    for tracker in trackers:
        tracker.start()
    try:
        yield trackers
    finally:
        for tracker in trackers:
            tracker.announce_ending()
        deadline = time.monotonic() + patience
        for tracker in trackers:
            if left := tracker.stop(max(0.0, deadline - time.monotonic())):
                tell(_unsent_message(left, tracker, study, folder))


@contextlib.contextmanager
def tracked(
    study: Study,
    uri: str | None = None,
    *,
    run_dir: str | os.PathLike[str] | None = None,
    patience: float = PATIENCE,
    tell: Callable[[str], None] = print,
) -> Iterator[Tracker]:
    """Log the trials of a study to one tracker while the block runs: `tracked_by` with one.

    `uri` is a tracker as in `tracked_by`, or an address of MLflow. Default: MLflow at
    MLFLOW_TRACKING_URI, or else in mlflow.db beside the study's file.
    """
    where = [uri or MLFLOW]
    with tracked_by(study, where, run_dir=run_dir, patience=patience, tell=tell) as (tracker,):
        yield tracker


def send_missing(
    study: Study,
    uri: str | None = None,
    *,
    run_dir: str | os.PathLike[str] | None = None,
    patience: float = 30.0,
) -> tuple[Standing, str]:
    """Send the trials that a tracker does not have yet, in this process.

    Gives up after `patience` seconds without an answer. Returns the outcome, and the address of
    the tracker without a password.
    """
    source = source_of(study, Path(run_dir) if run_dir is not None else None)
    target = _target(study, uri or MLFLOW)
    check_installed(target.kind)
    folder = TrackingFolder(Path(source.run_dir) / "tracking", target.digest)
    with folder.locked(wait=False):
        follower = Follower(source, make_backend(target), folder)
        send_all(follower, patience)
        return Standing(follower.sent, follower.left(), follower.trouble), target.shown


def _target(study: Study, track: str) -> Destination:
    return find_destination(track, find_location(study))


def _unsent_message(left: int, tracker: Tracker, study: Study, run_dir: Path | None) -> str:
    target, trouble = tracker.destination, tracker.standing.trouble or tracker.trouble
    why = f" ({trouble.rstrip('.')})" if trouble else ""
    trials = "1 trial is" if left == 1 else f"{left} trials are"
    location = find_location(study)
    storage = str(location.file) if location.file is not None else "URL"
    command = ["supermax", "track", study.study_name, "--storage", storage, "--uri", target.track]
    if run_dir is not None:
        command += ["--run-dir", str(run_dir)]
    return (
        f"{trials} not in {title_of(target)} yet{why}. The next tracked run sends what is "
        f"missing, or run: {shlex.join(command)}"
    )
