"""Trials of the fault suite: what each one does, and the evidence that it leaves.

Needs the standard library only: every contender runs it in its own environment. A folder holds the
plan of the faults and, for each trial, files that say when an attempt started and ended. They do
not depend on what a contender stores, so its results can be compared with them.
"""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

STEPS = 5
"""Values that a trial reports."""
LEAK = 100 << 20
"""Bytes that a leaking trial never frees."""
OUTPUT = 20 << 20
"""Bytes that a trial with endless output prints."""
TRANSIENT = ("SIGSEGV", "SIGKILL", "os._exit", "hang", "out of memory", "GPU out of memory")
"""Faults of a trial's first attempt only."""
HARMLESS = (
    "memory leak", "endless output", "orphaned grandchild", "GPU memory leak", "GPU fragmentation",
)  # fmt: skip
"""Faults that leave the trial its result."""
PERSISTENT = ("exception", "NaN", "device-side assert", "illegal access")
"""Faults of the configuration: the trial can have no result."""
GPU = (
    "GPU out of memory", "GPU memory leak", "GPU fragmentation", "device-side assert",
    "illegal access",
)  # fmt: skip
"""Faults that need a GPU."""
_leaked: list[bytearray] = []


def plan_faults(trials: int, seed: int, share: float, kinds: Sequence[str]) -> list[str]:
    """Return which trial has which fault: `share` of them, each kind equally often."""
    count = round(trials * share)
    faults = [kinds[i % len(kinds)] for i in range(count)] + ["clean"] * (trials - count)
    random.Random(seed).shuffle(faults)
    return faults


@dataclass(frozen=True)
class Plan:
    """What the trials of a run do."""

    faults: list[str]
    """Of each trial, in the order in which they first start."""
    seconds: float
    """Time of a trial."""
    home: Path
    """Folder in which a contender keeps its files."""
    url: str
    """Storage of a contender that takes one."""
    gpu: bool = False
    """Trials work on a GPU."""

    @property
    def trials(self) -> int:
        return len(self.faults)

    def write(self, folder: Path) -> None:
        text = json.dumps(asdict(self), default=str)
        (folder / "plan.json").write_text(text, encoding="utf-8")


def read_plan(folder: Path) -> Plan:
    found = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    return Plan(**{**found, "home": Path(found["home"])})


def value_of(index: int) -> float:
    """Return the value of a trial: the only right one."""
    return random.Random(index).random()


def run_trial(folder: Path, identity: str, report: Callable[[float, int], None]) -> float:
    """Run one attempt of the trial with this identity, and return its value.

    Trials are numbered in the order in which they first start; the number decides the fault.
    """
    plan = read_plan(folder)
    index = _index(folder, identity)
    fault = plan.faults[index] if index < len(plan.faults) else "clean"
    is_first = claim(folder, f"attempt-{index}") == 0
    value = value_of(index)
    for step in range(STEPS):
        work(plan.seconds / STEPS, gpu=plan.gpu)
        if step == STEPS // 2 and (is_first or fault not in TRANSIENT):
            value = provoke(fault, value)
        report(value, step)
    note(folder, index, value)
    return value


def work(seconds: float, *, gpu: bool) -> None:
    if gpu:
        import gpu_work

        gpu_work.step(seconds)
    else:
        time.sleep(seconds)


def provoke(fault: str, value: float) -> float:
    """Let the fault happen; return the value of the trial if it still has one."""
    if fault == "exception":
        raise RuntimeError("This configuration is wrong.")
    if fault == "SIGSEGV":
        signal.raise_signal(signal.SIGSEGV)
    elif fault == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "os._exit":
        os._exit(1)
    elif fault == "hang":
        time.sleep(3600)
    elif fault == "out of memory":
        _exhaust_memory()
    elif fault == "NaN":
        return float("nan")
    elif fault == "memory leak":
        _leaked.append(bytearray(os.urandom(1 << 20) * (LEAK >> 20)))
    elif fault == "endless output":
        line = "x" * 1023 + "\n"
        for _ in range(OUTPUT >> 10):
            sys.stdout.write(line)
    elif fault == "orphaned grandchild":
        subprocess.Popen(["sleep", "3600"], start_new_session=True)
    elif fault in GPU:
        import gpu_work

        gpu_work.provoke(fault)
    return value


def _exhaust_memory() -> None:
    """Raise MemoryError as a process at its limit does. The limit is lifted again."""
    gc.collect()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), hard))
    try:
        taken = []
        while True:
            taken.append(bytearray(32 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _index(folder: Path, identity: str) -> int:
    """Return the number of a trial. A new identity gets the next one."""
    names = folder / "identities"
    names.mkdir(exist_ok=True)
    known = names / identity
    if not known.exists():
        number = claim(folder, "index")
        temporary = names / f".{identity}.{os.getpid()}"
        temporary.write_text(str(number), encoding="utf-8")
        temporary.replace(known)
    return int(known.read_text(encoding="utf-8"))


def claim(folder: Path, name: str) -> int:
    """Return how often this was called before with the name, in any process."""
    claims = folder / "claims"
    claims.mkdir(exist_ok=True)
    number = 0
    while True:
        try:
            (claims / f"{name}-{number}").touch(exist_ok=False)
        except FileExistsError:
            number += 1
        else:
            return number


def note(folder: Path, index: int, value: float) -> None:
    """Note that a trial has run to its end."""
    line = json.dumps({"index": index, "value": value, "pid": os.getpid()}) + "\n"
    file = os.open(folder / "ended.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())  # one call, which O_APPEND keeps in one piece
    os.close(file)
