"""Search method of another project, in a process with that project's environment.

    Peer ──{"ask": null}──▶ peers/NAME.py ──▶ {"trial": 3, "params": {…}}
         ──{"report": [3, 1, 0.42]}──▶      ──▶ {"goes_on": true}

Messages are lines of JSON over pipes. The first one describes the search; the reply to it is the
version of the project. The simulator keeps the clock and the workers (simulate.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from tables import Params, Table


class Project(NamedTuple):
    """Contender of another project."""

    project: str
    """Name of its environment, for --python."""
    requirements: str
    """Packages with which it was measured, for `pip install`."""
    program: str
    """File in peers/."""
    variant: str = ""


_SYNE_TUNE = "syne-tune[gpsearchers]==0.13.0 setuptools==65.5.0"
"""Has promotion and MOBSTER, which 0.16 does not: there, ASHA only stops trials."""
_SYNE_TUNE_NEW = "syne-tune[blackbox-repository]==0.16.0 huggingface_hub==2.4.0"
_OPTUNAHUB = "optunahub==0.5.0 optuna==5.0.0 torch==2.13.0 cmaes==0.13.1 scipy==1.17.1"
PEERS: dict[str, Project] = {
    "syne-tune-asha": Project("syne-tune", _SYNE_TUNE, "syne_tune_promotion.py", "asha"),
    "syne-tune-mobster": Project("syne-tune", _SYNE_TUNE, "syne_tune_promotion.py", "mobster"),
    "syne-tune-cqr": Project("syne-tune-new", _SYNE_TUNE_NEW, "syne_tune_stopping.py"),
    "neps-priorband": Project(
        "neps", "neural-pipeline-search==0.17.0 torch==2.13.0", "neps_priorband.py"
    ),
    "smac-hyperband": Project("smac", "smac==2.4.1", "smac_hyperband.py"),
    "auto-sampler": Project("optunahub", _OPTUNAHUB, "auto_sampler.py"),
}


class Peer:
    """Process of a peer, as a method of the simulator."""

    def __init__(
        self, name: str, table: Table, *, seed: int, budget: int, workers: int, python: Path
    ) -> None:
        project = PEERS[name]
        program = Path(__file__).parent / "peers" / project.program
        self.name = name
        read, write = os.pipe()  # not stdout, to which projects print
        output = None if os.environ.get("PEER_OUTPUT") else subprocess.DEVNULL
        self._process = subprocess.Popen(
            [str(python), str(program), str(write)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=[write],
            text=True,
            env=_environment(),
        )
        os.close(write)
        self._replies = os.fdopen(read, encoding="utf-8")
        spec = {
            "variant": project.variant,
            "space": {name: _domain(d) for name, d in table.space.items()},
            "epochs": table.epochs,
            "defaults": dict(table.defaults),
            "seed": seed,
            "budget": budget,
            "workers": workers,
        }
        try:
            version: str = self._call(spec)["version"]
            if f"=={version}" not in project.requirements:
                raise RuntimeError(f"{name} needs {project.requirements}, not {version}.")
        except BaseException:
            self.close()
            raise

    def ask(self) -> tuple[int, Params] | None:
        reply = self._call({"ask": None})
        return None if reply["trial"] is None else (reply["trial"], reply["params"])

    def report(self, trial: int, epoch: int, loss: float) -> bool:
        return bool(self._call({"report": [trial, epoch, loss]})["goes_on"])

    def _call(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            line = self._replies.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(f"{self.name} has failed. PEER_OUTPUT=1 shows its output.")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._replies.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _domain(distribution: object) -> dict[str, Any]:
    if isinstance(distribution, CategoricalDistribution):
        return {"choices": list(distribution.choices)}
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    return {
        "type": "int" if isinstance(distribution, IntDistribution) else "float",
        "low": distribution.low,
        "high": distribution.high,
        "log": distribution.log,
    }


def _environment() -> dict[str, str]:
    """Return the environment of a peer: one thread, and no packages of this one."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {**kept, **dict.fromkeys(threads, "1"), "PYTHONWARNINGS": "ignore"}


def python_of(entry: str) -> tuple[str, Path]:
    """Read an argument PROJECT=PATH of --python."""
    project, _, path = entry.partition("=")
    known = sorted({peer.project for peer in PEERS.values()})
    if project not in known or not Path(path).is_file():
        sys.exit(f"--python {entry}: PROJECT is one of {', '.join(known)}; PATH an interpreter.")
    return project, Path(path)
