"""Real MLflow server, a server that never answers, and queries over HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import eventually


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@dataclass
class MlflowServer:
    """`mlflow server` with SQLite behind it, in a session of its own."""

    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server without waiting for it."""
        places = f"--backend-store-uri sqlite:///{self.folder}/server.db".split()
        places += ["--artifacts-destination", str(self.folder / "artifacts")]
        address = ["--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", *places, *address],
                env={**os.environ, **quiet},
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self) -> None:
        assert eventually(self.answers, within=60), (self.folder / "server.log").read_text()

    def answers(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=2):
            return True
        return False

    def kill(self) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def ask(self, question: str, **fields: Any) -> Any:
        request = urllib.request.Request(
            f"{self.url}/api/2.0/mlflow/{question}",
            data=json.dumps(fields).encode() if fields else None,
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=20) as response:
            return json.load(response)

    def runs(self, experiment: str) -> list[dict[str, Any]]:
        """Return all runs of an experiment that are not deleted."""
        name = urllib.parse.quote(experiment)
        found = self.ask(f"experiments/get-by-name?experiment_name={name}")
        number = found["experiment"]["experiment_id"]
        return list(self.ask("runs/search", experiment_ids=[number], max_results=1000)["runs"])

    def trials(self, experiment: str) -> dict[int, dict[str, Any]]:
        """Return runs by trial number; fail on a duplicate or one not nested under the study."""
        runs = self.runs(experiment)
        (parent,) = [run for run in runs if "supermax.trial" not in tags(run)]
        children = [run for run in runs if run is not parent]
        numbers = Counter(int(tags(run)["supermax.trial"]) for run in children)
        assert set(numbers.values()) <= {1}, numbers
        assert {tags(run)["mlflow.parentRunId"] for run in children} <= {parent["info"]["run_id"]}
        return {int(tags(run)["supermax.trial"]): run for run in children}

    def history(self, run: dict[str, Any], metric: str) -> list[tuple[int, float]]:
        name = urllib.parse.quote(metric)
        found = self.ask(
            f"metrics/get-history?run_id={run['info']['run_id']}&metric_key={name}&max_results=5000"
        )
        return sorted((int(m.get("step", 0)), float(m["value"])) for m in found.get("metrics", ()))

    def files(self, run: dict[str, Any]) -> set[str]:
        found = self.ask(f"artifacts/list?run_id={run['info']['run_id']}")
        return {file["path"] for file in found.get("files", ())}


def tags(run: dict[str, Any]) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in run["data"].get("tags", ())}


def params(run: dict[str, Any]) -> dict[str, str]:
    return {param["key"]: param["value"] for param in run["data"].get("params", ())}


def metrics(run: dict[str, Any]) -> dict[str, float]:
    return {metric["key"]: metric["value"] for metric in run["data"].get("metrics", ())}


@contextlib.contextmanager
def deaf_server() -> Iterator[str]:
    """Server that accepts connections, as many as its queue holds, and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"
