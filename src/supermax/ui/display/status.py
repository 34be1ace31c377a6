"""Status file of a run, for other terminals, scripts, and after a crash.

    events ──▶ RunState ──snapshot()──▶ run_dir/status.json ──restore()──▶ RunState ──▶ draw

The file is one JSON object with Unix times. A thread replaces it atomically about once a second,
without fsync: whatever must survive is in the study and the ledgers. A killed run leaves a file
that says "running"; `standing` distinguishes it from a run that is alive.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from supermax._util.files import open_private
from supermax._util.text import finite
from supermax.engine import events as ev
from supermax.engine.gain import read_gain
from supermax.engine.storage.locks import holder
from supermax.engine.storage.run_folder import StudyFolder
from supermax.engine.trial.notes import readable
from supermax.memory.devices import Gpu
from supermax.ui.display import text
from supermax.ui.display.curve import Curve
from supermax.ui.display.gauges import Gauges, Readings
from supermax.ui.display.state import (
    LOG_KEPT,
    FinishedTrial,
    LogEntry,
    RunningTrial,
    RunState,
)

FORMAT = 1
INTERVAL = 1.0  # seconds between two writes
SILENT_AFTER = 30.0  # seconds without a write after which a run on another machine is silent
_DISK_TIMEOUT = 5.0  # seconds that the end of a run waits for a disk that hangs

RUNNING, ENDED, KILLED, ELSEWHERE, SILENT = "running", "ended", "killed", "elsewhere", "silent"


def status_json(state: RunState) -> dict[str, object]:
    """Return the state as JSON values. Times become Unix times, infinities and NaN text."""
    to_unix = state.wall() - state.clock()

    def when(moment: float | None) -> float | None:
        return None if moment is None else round(moment + to_unix, 3)

    best = state.best
    fields = {
        "format": FORMAT,
        "state": "ended" if state.ended_at else "stopping" if state.stopping else "running",
        "study": state.study_name,
        "directions": list(state.directions),
        "target": state.target,
        "finished": state.finished,
        "best": None if best is None else {"trial": best[0], "value": best[1]},
        "metrics": list(state.metrics),
        "evaluated_on": _evaluated(state),
        "eta": state.eta(),
        "elapsed": round(state.elapsed(), 3),
        "workers": state.workers,
        "resumed": state.resumed,
        "run_dir": state.run_dir,
        "pid": os.getpid(),
        "host": platform.node(),
        "updated": round(state.wall(), 3),
        "started": when(state.started_at),
        "ended": when(state.ended_at),
        "ending": state.ending,
        "stopped_by": state.summary.stopped_by if state.summary else None,
        "stopping": state.stopping,
        "gain": None if state.gain is None else state.gain.data() | {"over": state.gain.over},
        "trials": dict(state.states),
        "faults": dict(state.faults),
        "retries": state.retries,
        "waiting": sorted(state.waiting),
        "paused": [[number, when(since)] for number, since in state.paused.items()],
        "running": [_trial(state, trial, when) for trial in state.running.values()],
        "recent": [asdict(trial) for trial in state.recent],
        "events": [asdict(event) for event in state.events()],
        "memory": state.readings.total,
        "gpus": [asdict(gpu) for gpu in state.readings.gpus],
        "out_of_service": dict(state.out_of_service),
        "finish_times": [when(moment) for moment in state.finish_times],
        "head_starts": list(state.finished_resumed_shares),
        "others": [[when(moment), count] for moment, count in state.others],
        "other_workers": state.other_workers,
    }
    return {key: finite(value) for key, value in fields.items()}


def _evaluated(state: RunState) -> dict[str, object] | None:
    if state.evaluated_on is None:
        return None
    return dict(zip(("split", "examples"), state.evaluated_on, strict=True))


def _trial(
    state: RunState, trial: RunningTrial, when: Callable[[float | None], float | None]
) -> dict[str, object]:
    pid = trial.pid or 0
    return {
        "trial": trial.number,
        "attempt": trial.attempt,
        "cell": trial.cell,
        "pid": trial.pid,
        "since": when(trial.since),
        "step": trial.step,
        "value": trial.value,
        "encoder": trial.facts.get("encoder"),
        "epoch": trial.facts.get("epoch"),
        "samples_per_second": trial.facts.get("samples_per_second"),
        "facts": trial.facts,
        "curve": trial.curve.points,
        "memory": state.readings.resident.get(pid),
        "device_memory": state.readings.on_device.get(pid),
        "reserved": trial.reserved,
        "begun": state.resumed_shares.get(trial.number),
    }


def restore(
    fields: dict[str, Any], standing: str = RUNNING, clock: Callable[[], float] = time.time
) -> RunState:
    """Return a state that is drawn like that of the run. Raises ValueError for other data."""
    try:
        state = _restored(fields, clock)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"not a status: {type(error).__name__}: {error}") from None
    if standing in (KILLED, SILENT) and state.ended_at is None:
        state.clock = lambda: float(fields["updated"])  # time stopped with the last write
        interrupted = ", ".join(str(number) for number in sorted(state.running))
        at = f" in trial {interrupted}" if interrupted else ""
        what = "was killed" if standing == KILLED else f"on {fields['host']} no longer responds"
        state.close(f"process {fields['pid']} {what}{at}; run the same command again to resume")
    return state


def _restored(fields: dict[str, Any], clock: Callable[[], float]) -> RunState:
    best, events = fields["best"], [LogEntry(**event) for event in fields["events"]]
    notices = [event for event in events if event.kind == "notice"]
    trials = fields["running"]
    evaluated = fields.get("evaluated_on")  # absent, like metrics and recent, in older files
    _ = int(fields["format"]), int(fields["pid"]), str(fields["host"]), float(fields["updated"])
    state = RunState(
        clock=clock,
        wall=clock,
        study_name=str(fields["study"]),
        directions=tuple(map(str, fields["directions"])),
        target=fields["target"],
        workers=int(fields["workers"]),
        run_dir=str(fields["run_dir"]),
        resumed=int(fields["resumed"]),
        finished=int(fields["finished"]),
        started_at=fields["started"],
        ended_at=fields["ended"],
        states=Counter(fields["trials"]),
        best=None if best is None else (int(best["trial"]), float(best["value"])),
        metrics=tuple(map(str, fields.get("metrics", ()))),
        evaluated_on=(str(evaluated["split"]), int(evaluated["examples"])) if evaluated else None,
        running={trial["trial"]: _running(trial) for trial in trials},
        waiting=set(fields["waiting"]),
        paused={int(number): since for number, since in fields.get("paused", ())},
        resumed_shares={
            t["trial"]: float(t["begun"]) for t in trials if t.get("begun") is not None
        },
        faults=Counter(fields["faults"]),
        retries=int(fields["retries"]),
        notices={event.text: event.count for event in notices},
        noticed={event.text: event.at for event in notices},
        out_of_service={str(k): str(v) for k, v in fields.get("out_of_service", {}).items()},
        log=deque((e for e in events if e.kind != "notice"), maxlen=LOG_KEPT),
        other_workers=fields.get("other_workers"),
        stopping=fields["stopping"],
        gain=read_gain(fields.get("gain")),
        ending=fields["ending"],
        readings=Readings(
            {t["pid"]: t["memory"] for t in trials if t["memory"] is not None},
            {t["pid"]: t["device_memory"] for t in trials if t["device_memory"] is not None},
            tuple(Gpu(**gpu) for gpu in fields["gpus"]),
            fields["memory"],
        ),
    )
    state.finish_times.extend(fields["finish_times"])
    state.finished_resumed_shares.extend(map(float, fields.get("head_starts", ())))
    state.others.extend((float(moment), int(count)) for moment, count in fields.get("others", ()))
    state.recent.extend(map(_recent, fields.get("recent", ())))
    return state


def _running(trial: dict[str, Any]) -> RunningTrial:
    return RunningTrial(
        number=int(trial["trial"]),
        attempt=int(trial["attempt"]),
        cell=int(trial["cell"]),
        since=float(trial["since"]),
        step=trial["step"],
        value=None if trial["value"] is None else float(trial["value"]),
        pid=trial["pid"],
        reserved=trial["reserved"],
        facts=readable(trial["facts"]),
        curve=Curve([float(value) for value in trial["curve"]]),
    )


def _recent(trial: dict[str, Any]) -> FinishedTrial:
    return FinishedTrial(
        number=int(trial["number"]),
        state=str(trial["state"]),
        values=tuple(map(float, trial["values"])),
        seconds=float(trial["seconds"]),
        encoder=str(trial["encoder"]),
        curve=tuple(map(float, trial["curve"])),
    )


def write(path: Path, fields: Mapping[str, object]) -> None:
    """Replace the file atomically for readers; after a power cut it may be missing."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open_private(temporary, "w") as file:
            file.write(json.dumps(fields, separators=(",", ":")))
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def read(run_dir: Path) -> dict[str, Any] | None:
    """Return the status that the last run in this folder wrote; None if missing or damaged."""
    try:
        fields = json.loads(StudyFolder(run_dir).status.read_text())
        restore(fields)
    except (OSError, ValueError, OverflowError, RecursionError, TypeError, KeyError):
        return None
    return fields if fields["format"] == FORMAT else None


def standing(fields: dict[str, Any], *locks: Path, now: float | None = None) -> str:
    """Return the state of the run that wrote this, such as RUNNING or KILLED, without affecting
    it.

    `locks` are those of the study; a run on this machine holds one while it is alive. A run on
    another machine is judged by the age of its file alone.
    """
    if fields["ended"] is not None:
        return ENDED
    if fields["host"] == platform.node():
        return RUNNING if holder(*locks) == fields["pid"] else KILLED
    age = (time.time() if now is None else now) - float(fields["updated"])
    return ELSEWHERE if age <= SILENT_AFTER else SILENT


def find_status(run_dir: Path, *locks: Path) -> tuple[dict[str, Any] | None, str]:
    """Return the status that the last run in the folder wrote, and the state of that run now.

    A run releases its lock at about the time of its last write. So a run that looks killed is
    read again and, while its process exists, given time to finish.
    """
    fields, found = None, ENDED
    for pause in (0.0, 0.0, 0.1, 0.3, 0.6):
        if pause and fields and not psutil.pid_exists(fields["pid"]):
            break
        time.sleep(pause)
        fields = read(run_dir)
        found = standing(fields, *locks) if fields else ENDED
        if found != KILLED:
            break
    return fields, found


class StatusFile(AbstractContextManager["StatusFile"]):
    """Listener that writes the status file; its thread also samples the gauges. A disk that is
    full, slow or gone affects the file, never the run."""

    def __init__(self, gauges: Gauges | None = None) -> None:
        self.state = RunState()
        self.gauges = gauges or Gauges()
        self._path: Path | None = None
        self._owner = os.getpid()
        self._lock = threading.RLock()  # of the state
        self._writing = threading.RLock()
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._write_regularly, name="supermax-status", daemon=True
        )

    def __call__(self, event: ev.Event) -> None:
        with self._lock:
            self.state.update(event)
        if isinstance(event, ev.RunStarted):
            self._path = StudyFolder(Path(event.run_dir)).status
            self._write()
            self._thread.start()
        elif isinstance(event, ev.RunEnded):
            self._write()  # now, because a run that got SIGTERM does not reach __exit__

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if os.getpid() != self._owner:  # a process that a callback forked
            return
        self._over.set()
        ended = self.state.ended_at is not None
        with self._lock:
            self.state.close(text.ending(error))
        if not ended:
            self._write()
        if self._thread.ident is not None:
            self._thread.join(_DISK_TIMEOUT)

    def _write_regularly(self) -> None:
        while not self._over.wait(INTERVAL):
            with self._lock:
                pids = [trial.pid for trial in self.state.running.values() if trial.pid]
            with contextlib.suppress(Exception):
                readings = self.gauges.sample(pids)
                with self._lock:
                    self.state.readings = readings
            if not self._over.is_set():
                self._write()

    def _write(self) -> None:
        if self._path is None or not self._writing.acquire(timeout=_DISK_TIMEOUT):
            return
        try:
            with self._lock:
                fields = status_json(self.state)
            write(self._path, fields)
        except Exception:  # a failed write must not end the run
            pass
        finally:
            self._writing.release()
