"""Interface of a tracker, and the three kinds of its errors.

Sender ──▶ Backend: find, create, log, end ──▶ backends/mlflow.py, tensorboard.py, wandb.py

All operations but `create` are idempotent: after a failure they can be repeated. A backend runs
in the tracker process, so it may hang or crash without an effect on the run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from supermax._util.text import masked, one_line

PREFIX = "supermax."
KEY = f"{PREFIX}key"
"""Tag by which a run is found again, whichever process created it."""
CURVE = "curve/"
"""Prefix of the metrics that have steps."""
RUNNING, FINISHED, FAILED, KILLED = "RUNNING", "FINISHED", "FAILED", "KILLED"
_MOST_MESSAGE = 300


class Unreachable(Exception):
    """The tracker did not answer, or with a temporary error: try again later."""


class RequestRefused(Exception):
    """The tracker rejected the request, and would reject it again."""


class Missing(RequestRefused):
    """The tracker has no such experiment or run."""


class MetricPoint(NamedTuple):
    """Value of a metric. `time` is in milliseconds."""

    key: str
    value: float
    time: int
    step: int


@dataclass(frozen=True)
class Run:
    """Run of a trial, or of the study, at the tracker."""

    id: str
    status: str

    @property
    def ended(self) -> bool:
        return self.status != RUNNING


@dataclass(frozen=True)
class NewRun:
    """Facts that a run is created with. `start` is in milliseconds."""

    key: str
    """Unique to the trial: the same in every process and on every machine."""
    name: str
    start: int
    study: str
    tags: Mapping[str, str]
    parent: str | None
    """Run of the study; None: this is it."""


class Backend(Protocol):
    """Client of a tracker. Raises Unreachable, RequestRefused or Missing, nothing else."""

    def connect(self) -> None:
        """Import the tracker's package and prepare its storage. May take seconds."""

    def experiment(self, name: str) -> str:
        """Return the id of the experiment of a study; create it if there is none."""

    def find(self, experiment: str, key: str) -> list[Run]:
        """Return the runs with this key, in an order that is the same for every process."""

    def create(self, experiment: str, new: NewRun) -> Run: ...

    def get(self, run: str) -> Run | None:
        """Return a run; None if it does not exist or is deleted."""

    def delete(self, run: str) -> None: ...

    def history(self, run: str, key: str) -> dict[int, float]:
        """Return the values of a metric by step, as the tracker has them."""

    def log(
        self,
        run: str,
        params: Mapping[str, object],
        points: Sequence[MetricPoint],
        tags: Mapping[str, str],
    ) -> None:
        """Add parameters, values and tags to a run."""

    def upload(self, run: str, name: str, content: str) -> None: ...

    def end(self, run: str, status: str, at: int | None) -> None:
        """End a run. What was logged to it is complete."""

    def resume(self, run: str) -> None:
        """Set an ended run to running."""


@contextlib.contextmanager
def translated(where: str) -> Iterator[None]:
    """Turn any error of a tracker's library, or of a disk, into Unreachable."""
    try:
        yield
    except (Unreachable, RequestRefused):
        raise
    except OSError as error:
        raise Unreachable(f"{where}: {error.strerror or error}") from None
    except Exception as error:
        raise Unreachable(f"{where}: {short_message(error)}") from None


def short_message(error: Exception) -> str:
    """Return an error in one line, without passwords."""
    return one_line(masked(f"{type(error).__name__}: {error}", users=False), _MOST_MESSAGE)
