"""MLflow: requests to a server or a database, and classification of its errors."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from supermax._util.text import masked
from supermax.results.tracking.backend import (
    KEY,
    RUNNING,
    MetricPoint,
    Missing,
    NewRun,
    RequestRefused,
    Run,
    Unreachable,
)
from supermax.results.tracking.destination import Destination
from supermax.results.tracking.names import digest, stored_text

_TIMEOUT = "MLFLOW_HTTP_REQUEST_TIMEOUT"
SETTINGS = {
    # Nothing is sent to any other server.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false",
    # Short timeouts and no retries: the caller retries, and sends other trials meanwhile.
    _TIMEOUT: "5",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
    "MLFLOW_ARTIFACT_UPLOAD_DOWNLOAD_TIMEOUT": "5",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}
"""Environment variables that are set before MLflow is imported."""

_MISSING = ("RESOURCE_DOES_NOT_EXIST", "NOT_FOUND")
_REFUSED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "INVALID_STATE", "RESOURCE_ALREADY_EXISTS")
_MOST_POINTS, _MOST_PARAMS, _MOST_TAGS = 800, 100, 100  # per request
_MOST_NAME = 500
T = TypeVar("T")


class Mlflow:
    """Backend of MLflow. The requests are stateless."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._client: Any = None

    def connect(self) -> None:
        """Import MLflow and open its database, if it is one. This may take seconds."""
        if self._client is None:
            os.environ.update({**SETTINGS, **self._destination.environment})
            self._client = self._request(self._make_client)

    def _make_client(self) -> Any:
        if (file := self._destination.file) is not None and not file.exists():
            _make_database(file)
        return _client(self._destination.uri)

    def experiment(self, name: str) -> str:
        """Return the id of the experiment of that name; create it if there is none."""
        name = name if len(name) <= _MOST_NAME else f"{name[:480]}~{digest(name)[:12]}"
        found = self._request(lambda: self._client.get_experiment_by_name(name))
        if found is None:
            place = self._artifacts(name)
            with contextlib.suppress(RequestRefused):  # another process has created it
                return str(self._request(lambda: self._client.create_experiment(name, place)))
            found = self._request(lambda: self._client.get_experiment_by_name(name))
        if found.lifecycle_stage != "active":
            raise RequestRefused(
                f"The experiment '{name}' is deleted in MLflow, which still reserves its name. "
                f"Restore it, or remove it permanently with `mlflow gc`."
            )
        return str(found.experiment_id)

    def find(self, experiment: str, key: str) -> list[Run]:
        """Return the runs with this key, in an order that is the same for every process."""
        found = self._request(
            lambda: self._client.search_runs([experiment], f"tags.`{KEY}` = '{key}'")
        )
        runs = [Run(run.info.run_id, run.info.status) for run in found]
        return sorted(runs, key=lambda run: run.id)

    def create(self, experiment: str, new: NewRun) -> Run:
        tags = {**new.tags, KEY: new.key}
        if new.parent is not None:
            tags["mlflow.parentRunId"] = new.parent
        made = self._request(
            lambda: self._client.create_run(
                experiment, start_time=new.start, tags=tags, run_name=new.name
            )
        )
        return Run(made.info.run_id, made.info.status)

    def get(self, run: str) -> Run | None:
        """Return a run; None if it does not exist or is deleted."""
        try:
            found = self._request(lambda: self._client.get_run(run))
        except Missing:
            return None
        return Run(run, found.info.status) if found.info.lifecycle_stage == "active" else None

    def delete(self, run: str) -> None:
        with contextlib.suppress(RequestRefused):  # deleted already
            self._request(lambda: self._client.delete_run(run))

    def history(self, run: str, key: str) -> dict[int, float]:
        found = self._request(lambda: self._client.get_metric_history(run, key))
        return {point.step: point.value for point in found}

    def log(
        self,
        run: str,
        params: Mapping[str, object],
        points: Sequence[MetricPoint],
        tags: Mapping[str, str],
    ) -> None:
        from mlflow.entities import Metric, Param, RunTag

        metrics = [Metric(point.key, point.value, point.time, point.step) for point in points]
        batches = itertools.zip_longest(
            _batches(metrics, _MOST_POINTS),
            _batches([Param(k, stored_text(v)) for k, v in params.items()], _MOST_PARAMS),
            _batches([RunTag(*item) for item in tags.items()], _MOST_TAGS),
            fillvalue=(),
        )
        for batch in batches:
            self._request(partial(self._client.log_batch, run, *batch))

    def upload(self, run: str, name: str, content: str) -> None:
        self._request(lambda: self._client.log_text(run, content, name))

    def end(self, run: str, status: str, at: int | None) -> None:
        self._request(lambda: self._client.set_terminated(run, status, at))

    def resume(self, run: str) -> None:
        self._request(lambda: self._client.update_run(run, status=RUNNING))

    def _artifacts(self, experiment: str) -> str | None:
        """Return the artifact location of a new experiment; None for a server, which has its own.

        For a database that is opened directly, MLflow would use the working directory.
        """
        if (file := self._destination.file) is None:
            return None
        name = re.sub(r"[^\w.-]+", "-", experiment, flags=re.ASCII)[:60].strip(".")
        folder = file.with_name(f"{file.name}.artifacts")
        return (folder / f"{name}-{digest(experiment)[:8]}").as_uri()

    def _request(self, call: Callable[[], T]) -> T:
        """Return the result of a call. Raises Unreachable, RequestRefused or Missing for any
        error."""
        try:
            return call()
        except Exception as error:  # the client and its libraries raise exceptions of any type
            code = str(getattr(error, "error_code", ""))
            message = self._short_message(f"{type(error).__name__}: {error}")
            kind = (
                Missing
                if code in _MISSING
                else RequestRefused
                if code in _REFUSED
                else Unreachable
            )
            raise kind(message) from None

    def _short_message(self, message: str) -> str:
        """Return the gist of a message of the client, which quotes three layers of libraries."""
        shown = self._destination.shown
        if "Connection refused" in message or "Failed to establish" in message:
            return f"{shown} cannot be reached"
        if "API request to" in message and re.search("time(d )?out", message, re.IGNORECASE):
            return f"{shown} does not answer within {SETTINGS[_TIMEOUT]} s"
        return masked(self._destination.mask_secrets(" ".join(message.split())), users=False)[:300]


def _client(uri: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def _make_database(file: Path) -> None:
    """Create MLflow's database atomically: MLflow creates its tables in many steps, and a kill
    between two of them would leave a file that it cannot use."""
    temporary = file.with_name(f".{file.name}.new")
    with temporary.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            lock.truncate(0)  # discard the unfinished database of a killed process
            client = _client(f"sqlite:///{temporary}")
            client._tracking_client.store._dispose_engine()
            os.link(temporary, file)
        temporary.unlink(missing_ok=True)


def _batches(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    for first in range(0, len(items), most):
        yield items[first : first + most]
