"""Fault suite: its plan, its evidence, and what it counts."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FAULTS = Path(__file__).parents[2] / "benchmarks" / "faults"
sys.path.append(str(FAULTS))

import work  # noqa: E402


def _suite() -> ModuleType:
    """Return the module of the suite: `import run` finds that of other benchmarks."""
    spec = spec_from_file_location("faults_run", FAULTS / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


run = _suite()


def plan_of(folder: Path, faults: list[str], seconds: float = 0.0) -> Path:
    work.Plan(faults, seconds, home=folder, url="").write(folder)
    return folder


def test_plan_has_each_fault_equally_often_and_follows_the_seed() -> None:
    kinds = [f for f in (*work.TRANSIENT, *work.HARMLESS, *work.PERSISTENT) if f not in work.GPU]
    faults = work.plan_faults(40, 0, 0.5, kinds)
    assert [faults.count(kind) for kind in kinds] == [2] * 10
    assert faults.count("clean") == 20
    assert faults == work.plan_faults(40, 0, 0.5, kinds)
    assert faults != work.plan_faults(40, 1, 0.5, kinds)


def test_a_transient_fault_happens_in_the_first_attempt_only(tmp_path: Path) -> None:
    folder = plan_of(tmp_path, ["clean", "os._exit"])
    reported: list[int] = []
    program = (
        f"import sys; sys.path.append({str(FAULTS)!r}); import work, pathlib\n"
        "work.run_trial(pathlib.Path(sys.argv[1]), 'second', lambda value, step: None)"
    )
    work.run_trial(folder, "first", lambda value, step: reported.append(step))
    assert subprocess.run([sys.executable, "-c", program, folder], check=False).returncode == 1
    assert subprocess.run([sys.executable, "-c", program, folder], check=False).returncode == 0
    ended = [json.loads(line) for line in (folder / "ended.jsonl").read_text().splitlines()]
    assert [(line["index"], line["value"]) for line in ended] == [
        (0, work.value_of(0)),
        (1, work.value_of(1)),
    ]
    assert reported == list(range(work.STEPS))


def test_memory_is_exhausted_within_a_limit_that_is_lifted_again(tmp_path: Path) -> None:
    folder = plan_of(tmp_path, ["out of memory"])
    with pytest.raises(MemoryError):
        work.run_trial(folder, "0", lambda value, step: None)
    assert work.run_trial(folder, "0", lambda value, step: None) == work.value_of(0)
    assert bytearray(256 << 20)


def test_trials_that_start_at_once_get_different_numbers(tmp_path: Path) -> None:
    folder = plan_of(tmp_path, ["clean"] * 20)

    def run(identity: int) -> float:
        return work.run_trial(folder, str(identity), lambda value, step: None)

    with ThreadPoolExecutor(8) as pool:
        values = list(pool.map(run, range(20)))
    assert sorted(values) == sorted(work.value_of(i) for i in range(20))


DRIVER = """
import json, os, pathlib, subprocess, sys
sys.path.append({faults!r})
import work
folder, part = pathlib.Path(sys.argv[1]), sys.argv[3]
store = folder / "store.json"
if part == "report":
    print(json.dumps(dict(values=json.loads(store.read_text()), running=1)))
    sys.exit()
values = json.loads(store.read_text()) if store.exists() else {{}}
for i in range(6):
    if str(i) not in values:
        values[str(i)] = work.run_trial(folder, str(i), lambda value, step: None)
        if i != 3:
            store.write_text(json.dumps(values))
values.pop("3")
values["4"] = 0.5
work.run_trial(folder, "5", lambda value, step: None)
store.write_text(json.dumps(values))
subprocess.Popen(["sleep", "60"], start_new_session=True)
"""


def test_losses_repetitions_wrong_values_orphans_and_restarts_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver loses one result, spoils one, repeats one, leaves a process, and dies once."""
    program = tmp_path / "driver.py"
    program.write_text(DRIVER.format(faults=str(FAULTS)))
    script = (
        f"import sys; sys.path.insert(0, {str(FAULTS)!r}); import run, pathlib\n"
        f"run.CONTENDERS['bad'] = run.Contender({str(program)!r})\n"
        "run.CONTENDERS['supermax'] = run.CONTENDERS['bad']\n"
        "run.AFTERWARDS = 0.2\n"
        "run.plan_faults = lambda *_: ['clean', 'os._exit', *['clean'] * 4]\n"
        "run.main(['--trials', '6', '--seconds', '0.01',\n"
        f"          '--into', {str(tmp_path / 'out.jsonl')!r}])"
    )
    # Own names: its processes are ended by the suite, by their environment.
    subprocess.run([sys.executable, "-c", script], check=True, env=dict(os.environ))
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    outcome = json.loads(lines[0])
    counted = ("finished", "lost", "wrong", "repeated", "running", "orphans", "steps")
    assert [outcome[name] for name in counted] == [5, 1, 1, 1, 1, 1, 1]


DISK_DRIVER = """
import json, pathlib, sys
sys.path.append({faults!r})
import work
folder, part = pathlib.Path(sys.argv[1]), sys.argv[3]
home = pathlib.Path(json.loads((folder / "plan.json").read_text())["home"])
if part == "report":
    values = {{file.name: float(file.read_text()) for file in home.iterdir()}}
    print(json.dumps(dict(values=values, running=0)))
    sys.exit()
for i in range(8):
    if not (home / str(i)).exists():
        value = str(work.run_trial(folder, str(i), lambda value, step: None))
        try:
            (home / str(i)).write_text(value)
        except OSError:
            (home / str(i)).unlink()
            raise
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a file system")
def test_a_full_disk_is_freed_before_a_driver_starts_again(tmp_path: Path) -> None:
    program = tmp_path / "driver.py"
    program.write_text(DISK_DRIVER.format(faults=str(FAULTS)))
    script = (
        f"import sys; sys.path.insert(0, {str(FAULTS)!r}); import run, outages\n"
        f"run.CONTENDERS['supermax'] = run.Contender({str(program)!r})\n"
        "outages.DISK = 8 << 20; run.AFTERWARDS = 0\n"
        "run.main(['--scenarios', 'disk', '--trials', '8', '--seconds', '0.3', '--outage', '2',\n"
        f"          '--into', {str(tmp_path / 'out.jsonl')!r}])"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env=dict(os.environ))
    (line,) = (tmp_path / "out.jsonl").read_text().splitlines()
    outcome = json.loads(line)
    counted = ("scenario", "finished", "lost", "repeated", "steps", "gave_up")
    assert [outcome[name] for name in counted] == ["disk", 8, 0, 1, 1, False]


@dataclass
class RecordedOutage:
    moments: list[str] = field(default_factory=list)

    def begin(self) -> None:
        self.moments.append("begin")

    def end(self) -> None:
        self.moments.append("end")


def harness(folder: Path, monkeypatch: pytest.MonkeyPatch, driver: str) -> Any:
    """Return the harness of a driver of 10 trials."""
    (folder / "driver.py").write_text(driver)
    monkeypatch.setitem(run.CONTENDERS, "supermax", run.Contender(str(folder / "driver.py")))
    options = argparse.Namespace(trials=10, workers=1, outage=60, patience=60, python=[])
    return run.Harness("supermax", folder, options)


def test_a_run_that_is_over_before_its_outage_is_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = RecordedOutage()
    with pytest.raises(RuntimeError, match="before its outage"):
        harness(tmp_path, monkeypatch, "").run("disk", outage)
    assert not outage.moments


def test_an_outage_ends_also_where_the_benchmark_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = RecordedOutage()
    interrupted = harness(tmp_path, monkeypatch, "import time; time.sleep(60)")
    (tmp_path / "ended.jsonl").write_text("{}\n" * 3)

    def attempts() -> int:
        if outage.moments:
            raise KeyboardInterrupt
        return 0

    real, started = subprocess.Popen, []

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(real(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(interrupted, "_attempts", attempts)
    monkeypatch.setattr(subprocess, "Popen", start)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted.run("disk", outage)
    finally:
        interrupted.end_all()
        started[0].wait()
    assert outage.moments == ["begin", "end"]


def test_memory_of_a_gpu_is_taken_only_from_trials_that_use_one(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        run.main(["--scenarios", "occupied", "--into", str(tmp_path / "out.jsonl")])
    assert not (tmp_path / "out.jsonl").exists()
