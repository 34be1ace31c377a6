"""Run the same faults through Supermax and other projects, and count what each one loses.

    python benchmarks/faults/run.py --contenders supermax optuna-threads optuna-processes \\
        --trials 60 --workers 4 --into results.jsonl
    python benchmarks/faults/run.py table results.jsonl

A contender runs the trials once without faults and once with them. With them, its driver is also
killed (SIGKILL) at three moments, and started again with the same command. A driver that ends too
early, or makes no progress for --patience seconds, is ended and started again as well: each of
these restarts is a step that a person has to take. Contenders of other projects need their
environment: --python syne-tune=PATH.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import psutil
from rich.console import Console
from rich.table import Table
from work import PERSISTENT, value_of, write_plan

DRIVERS = Path(__file__).parent / "drivers"
TAG = "SUPERMAX_FAULT_SUITE"
MOMENTS = (0.25, 0.5, 0.75)
"""Shares of the trials that have ended when the driver is killed."""
MAX_RESTARTS = 15
AFTERWARDS = 10
"""Seconds after the last driver's end in which its processes may still end by themselves."""


class Contender(NamedTuple):
    program: str
    arguments: tuple[str, ...] = ()
    project: str = ""
    """Name of its environment, for --python; empty: this one."""
    packages: tuple[str, ...] = ()
    """Distributions whose versions are noted."""
    serial: bool = False
    """It runs one trial at a time."""


CONTENDERS = {
    "supermax": Contender("supermax_run.py", packages=("supermax", "optuna")),
    "optuna-threads": Contender("optuna_run.py", ("threads",), packages=("optuna",)),
    "optuna-processes": Contender("optuna_run.py", ("processes",), packages=("optuna",)),
    "ray-tune": Contender("ray_run.py", packages=("ray", "optuna")),
    "syne-tune": Contender("syne_tune_run.py", project="syne-tune", packages=("syne-tune",)),
    "trainer": Contender("trainer_run.py", packages=("transformers", "optuna"), serial=True),
}


@dataclass(frozen=True)
class Outcome:
    """What one run of a contender left."""

    contender: str
    faults: bool
    trials: int
    workers: int
    seed: int
    expected: int
    """Trials that can have a result."""
    finished: int
    """Of these, trials whose result is stored."""
    lost: int
    """Trials that ran to their end, without their result in the storage."""
    wrong: int
    """Stored results that are not the trial's value."""
    repeated: int
    """Trials that ran to their end more than once."""
    replaced: int
    """Trials beyond the planned ones."""
    running: int
    """Trials stored as running, after the last driver has ended."""
    orphans: int
    """Processes left `AFTERWARDS` seconds after that."""
    steps: int
    """Restarts beside those after the three kills of the driver."""
    gave_up: bool
    seconds: float
    peak: int
    """Largest sum of the resident memory of all processes."""
    disk: int
    """Bytes in the folder of the run, with what was printed."""
    versions: dict[str, str]
    machine: str


class Harness:
    """Runs a contender on a plan until all of its trials are done."""

    def __init__(self, name: str, folder: Path, options: argparse.Namespace) -> None:
        self.contender = CONTENDERS[name]
        self.folder = folder
        self.options = options
        self.tag = uuid.uuid4().hex
        self.workers = 1 if self.contender.serial else options.workers
        self.steps = 0
        self.gave_up = False
        self._moments = [round(options.trials * share) for share in MOMENTS]
        self._peak = 0

    def run(self, *, with_kills: bool) -> float:
        """Run to the end; return the seconds that it took."""
        started = time.monotonic()
        moments = list(self._moments) if with_kills else []
        while not self._run_once(moments):
            if self.steps > MAX_RESTARTS:
                self.gave_up = True
                break
        return time.monotonic() - started

    def _run_once(self, moments: list[int]) -> bool:
        """Start the driver. Return True if it says itself that it has finished."""
        with (self.folder / "output").open("ab") as output:
            driver = subprocess.Popen(
                self._command("run"), stdout=output, stderr=output, env=self._environment(),
                start_new_session=True,
            )  # fmt: skip
        progress, since = -1, time.monotonic()
        while driver.poll() is None:
            self._peak = max(self._peak, sum(_resident(p) for p in self.processes()))
            ended, attempts = self._ended(), self._attempts()
            if ended + attempts != progress:
                progress, since = ended + attempts, time.monotonic()
            if moments and ended >= moments[0]:
                moments.pop(0)
                driver.kill()
                driver.wait()
                time.sleep(1)
                return False
            if time.monotonic() - since > self.options.patience:
                self.end_all()
                driver.wait()
                self.steps += 1
                return False
            time.sleep(0.2)
        if driver.returncode == 0:
            return True
        self.steps += 1
        return False

    def outcome(self, name: str, seconds: float, *, faults: bool) -> Outcome:
        deadline = time.monotonic() + AFTERWARDS
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.2)
        orphans = len(self.processes())
        self.end_all()
        printed = subprocess.run(
            self._command("report"), env=self._environment(), check=True, capture_output=True
        ).stdout
        stored = json.loads(printed.decode().strip().splitlines()[-1])
        index = {
            file.name: int(file.read_text(encoding="utf-8"))
            for file in self.folder.glob("identities/[!.]*")
        }
        plan = json.loads((self.folder / "plan.json").read_text(encoding="utf-8"))["faults"]
        ended = Counter(json.loads(line)["index"] for line in self._lines())
        values = {index[name]: value for name, value in stored["values"].items()}
        expected = {i for i, fault in enumerate(plan) if fault not in PERSISTENT}
        options = self.options
        return Outcome(
            contender=name, faults=faults, trials=options.trials, workers=self.workers,
            seed=options.seed, expected=len(expected), finished=len(expected & values.keys()),
            lost=sum(i not in values for i in ended if i in expected),
            wrong=sum(values[i] != value_of(i) for i in expected & values.keys()),
            repeated=sum(count > 1 for count in ended.values()),
            replaced=sum(i >= len(plan) for i in index.values()),
            running=stored["running"], orphans=orphans, steps=self.steps, gave_up=self.gave_up,
            seconds=round(seconds, 1), peak=self._peak,
            disk=sum(f.stat().st_size for f in self.folder.rglob("*") if f.is_file()),
            versions=self._versions(),
            machine=f"{platform.machine()}, {os.cpu_count()} cores",
        )  # fmt: skip

    def processes(self) -> list[psutil.Process]:
        """Return the living processes that descend from a driver, whatever their parent is now."""
        return [p for p in psutil.process_iter() if _tag(p) == self.tag]

    def end_all(self) -> None:
        """Kill every process of the run, as a person would who cleans up."""
        while found := self.processes():
            for process in found:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            psutil.wait_procs(found, timeout=5)

    def _command(self, part: str) -> list[str]:
        python = dict(self.options.python).get(self.contender.project, sys.executable)
        program = str(DRIVERS / self.contender.program)
        return [
            str(python), program, *self.contender.arguments, str(self.folder), str(self.workers),
            part,
        ]  # fmt: skip

    def _environment(self) -> dict[str, str]:
        """Return a driver's environment. Trials inherit it, wherever a contender runs them."""
        paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        path = os.pathsep.join(filter(None, paths))
        return {**os.environ, TAG: self.tag, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}

    def _lines(self) -> list[str]:
        file = self.folder / "ended.jsonl"
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    def _ended(self) -> int:
        return len(self._lines())

    def _attempts(self) -> int:
        claims = self.folder / "claims"
        return len(list(claims.glob("attempt-*"))) if claims.exists() else 0

    def _versions(self) -> dict[str, str]:
        names = self.contender.packages
        code = "import sys; from importlib.metadata import version as v; "
        code += "print(*(v(n) for n in sys.argv[1:]))"
        python = self._command("report")[0]
        out = subprocess.run([python, "-c", code, *names], capture_output=True, text=True).stdout
        return dict(zip(names, out.split(), strict=False))


def _tag(process: psutil.Process) -> str | None:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return process.environ().get(TAG)
    except psutil.Error:
        return None


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def measure(name: str, options: argparse.Namespace, *, faults: bool) -> Outcome:
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        write_plan(folder, options.trials, options.seed, options.share * faults, options.seconds)
        harness = Harness(name, folder, options)
        try:
            return harness.outcome(name, harness.run(with_kills=faults), faults=faults)
        finally:
            harness.end_all()
    finally:
        if options.keep:
            print(f"{name}: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def show(outcomes: Sequence[Outcome]) -> None:
    """Print the table of the runs with faults, beside the time without."""
    clean = {(o.contender, o.trials, o.seed): o.seconds for o in outcomes if not o.faults}
    table = Table(title="The same faults")
    columns = (
        "contender", "finished", "lost", "repeated", "replaced", "RUNNING", "orphans",
        "human steps", "time", "of fault-free", "peak memory", "disk",
    )  # fmt: skip
    for column in columns:
        table.add_column(column, justify="left" if column == "contender" else "right")
    for o in outcomes:
        if o.faults:
            alone = clean.get((o.contender, o.trials, o.seed))
            table.add_row(
                o.contender + (" (given up)" if o.gave_up else ""),
                f"{o.finished} of {o.expected}", str(o.lost), str(o.repeated), str(o.replaced),
                str(o.running), str(o.orphans), str(o.steps), f"{o.seconds:.0f} s",
                f"{o.seconds / alone:.1f}×" if alone else "", f"{o.peak / 2**20:.0f} MiB",
                f"{o.disk / 2**20:.0f} MiB",
            )  # fmt: skip
    Console(width=160).print(table)


def read(file: Path) -> list[Outcome]:
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").splitlines()
    return [Outcome(**json.loads(line)) for line in lines]


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["table"]:
        show([outcome for file in arguments[1:] for outcome in read(Path(file))])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=["supermax"])
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a trial")
    parser.add_argument("--share", type=float, default=0.5, help="share of trials with a fault")
    parser.add_argument("--patience", type=float, default=60, help="seconds without progress")
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--keep", action="store_true", help="keep the folders of the runs")
    parser.add_argument(
        "--python", nargs="+", default=[], metavar="PROJECT=PATH", help="other environments",
        type=lambda entry: tuple(entry.split("=", 1)),
    )  # fmt: skip
    options = parser.parse_args(arguments)
    done = {(o.contender, o.faults, o.trials, o.seed) for o in read(options.into)}
    for name in options.contenders:
        for faults in (False, True):
            if (name, faults, options.trials, options.seed) in done:
                continue
            outcome = measure(name, options, faults=faults)
            with options.into.open("a", encoding="utf-8") as out:
                out.write(json.dumps(asdict(outcome)) + "\n")
    show(read(options.into))


if __name__ == "__main__":
    main(sys.argv[1:])
