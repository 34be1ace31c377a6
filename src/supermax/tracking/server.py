"""What is asked of MLflow, and what its refusals mean.

Nothing here is kept: every call either happened, or is made again and changes nothing more.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from supermax.tracking.content import KEY, RUNNING, Point
from supermax.tracking.destination import Destination
from supermax.tracking.names import digest
from supermax.words import masked

_TIMEOUT = "MLFLOW_HTTP_REQUEST_TIMEOUT"
SETTINGS = {
    # Nothing is told to anybody but the tracking server.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false",
    # Short waits and no retries: whoever calls has a better idea of what to do meanwhile.
    _TIMEOUT: "5",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
    "MLFLOW_ARTIFACT_UPLOAD_DOWNLOAD_TIMEOUT": "5",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
    # Its libraries open a pool of threads each; the cores belong to the trials.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""In the environment before MLflow is imported."""

_MISSING = ("RESOURCE_DOES_NOT_EXIST", "NOT_FOUND")
_REFUSED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "INVALID_STATE", "RESOURCE_ALREADY_EXISTS")
_MOST_POINTS, _MOST_PARAMS, _MOST_TAGS = 800, 100, 100  # in one request
_MOST_NAME = 500
T = TypeVar("T")


class Unreachable(Exception):
    """It did not answer, or not as if it were well: later."""


class Refused(Exception):
    """It answered, and will answer the same again."""


class Missing(Refused):
    """It does not know what it was asked about."""


@dataclass(frozen=True)
class Run:
    id: str
    status: str

    @property
    def ended(self) -> bool:
        return self.status != RUNNING


class Server:
    """MLflow's client with plain values in and out, and three ways to fail."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._client: Any = None

    def connect(self) -> None:
        """Import MLflow and open its database, if it is one; that may take seconds."""
        if self._client is None:
            os.environ.update({**SETTINGS, **self._destination.environment})
            self._client = self._ask(self._connected)

    def _connected(self) -> Any:
        if (file := self._destination.file) is not None and not file.exists():
            _make_database(file)
        return _client(self._destination.uri)

    def experiment(self, name: str) -> str:
        """By name, made where there is none."""
        name = name if len(name) <= _MOST_NAME else f"{name[:480]}~{digest(name)[:12]}"
        found = self._ask(lambda: self._client.get_experiment_by_name(name))
        if found is None:
            place = self._artifacts(name)
            with contextlib.suppress(Refused):  # somebody else was faster
                return str(self._ask(lambda: self._client.create_experiment(name, place)))
            found = self._ask(lambda: self._client.get_experiment_by_name(name))
        if found.lifecycle_stage != "active":
            raise Refused(
                f"The experiment '{name}' is deleted in MLflow, which keeps its name. Restore it, "
                f"or remove it for good with `mlflow gc`."
            )
        return str(found.experiment_id)

    def find(self, experiment: str, key: str) -> list[Run]:
        """Runs with this key, in the same order for everybody."""
        found = self._ask(
            lambda: self._client.search_runs([experiment], f"tags.`{KEY}` = '{key}'")
        )
        runs = [Run(run.info.run_id, run.info.status) for run in found]
        return sorted(runs, key=lambda run: run.id)

    def create(self, experiment: str, name: str, start: int, tags: dict[str, str]) -> Run:
        made = self._ask(
            lambda: self._client.create_run(experiment, start_time=start, tags=tags, run_name=name)
        )
        return Run(made.info.run_id, made.info.status)

    def get(self, run: str) -> Run | None:
        """None when it is not there, or deleted."""
        try:
            found = self._ask(lambda: self._client.get_run(run))
        except Missing:
            return None
        return Run(run, found.info.status) if found.info.lifecycle_stage == "active" else None

    def delete(self, run: str) -> None:
        with contextlib.suppress(Refused):  # deleted already
            self._ask(lambda: self._client.delete_run(run))

    def history(self, run: str, key: str) -> dict[int, float]:
        found = self._ask(lambda: self._client.get_metric_history(run, key))
        return {point.step: point.value for point in found}

    def log(
        self, run: str, params: dict[str, str], points: Iterable[Point], tags: dict[str, str]
    ) -> None:
        from mlflow.entities import Metric, Param, RunTag

        metrics = [Metric(point.key, point.value, point.time, point.step) for point in points]
        pieces = itertools.zip_longest(
            _pieces(metrics, _MOST_POINTS),
            _pieces([Param(*item) for item in params.items()], _MOST_PARAMS),
            _pieces([RunTag(*item) for item in tags.items()], _MOST_TAGS),
            fillvalue=(),
        )
        for some in pieces:
            self._ask(partial(self._client.log_batch, run, *some))

    def upload(self, run: str, name: str, content: str) -> None:
        self._ask(lambda: self._client.log_text(run, content, name))

    def end(self, run: str, status: str, at: int | None) -> None:
        self._ask(lambda: self._client.set_terminated(run, status, at))

    def go_on(self, run: str) -> None:
        self._ask(lambda: self._client.update_run(run, status=RUNNING))

    def _artifacts(self, experiment: str) -> str | None:
        """A server knows its own place. MLflow would put files of a database that is opened
        directly into whatever folder this process happens to be in."""
        if (file := self._destination.file) is None:
            return None
        like = re.sub(r"[^\w.-]+", "-", experiment, flags=re.ASCII)[:60].strip(".")
        folder = file.with_name(f"{file.name}.artifacts")
        return (folder / f"{like}-{digest(experiment)[:8]}").as_uri()

    def _ask(self, question: Callable[[], T]) -> T:
        try:
            return question()
        except Exception as error:  # the client raises what it and its libraries like
            code = str(getattr(error, "error_code", ""))
            words = self._in_words(f"{type(error).__name__}: {error}")
            kind = Missing if code in _MISSING else Refused if code in _REFUSED else Unreachable
            raise kind(words) from None

    def _in_words(self, message: str) -> str:
        """What people need of it: the client quotes three layers of libraries."""
        shown = self._destination.shown
        if "Connection refused" in message or "Failed to establish" in message:
            return f"{shown} cannot be reached"
        if "API request to" in message and re.search("time(d )?out", message, re.IGNORECASE):
            return f"{shown} does not answer within {SETTINGS[_TIMEOUT]} s"
        return masked(self._destination.hush(" ".join(message.split())), users=False)[:300]


def _client(uri: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def _make_database(file: Path) -> None:
    """All of it or nothing: MLflow makes its tables in many steps, and a kill between two of them
    would leave a file that it cannot use any more."""
    temporary = file.with_name(f".{file.name}.new")
    with temporary.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            lock.truncate(0)  # what another one began and did not finish
            client = _client(f"sqlite:///{temporary}")
            client._tracking_client.store._dispose_engine()
            os.link(temporary, file)
        temporary.unlink(missing_ok=True)


def _pieces(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    for first in range(0, len(items), most):
        yield items[first : first + most]
