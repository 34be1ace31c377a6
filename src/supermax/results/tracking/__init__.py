"""MLflow tracking of studies: one run per trial, nested under a run of the study.

    study, run folder ──▶ tracker process ──▶ MLflow
                                │
                        run_dir/tracking: record of what was sent

The tracker only reads. A server that is down or slow does not affect the run: missing trials are
sent when it is back, by the next run, or by `supermax track`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from optuna.study import Study

from supermax.engine.storage.locations import find_location
from supermax.errors import UserError
from supermax.results.tracking.destination import Destination, destination
from supermax.results.tracking.following import Follower, send_all
from supermax.results.tracking.process import Tracker
from supermax.results.tracking.record import Standing, TrackingFolder
from supermax.results.tracking.source import describe_study, ensure_identity, source_of

__all__ = ["Standing", "Tracker", "send_missing", "tracked"]

PATIENCE = 10.0  # seconds


@contextlib.contextmanager
def tracked(
    study: Study,
    uri: str | None = None,
    *,
    run_dir: str | os.PathLike[str] | None = None,
    patience: float = PATIENCE,
    tell: Callable[[str], None] = print,
) -> Iterator[Tracker]:
    """Log the trials of a study to MLflow while the block runs.

    Args:
        study: Study in a database or a journal file. The tracker cannot read one in memory.
        uri: MLflow server, database URL or SQLite file. Default: MLFLOW_TRACKING_URI, or else
            mlflow.db beside the study's file.
        run_dir: Run folder, as given to supermax.optimize.
        patience: Seconds to wait at the end for trials that are not sent yet.
        tell: Function that is called with a sentence if some trials are left.

    Raises:
        UserError: MLflow is not installed, or study or address cannot be used.
    """
    folder = Path(run_dir) if run_dir is not None else None
    source, target = source_of(study, folder), _target(study, uri)
    ensure_identity(study)
    tracker = Tracker(
        source,
        target,
        study_key=describe_study(study).key,
        trials=lambda: study.get_trials(deepcopy=False),
    )
    tracker.start()
    try:
        yield tracker
    finally:
        if left := tracker.stop(patience):
            tell(_unsent_message(left, tracker.standing, study, target))


def send_missing(
    study: Study,
    uri: str | None = None,
    *,
    run_dir: str | os.PathLike[str] | None = None,
    patience: float = 30.0,
) -> tuple[Standing, str]:
    """Send the trials that MLflow does not have yet, in this process.

    Gives up after `patience` seconds without an answer. Returns the outcome, and the address of
    MLflow without a password.
    """
    source = source_of(study, Path(run_dir) if run_dir is not None else None)
    target = _target(study, uri)
    folder = TrackingFolder(Path(source.run_dir) / "tracking", target.digest)
    with folder.locked(wait=False):
        follower = Follower(source, target, folder)
        send_all(follower, patience)
        return Standing(follower.sent, follower.left(), follower.trouble), target.shown


def _target(study: Study, uri: str | None) -> Destination:
    if importlib.util.find_spec("mlflow") is None:
        raise UserError("MLflow is not installed: pip install 'supermax[mlflow]'")
    return destination(uri, find_location(study))


def _unsent_message(left: int, standing: Standing, study: Study, target: Destination) -> str:
    why = f" ({standing.trouble.rstrip('.')})" if standing.trouble else ""
    trials = "1 trial is" if left == 1 else f"{left} trials are"
    location = find_location(study)
    storage = str(location.file) if location.file is not None else "URL"
    command = ["supermax", "track", study.study_name, "--storage", storage, "--uri", target.shown]
    return (
        f"{trials} not in MLflow yet{why}. The next tracked run sends what is missing, or run: "
        f"{shlex.join(command)}"
    )
