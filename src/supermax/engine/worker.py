"""A cell's whole life: say ready, take a task, run the objective, write the outcome, say so.

    Task ──▶ redirect output ──▶ objective(RemoteTrial) ──▶ outcome.json ──▶ Finished

Nothing here outlives the process and nothing is cleaned up for the sake of the machine: the
keeper ends whatever is left.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna

from supermax.engine import kernel
from supermax.engine.folder import TrialFolder
from supermax.engine.leaks import Baseline, idle_pool, resource_trackers
from supermax.engine.outcome import (
    COMPLETE,
    INTERRUPTED,
    PRUNED,
    RAISED,
    Outcome,
    as_values,
    describe,
)
from supermax.engine.protocol import Channel, ConnectionLost, Finished, Ready, Task
from supermax.engine.remote_trial import Link, RemoteTrial, TrialInterrupted, set_current_link
from supermax.engine.shortage import shortage
from supermax.files import tighten

Objective = Callable[[Any], Any]


def live(channel: Channel, objective: Objective, *, parent: int, once: bool) -> None:
    """Serve tasks until the coordinator closes the channel; with `once`, a single one."""
    kernel.die_with_parent(parent)
    kernel.adopt_orphans()
    kernel.be_first_oom_victim()
    with contextlib.suppress(ConnectionLost):
        channel.send(Ready(os.getpid()))
        kept = getattr(objective, "kept_bytes", None)
        baseline = None if once else Baseline(kept if callable(kept) else lambda: 0)
        while True:
            task = next_task(channel)
            link = Link(channel, task)
            set_current_link(link)
            serve(link, task, channel.take_fd(), objective, baseline)
            if once:
                return


def next_task(channel: Channel) -> Task:
    while not isinstance(message := channel.receive(), Task):
        pass  # a Stop between two trials has nothing to stop
    return message


def serve(
    link: Link, task: Task, output: int, objective: Objective, baseline: Baseline | None
) -> None:
    me = os.getpid()
    _redirect_output(output)
    os.environ.update(task.env)
    kernel.forget_peak_rss()
    started = time.monotonic()
    state, values, raised = _attempt(RemoteTrial(link, task), objective)
    if os.getpid() != me:  # a process that the objective forked came back through here
        os._exit(0 if state == COMPLETE else 1)
    outcome = Outcome(
        attempt=task.attempt,
        state=state,
        values=values,
        raised=raised,
        seconds=time.monotonic() - started,
        peak_rss=kernel.peak_rss(),
        **_device_peaks(),
    )
    written = True
    if state != INTERRUPTED:
        try:
            TrialFolder(Path(task.folder)).write_outcome(outcome)
        except OSError:  # a full disk: the coordinator waits until it can be written
            written = False
    tighten(Path(task.folder))  # what the objective wrote there has the modes of its umask
    _flush()
    link.end(Finished(outcome.to_json(), _unclean(baseline), written))


def _attempt(trial: RemoteTrial, objective: Objective) -> tuple[str, Any, Any]:
    try:
        return COMPLETE, as_values(objective(trial)), None
    except optuna.TrialPruned:
        return PRUNED, None, None
    except TrialInterrupted:
        return INTERRUPTED, None, None
    except ConnectionLost:
        os._exit(0)  # nobody is left to tell; the trial goes on another time
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a kill from outside, not an outcome
        os.kill(os.getpid(), signal.SIGINT)
        raise
    except BaseException as error:
        short = shortage(error)  # while what is in use still is
        traceback.clear_frames(error.__traceback__)  # memory may be what is missing
        return RAISED, None, describe(error, objective, short)


def _redirect_output(fd: int) -> None:
    _flush()
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable(file=2)  # a crash leaves its stack in the log
    faulthandler.register(signal.SIGUSR2, file=2)  # and so does a hang, when asked


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _device_peaks() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            return {
                "device_allocated": torch.cuda.max_memory_allocated(),
                "device_reserved": torch.cuda.max_memory_reserved(),
            }
    except Exception:  # a poisoned context answers nothing any more
        pass
    return {"device_allocated": None, "device_reserved": None}


def _unclean(baseline: Baseline | None) -> str | None:
    """Why this process should not serve another trial, if it should not."""
    try:
        left = _left_behind(once=baseline is None)
        return left or (baseline.leaked() if baseline is not None else None)
    except Exception as error:  # what is left of this process cannot even be looked at
        return f"the trial left its process in a state that cannot be looked at ({error})"


def _left_behind(once: bool) -> str | None:
    pool = idle_pool()
    left = {pid for pid in kernel.children() if not kernel.is_zombie(pid)}
    if strays := left - pool.pids - resource_trackers():
        return f"the trial left {len(strays)} child process(es) running"
    if once and pool.pids:
        return (
            f"joblib started {len(pool.pids)} worker process(es) in this trial, and will again in "
            f"each trial that has a process of its own; reuse_cells=True keeps them"
        )
    own = (threading.main_thread(), *pool.threads)
    threads = [thread for thread in threading.enumerate() if thread not in own]
    if lasting := [thread.name for thread in threads if not thread.daemon]:
        return f"the trial left {len(lasting)} thread(s) running"
    return None


def load_objective(blob: int) -> Objective:
    """Read the objective's pickle without moving the file offset that all cells share."""
    size = os.fstat(blob).st_size
    data = bytearray()
    while len(data) < size:
        data += os.pread(blob, size - len(data), len(data))
    objective: Objective = pickle.loads(data)
    return objective


def main(fd: int, blob: int, parent: int, once: int) -> None:
    """A cell that was started as a new interpreter instead of being forked."""
    channel = Channel(socket.socket(fileno=fd))
    kernel.die_with_parent(parent)
    objective = load_objective(blob)
    os.close(blob)
    live(channel, objective, parent=parent, once=bool(once))
