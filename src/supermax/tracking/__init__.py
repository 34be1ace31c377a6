"""Studies in MLflow: one run a trial, under one of the study's.

    study, run folder ──▶ a process of its own ──▶ MLflow
                                │
                        run_dir/tracking: what was sent

A tracker only reads. One that is down, slow or gone costs the run nothing: what is missing is sent
when it is back, by the next run, or by `supermax track`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from optuna.study import Study

from supermax.engine.home import find_home
from supermax.errors import UserError
from supermax.tracking.destination import Destination, destination
from supermax.tracking.following import Follower, send_all
from supermax.tracking.process import Tracker
from supermax.tracking.record import Standing, TrackingFolder
from supermax.tracking.source import about, ensure_identity, source_of

__all__ = ["Standing", "Tracker", "send_missing", "tracked"]

PATIENCE = 10.0


@contextlib.contextmanager
def tracked(
    study: Study,
    uri: str | None = None,
    *,
    run_dir: str | os.PathLike[str] | None = None,
    patience: float = PATIENCE,
    tell: Callable[[str], None] = print,
) -> Iterator[Tracker]:
    """While the block runs, the study's trials go to MLflow as they come.

    Args:
        study: In a database or a journal file; one in memory cannot be read by a tracker.
        uri: A server's address, a database's, or the name of an SQLite file. Default: what
            MLFLOW_TRACKING_URI says, or else mlflow.db beside the study's file.
        run_dir: As given to supermax.optimize.
        patience: Seconds to wait at the end for what is not sent yet.
        tell: Called with a sentence when something is left.

    Raises:
        UserError: MLflow is not installed, or study or address cannot be used.
    """
    folder = Path(run_dir) if run_dir is not None else None
    source, target = source_of(study, folder), _target(study, uri)
    ensure_identity(study)
    tracker = Tracker(
        source,
        target,
        study_key=about(study).key,
        trials=lambda: study.get_trials(deepcopy=False),
    )
    tracker.start()
    try:
        yield tracker
    finally:
        if left := tracker.stop(patience):
            tell(_left_in_words(left, tracker.standing, study, target))


def send_missing(
    study: Study,
    uri: str | None = None,
    *,
    run_dir: str | os.PathLike[str] | None = None,
    patience: float = 30.0,
) -> tuple[Standing, str]:
    """Send what MLflow does not have yet, in this process; gives up after so many seconds without
    an answer. Returns how it stands, and where it went, as that may be shown."""
    source = source_of(study, Path(run_dir) if run_dir is not None else None)
    target = _target(study, uri)
    folder = TrackingFolder(Path(source.run_dir) / "tracking", target.digest)
    with folder.locked(wait=False):
        follower = Follower(source, target, folder)
        send_all(follower, patience)
        return Standing(follower.sent, follower.left(), follower.trouble), target.shown


def _target(study: Study, uri: str | None) -> Destination:
    if importlib.util.find_spec("mlflow") is None:
        raise UserError("MLflow is not installed here. Install it: pip install 'supermax[mlflow]'")
    return destination(uri, find_home(study))


def _left_in_words(left: int, standing: Standing, study: Study, target: Destination) -> str:
    why = f" ({standing.trouble.rstrip('.')})" if standing.trouble else ""
    trials = "1 trial is" if left == 1 else f"{left} trials are"
    home = find_home(study)
    place = str(home.file) if home.file is not None else "URL"
    words = ["supermax", "track", study.study_name, "--storage", place, "--uri", target.shown]
    return (
        f"{trials} not in MLflow yet{why}. The next tracked run sends what is missing; so does: "
        f"{shlex.join(words)}"
    )
