"""Run the same faults through Supermax and other projects, and count what each one loses.

    python benchmarks/faults/run.py --contenders supermax optuna-threads optuna-processes \\
        --scenarios clean faults --trials 60 --workers 4 --into results.jsonl
    python benchmarks/faults/run.py table results.jsonl

Scenarios: `clean`; `faults`, in which trials fail as planned, and the driver is killed (SIGKILL)
at three moments and started again with the same command; `disk` and `database`, in which the disk
is full, or PostgreSQL is down, for --outage seconds; `occupied`, in which another process holds
the GPU's memory (with --gpu). A driver that ends too early, or makes no
progress for --patience seconds, is ended and started again as well, after an outage: each of these
restarts is a step that a person has to take. Contenders of other projects need their environment:
--python syne-tune=PATH.
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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from outages import SCENARIOS, Outage, Surroundings, surroundings
from processes import TAG, resident, tagged
from rich.console import Console
from rich.table import Table
from work import (
    GPU,
    HARMLESS,
    PERSISTENT,
    TRANSIENT,
    Plan,
    plan_faults,
    read_plan,
    value_of,
)

DRIVERS = Path(__file__).parent / "drivers"
MOMENTS = (0.25, 0.5, 0.75)
"""Shares of the trials that have ended when the driver is killed."""
OUTAGE_MOMENT = 0.3
"""Share of the trials that have ended when an outage begins."""
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
    has_database: bool = True
    """It can keep its study in PostgreSQL."""


CONTENDERS = {
    "supermax": Contender("supermax_run.py", packages=("supermax", "optuna")),
    "optuna-threads": Contender("optuna_run.py", ("threads",), packages=("optuna",)),
    "optuna-processes": Contender("optuna_run.py", ("processes",), packages=("optuna",)),
    "ray-tune": Contender("ray_run.py", packages=("ray", "optuna"), has_database=False),
    "syne-tune": Contender(
        "syne_tune_run.py", project="syne-tune", packages=("syne-tune",), has_database=False
    ),
    "trainer": Contender("trainer_run.py", packages=("transformers", "optuna"), serial=True),
}


@dataclass(frozen=True)
class Outcome:
    """Results of one run of a contender, counted."""

    contender: str
    scenario: str
    trials: int
    workers: int
    seed: int
    expected: int
    """Trials that can have a result."""
    finished: int
    """Expected trials whose result is stored."""
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
    unreadable: bool
    """The contender cannot read its own storage any more."""
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
        self._outage: Outage | None = None
        self._outage_end: float | None = None
        self._kills: list[int] = []
        self._peak = 0

    def run(self, scenario: str, outage: Outage | None) -> float:
        """Run to the end; return the seconds that it took. Raises RuntimeError if the outage has
        not begun by then: the numbers would be those of a run without one."""
        started = time.monotonic()
        self._outage = outage
        shares = MOMENTS if scenario == "faults" else ()
        self._kills = [round(self.options.trials * share) for share in shares]
        try:
            while not self.gave_up and not self._run_once():
                self._sit_out_outage()
                self.gave_up = self.steps > MAX_RESTARTS
            self._sit_out_outage()
        finally:
            if self._outage is not None and self._outage_end is not None:
                self._outage.end()
        if self._outage is not None and not self.gave_up:
            raise RuntimeError("The run ended before its outage: use more --trials or --seconds.")
        return time.monotonic() - started

    def _sit_out_outage(self) -> None:
        """Wait until an outage that has begun is over."""
        while self._outage_end is not None:
            self._watch_outage(0)
            time.sleep(0.2)

    def _run_once(self) -> bool:
        """Start the driver. Return True if it says itself that it has finished."""
        with (self.folder / "output").open("ab") as output:
            driver = subprocess.Popen(
                self._command("run"), stdout=output, stderr=output, env=self._environment(),
                start_new_session=True,
            )  # fmt: skip
        progress, since = -1, time.monotonic()
        while driver.poll() is None:
            self._peak = max(self._peak, sum(resident(p) for p in self.processes()))
            ended, attempts = self._ended(), self._attempts()
            self._watch_outage(ended)
            if ended + attempts != progress or self._outage_end is not None:
                progress, since = ended + attempts, time.monotonic()
            if self._kills and ended >= self._kills[0]:
                self._kills.pop(0)
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

    def _watch_outage(self, ended: int) -> None:
        """Begin the outage, or end it, when it is time."""
        if self._outage is None:
            return
        if self._outage_end is None:
            if ended >= round(self.options.trials * OUTAGE_MOMENT):
                self._outage.begin()
                self._outage_end = time.monotonic() + self.options.outage
        elif time.monotonic() > self._outage_end:
            self._outage.end()
            self._outage, self._outage_end = None, None

    def outcome(self, name: str, seconds: float, scenario: str, home: Path) -> Outcome:
        deadline = time.monotonic() + AFTERWARDS
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.2)
        orphans = len(self.processes())
        self.end_all()
        stored = self._stored()
        index = {
            file.name: int(file.read_text(encoding="utf-8"))
            for file in self.folder.glob("identities/[!.]*")
        }
        plan = read_plan(self.folder).faults
        ended = Counter(json.loads(line)["index"] for line in self._lines())
        values = {index[name]: v for name, v in (stored or {"values": {}})["values"].items()}
        expected = {i for i, fault in enumerate(plan) if fault not in PERSISTENT}
        options = self.options
        return Outcome(
            contender=name, scenario=scenario, trials=options.trials, workers=self.workers,
            seed=options.seed, expected=len(expected), finished=len(expected & values.keys()),
            lost=sum(i not in values for i in ended if i in expected),
            wrong=sum(values[i] != value_of(i) for i in expected & values.keys()),
            repeated=sum(count > 1 for count in ended.values()),
            replaced=sum(i >= len(plan) for i in index.values()),
            running=(stored or {"running": 0})["running"], unreadable=stored is None,
            orphans=orphans, steps=self.steps, gave_up=self.gave_up,
            seconds=round(seconds, 1), peak=self._peak,
            disk=sum(f.stat().st_size for f in (*home.rglob("*"), self.folder / "output")
                     if f.is_file()),
            versions=self._versions(),
            machine=f"{platform.machine()}, {os.cpu_count()} cores",
        )  # fmt: skip

    def _stored(self) -> dict[str, Any] | None:
        """Return what the contender has stored; None if it cannot read that itself."""
        reported = subprocess.run(
            self._command("report"), env=self._environment(), stdout=subprocess.PIPE, text=True
        )
        if reported.returncode:
            return None
        found: dict[str, Any] = json.loads(reported.stdout.strip().splitlines()[-1])
        return found

    def processes(self) -> list[psutil.Process]:
        """Return the living processes that descend from a driver, whatever their parent is now."""
        return tagged(self.tag)

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


def measure(name: str, options: argparse.Namespace, scenario: str) -> Outcome:
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        with surroundings(scenario, folder) as found:
            return _measure(name, options, scenario, folder, found)
    finally:
        if options.keep:
            print(f"{name}: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _measure(
    name: str, options: argparse.Namespace, scenario: str, folder: Path, found: Surroundings
) -> Outcome:
    share = options.share if scenario == "faults" else 0.0
    kinds = [f for f in (*TRANSIENT, *HARMLESS, *PERSISTENT) if options.gpu or f not in GPU]
    faults = plan_faults(options.trials, options.seed, share, kinds)
    Plan(faults, options.seconds, found.home, found.url, options.gpu).write(folder)
    harness = Harness(name, folder, options)
    try:
        seconds = harness.run(scenario, found.outage)
        return harness.outcome(name, seconds, scenario, found.home)
    finally:
        harness.end_all()


TITLES = {
    "faults": "The same faults",
    "disk": "The disk is full for a while",
    "database": "The database is gone for a while",
    "occupied": "Another process holds the GPU's memory for a while",
}


def show(outcomes: Sequence[Outcome]) -> None:
    """Print a table for each scenario, with the time relative to the clean run."""
    clean = {_key(o)[1:]: o.seconds for o in outcomes if o.scenario == "clean"}
    for scenario, title in TITLES.items():
        if found := [o for o in outcomes if o.scenario == scenario]:
            Console(width=160).print(_table(title, found, clean))


def _table(
    title: str, outcomes: Sequence[Outcome], clean: Mapping[tuple[str, int, int], float]
) -> Table:
    table = Table(title=title)
    columns = (
        "contender", "finished", "lost", "repeated", "replaced", "RUNNING", "orphans",
        "human steps", "time", "of clean run", "peak memory", "disk",
    )  # fmt: skip
    for column in columns:
        table.add_column(column, justify="left" if column == "contender" else "right")
    for o in outcomes:
        alone = clean.get(_key(o)[1:])
        table.add_row(
            o.contender + " (given up)" * o.gave_up + " (unreadable)" * o.unreadable,
            f"{o.finished} of {o.expected}", str(o.lost), str(o.repeated), str(o.replaced),
            str(o.running), str(o.orphans), str(o.steps), f"{o.seconds:.0f} s",
            f"{o.seconds / alone:.1f}×" if alone else "", f"{o.peak / 2**20:.0f} MiB",
            f"{o.disk / 2**20:.0f} MiB",
        )  # fmt: skip
    return table


def _key(outcome: Outcome) -> tuple[str, str, int, int]:
    return outcome.scenario, outcome.contender, outcome.trials, outcome.seed


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
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=["clean", "faults"])
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a trial")
    parser.add_argument("--share", type=float, default=0.5, help="share of trials with a fault")
    parser.add_argument("--gpu", action="store_true", help="trials work on a GPU")
    parser.add_argument("--patience", type=float, default=60, help="seconds without progress")
    parser.add_argument("--outage", type=float, default=60, help="seconds of an outage")
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--keep", action="store_true", help="keep the folders of the runs")
    parser.add_argument(
        "--python", nargs="+", default=[], metavar="PROJECT=PATH", help="other environments",
        type=lambda entry: tuple(entry.split("=", 1)),
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if "occupied" in options.scenarios and not options.gpu:
        parser.error("the scenario occupied takes a GPU's memory: it needs --gpu")
    done = {_key(outcome) for outcome in read(options.into)}
    for scenario in options.scenarios:
        for name in options.contenders:
            if (scenario, name, options.trials, options.seed) in done:
                continue
            if scenario == "database" and not CONTENDERS[name].has_database:
                continue
            outcome = measure(name, options, scenario)
            with options.into.open("a", encoding="utf-8") as out:
                out.write(json.dumps(asdict(outcome)) + "\n")
    show(read(options.into))


if __name__ == "__main__":
    main(sys.argv[1:])
