"""Train thousands of short trials while everything around them fails, and count what is lost.

    python benchmarks/faults/soak.py --trials 5000 --into soak.json

`supermax tune` trains a tiny encoder. A fifth of the trials has a fault in its first epoch. Every
few seconds a random process of the run is killed (SIGKILL): a cell, the fork server, the
coordinator, now and then the supervisor too; then the same command is started again. The disk is
full for a while, and the database is locked for a while. Needs root, or `unshare --map-root-user
--mount`, to mount a small file system.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import psutil
from outages import FullDisk, mounted
from processes import TAG, tagged
from soak_objective import FOLDER
from work import GPU, HARMLESS, TRANSIENT, plan_faults

PROGRAM = Path(__file__).parent / "drivers" / "soak_run.py"
COORDINATOR, FORK_SERVER, CELL, SUPERVISOR = "coordinator", "fork server", "cell", "supervisor"
ODDS = {CELL: 0.8, FORK_SERVER: 0.08, COORDINATOR: 0.1, SUPERVISOR: 0.02}
"""Probability that the process that is killed has this role."""
STALL = 10
"""Seconds without a sign of life after which a trial counts as hanging."""
DISK_MOMENT, LOCK_MOMENT = 0.4, 0.6
"""Shares of the finished trials at which the disk is filled, and the database locked."""
AFTERWARDS = 10
"""Seconds after the last driver's end in which its processes may still end by themselves."""


@dataclass
class Life:
    """Observations of one process."""

    role: str
    cpu: float = 0.0
    """Seconds of CPU time."""
    start_up: float = 0.0
    """Those before a trial finished in its life."""
    finished: int = 0
    """Trials that had finished when it was first seen."""


@dataclass(frozen=True)
class Result:
    trials: int
    finished: int
    lost: int
    """Trials that ran to their end, without their result in the study."""
    wrong: int
    """Stored results that are not what the trial returned."""
    duplicated: int
    """Trials beyond the planned ones."""
    repeated: int
    """Trials that ran to their end more than once."""
    running: int
    orphans: int
    faults: dict[str, int]
    kills: dict[str, int]
    restarts: int
    """Drivers started again that were not killed. A person would have had to do it."""
    seconds: float
    growth: int
    """Bytes by which the coordinator's resident memory was larger in the last tenth of the trials
    than in the second."""
    memory: list[int]
    """Its median in each tenth."""
    share: float
    """CPU time of coordinators, fork servers and supervisors, their start-up apart, of that of
    all processes."""
    cpu_per_trial: float
    """Milliseconds of CPU time of these processes per trial, their start-up apart."""
    start_up: float
    """CPU seconds of starts after a kill or at the beginning."""
    outages: int
    """Outages that began: of the disk and of the database."""
    machine: str = f"{platform.machine()}, {os.cpu_count()} cores"


@dataclass
class Soak:
    """A run of `supermax tune` under fire."""

    folder: Path
    options: argparse.Namespace
    kills: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    _tag: str = field(default_factory=lambda: uuid.uuid4().hex)
    _lives: dict[tuple[int, float], Life] = field(default_factory=dict)
    _memory: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    _disk: FullDisk | None = None
    _lock: sqlite3.Connection | None = None
    _ends: float = 0.0
    _last_count: int = 0
    _outages: list[float] = field(default_factory=lambda: [DISK_MOMENT, LOCK_MOMENT])

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def run(self) -> Result:
        self.home.mkdir()
        kinds = [fault for fault in (*TRANSIENT, *HARMLESS) if fault not in GPU]
        faults = plan_faults(self.options.trials, self.options.seed, self.options.share, kinds)
        (self.folder / "plan.json").write_text(json.dumps({"faults": faults}), encoding="utf-8")
        started = time.monotonic()
        with mounted(self.home):
            try:
                while not self._run_once(random.Random(f"{self.options.seed} {self.kills}")):
                    if self.restarts > 20:
                        break
                return self.result(time.monotonic() - started, Counter(faults))
            finally:
                for process in self._processes():
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()

    def _run_once(self, dice: random.Random) -> bool:
        """Start the command. Return True if it has finished the search."""
        environment = {
            **os.environ, TAG: self._tag, FOLDER: str(self.folder), "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(
                [str(PROGRAM.parent.parent), os.environ.get("PYTHONPATH", "")]
            ),
        }  # fmt: skip
        command = [
            sys.executable, str(PROGRAM), "tune", "criteria", "--preset", "demo", "--trials",
            str(self.options.trials), "--epochs", str(self.options.epochs),
            "--workers", str(self.options.workers),
            "--sampler", "random", "--pruner", "none", "--race", "false",
            "--set", "data.posts=60", "--set", f"stall_timeout={STALL}", "--run-dir", "run",
        ]  # fmt: skip
        with (self.folder / "output").open("ab") as output:
            driver = subprocess.Popen(
                command, cwd=self.home, stdout=output, stderr=output, env=environment,
                start_new_session=True,
            )  # fmt: skip
        next_kill = time.monotonic() + 10
        while driver.poll() is None:
            time.sleep(0.3)
            finished = self._finished()
            roles = self._look(driver.pid, finished)
            self._watch_outage(finished)
            if time.monotonic() < next_kill or self._ends:
                continue
            next_kill = time.monotonic() + dice.uniform(*self.options.kill_every)
            role = dice.choices(list(ODDS), list(ODDS.values()))[0]
            if victims := roles.get(role):
                with contextlib.suppress(psutil.NoSuchProcess):
                    dice.choice(victims).kill()
                    self.kills[role] += 1
        while self._ends:
            self._watch_outage(0)
            time.sleep(0.3)
        if driver.returncode not in (0, -9):
            self.restarts += 1
        return driver.returncode == 0

    def _look(self, supervisor: int, finished: int) -> dict[str, list[psutil.Process]]:
        """Note CPU time and memory of all processes; return them by role."""
        roles: dict[str, list[psutil.Process]] = defaultdict(list)
        parents: dict[int, int] = {}
        found = self._processes()
        for process in found:
            with contextlib.suppress(psutil.Error):
                parents[process.pid] = process.ppid()
        for process in found:
            depth, pid = 0, process.pid
            while pid in parents and pid != supervisor:
                pid, depth = parents[pid], depth + 1
            if pid != supervisor:
                continue  # left by a driver that was killed, or by a trial
            role = (SUPERVISOR, COORDINATOR, FORK_SERVER, CELL)[min(depth, 3)]
            with contextlib.suppress(psutil.Error):
                self._note(process, role, finished)
                roles[role].append(process)
        return roles

    def _note(self, process: psutil.Process, role: str, finished: int) -> None:
        key = (process.pid, process.create_time())
        life = self._lives.setdefault(key, Life(role, finished=finished))
        times = process.cpu_times()
        life.cpu = times.user + times.system
        if finished <= life.finished:
            life.start_up = life.cpu
        if role == COORDINATOR and life.finished < finished < self.options.trials:
            tenth = 10 * finished // self.options.trials
            self._memory[tenth].append(process.memory_info().rss)

    def _watch_outage(self, finished: int) -> None:
        """Begin the next outage, or end it, when it is time."""
        if self._ends:
            if time.monotonic() > self._ends:
                self._ends = 0.0
                if self._disk is not None:
                    self._disk.end()
                if self._lock is not None:
                    self._lock.close()
                self._disk = self._lock = None
        elif self._outages and finished >= self._outages[0] * self.options.trials:
            if self._outages.pop(0) == DISK_MOMENT:
                self._disk = FullDisk(self.home)
                self._disk.begin()
            else:
                self._lock = sqlite3.connect(self._database(), timeout=60)
                self._lock.execute("BEGIN EXCLUSIVE")
            self._ends = time.monotonic() + self.options.outage

    def _processes(self) -> list[psutil.Process]:
        return tagged(self._tag)

    def _database(self) -> Path:
        (found,) = self.home.rglob("*.db")
        return found

    def _finished(self) -> int:
        with contextlib.suppress(sqlite3.Error, ValueError):
            url = f"file:{self._database()}?mode=ro"
            with contextlib.closing(sqlite3.connect(url, uri=True, timeout=0.1)) as database:
                query = "SELECT count(*) FROM trials WHERE state = 'COMPLETE'"
                self._last_count = int(database.execute(query).fetchone()[0])
        return self._last_count

    def result(self, seconds: float, faults: Mapping[str, int]) -> Result:
        """Compare the study with the evidence of the trials."""
        deadline = time.monotonic() + AFTERWARDS
        while self._processes() and time.monotonic() < deadline:
            time.sleep(0.2)
        orphans = len(self._processes())
        values, running = self._stored()
        returned: dict[int, set[float]] = defaultdict(set)
        ends: Counter[int] = Counter()
        for line in (self.folder / "ended.jsonl").read_text(encoding="utf-8").splitlines():
            end = json.loads(line)
            returned[end["index"]].add(end["value"])
            ends[end["index"]] += 1
        memory = [int(median(self._memory[tenth] or [0])) for tenth in range(10)]
        ours = [life for life in self._lives.values() if life.role != CELL]
        cpu = sum(life.cpu for life in self._lives.values())
        working = sum(life.cpu - life.start_up for life in ours)
        return Result(
            trials=self.options.trials, finished=sum(n < self.options.trials for n in values),
            lost=sum(number not in values for number in ends),
            wrong=sum(value not in returned[number] for number, value in values.items()),
            duplicated=sum(n >= self.options.trials for n in values),
            repeated=sum(count > 1 for count in ends.values()), running=running, orphans=orphans,
            faults={name: count for name, count in faults.items() if name != "clean"},
            kills=dict(self.kills), restarts=self.restarts, seconds=round(seconds, 1),
            growth=memory[9] - memory[1], memory=memory,
            share=round(working / cpu, 4) if cpu else 0.0,
            cpu_per_trial=round(1000 * working / self.options.trials, 1),
            start_up=round(sum(life.start_up for life in ours), 1),
            outages=2 - len(self._outages),
        )  # fmt: skip

    def _stored(self) -> tuple[dict[int, float], int]:
        """Return the values of completed trials, and how many are stored as running."""
        query = (
            "SELECT number, value FROM trials JOIN trial_values USING (trial_id) "
            "WHERE state = 'COMPLETE'"
        )
        with contextlib.closing(sqlite3.connect(self._database())) as database:
            values = dict(database.execute(query).fetchall())
            count = "SELECT count(*) FROM trials WHERE state IN ('RUNNING', 'WAITING')"
            return values, int(database.execute(count).fetchone()[0])


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=5000)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2, help="of a trial: its length")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=0.2, help="share of trials with a fault")
    parser.add_argument("--kill-every", type=float, nargs=2, default=(2, 10), help="seconds")
    parser.add_argument("--outage", type=float, default=20, help="seconds of an outage")
    parser.add_argument("--into", type=Path)
    parser.add_argument("--keep", action="store_true", help="keep the folder of the run")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        result = Soak(folder, options).run()
    finally:
        if options.keep:
            print(folder, file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    text = json.dumps(asdict(result), indent=1)
    print(text)
    if options.into:
        options.into.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
