"""Cell process: send Ready, receive a task, run the objective, write the outcome, report it.

    Task ──▶ redirect output ──▶ objective(RemoteTrial) ──▶ outcome.json ──▶ Finished

A cell cleans up nothing: the fork server kills the processes that it leaves.
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

import optuna

from supermax._util import system
from supermax._util.files import tighten
from supermax._util.text import counted
from supermax.engine.processes.leaks import Baseline, idle_workers, resource_trackers
from supermax.engine.processes.protocol import Channel, ConnectionLost, Finished, Ready, Task
from supermax.engine.processes.remote_trial import (
    Connection,
    RemoteTrial,
    TrialInterrupted,
    set_current_connection,
)
from supermax.engine.storage.run_folder import TrialFolder
from supermax.engine.trial.oom import oom_details
from supermax.engine.trial.outcome import (
    COMPLETE,
    INTERRUPTED,
    PRUNED,
    RAISED,
    Outcome,
    Raised,
    as_values,
    describe,
)

Objective = Callable[[RemoteTrial], object]


def serve_tasks(channel: Channel, objective: Objective, *, parent: int, once: bool) -> None:
    """Run tasks until the coordinator closes the channel; with `once`, a single one."""
    system.die_with_parent(parent)
    system.adopt_orphans()
    system.prefer_as_oom_victim()
    with contextlib.suppress(ConnectionLost):
        channel.send(Ready(os.getpid()))
        kept_bytes = getattr(objective, "kept_bytes", None)
        baseline = None if once else Baseline(kept_bytes if callable(kept_bytes) else lambda: 0)
        while True:
            connection = Connection(channel, next_task(channel))
            set_current_connection(connection)
            run_task(connection, channel.take_fd(), objective, baseline)
            if once:
                return


def next_task(channel: Channel) -> Task:
    while not isinstance(message := channel.receive(), Task):
        pass  # a Stop that arrives between two trials applies to neither
    return message


def run_task(
    connection: Connection, output: int, objective: Objective, baseline: Baseline | None
) -> None:
    """Run one attempt with its output redirected to the descriptor `output`; write its outcome and
    report it. `baseline` None: the cell runs no other trial."""
    task, cell_pid = connection.task, os.getpid()
    _redirect_output(output)
    os.environ.update(task.env)
    system.reset_peak_rss()
    started = time.monotonic()
    state, values, raised = _attempt(RemoteTrial(connection), objective)
    if os.getpid() != cell_pid:  # a process that the objective forked has returned from it
        os._exit(0 if state == COMPLETE else 1)
    if state == INTERRUPTED:
        connection.checkpoints.upload(now=True)
    allocated, reserved = _device_peaks()
    outcome = Outcome(
        attempt=task.attempt,
        state=state,
        values=values,
        raised=raised,
        seconds=time.monotonic() - started,
        peak_rss=system.peak_rss(),
        device_allocated=allocated,
        device_reserved=reserved,
    )
    written = not task.away
    if written and state != INTERRUPTED:
        try:
            TrialFolder(Path(task.folder)).write_outcome(outcome)
        except OSError:  # such as a full disk: the coordinator retries until it can be written
            written = False
    tighten(Path(task.folder))  # files that the objective wrote have the modes of its umask
    _flush()
    connection.close(Finished(outcome.to_json(), _unclean_reason(baseline), written))


def _attempt(
    trial: RemoteTrial, objective: Objective
) -> tuple[str, tuple[float, ...] | None, Raised | None]:
    try:
        return COMPLETE, as_values(objective(trial)), None
    except optuna.TrialPruned:
        return PRUNED, None, None
    except TrialInterrupted:
        return INTERRUPTED, None, None
    except ConnectionLost:
        os._exit(0)  # the coordinator is gone; a later run resumes the trial
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # killed from outside: no outcome
        os.kill(os.getpid(), signal.SIGINT)
        raise
    except BaseException as error:
        oom = oom_details(error)  # before clear_frames frees the memory in use
        traceback.clear_frames(error.__traceback__)  # frees tensors: memory may be exhausted
        return RAISED, None, describe(error, objective, oom)


def _redirect_output(fd: int) -> None:
    _flush()
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable(file=2)  # a crash writes its stack to the log
    faulthandler.register(signal.SIGUSR2, file=2)  # the coordinator asks for it after a hang


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _device_peaks() -> tuple[int | None, int | None]:
    """Return the peaks of allocated and of reserved GPU memory; None: it uses no GPU."""
    torch = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    except Exception:  # a CUDA context is unusable after a device-side error
        pass
    return None, None


def _unclean_reason(baseline: Baseline | None) -> str | None:
    """Return why this process should not run another trial; None: it may."""
    try:
        left = _left_running(once=baseline is None)
        return left or (baseline.leaked() if baseline is not None else None)
    except Exception as error:
        return f"the state in which the trial left its process cannot be checked ({error})"


def _left_running(once: bool) -> str | None:
    """Describe processes and threads that the trial left; None: there are none."""
    idle = idle_workers()
    left = {pid for pid in system.children() if not system.is_zombie(pid)}
    if strays := left - idle.pids - resource_trackers():
        return f"the trial left {counted(len(strays), 'child process', 'child processes')} running"
    if once and idle.pids:
        return (
            f"joblib started {counted(len(idle.pids), 'worker process', 'worker processes')} in "
            f"this trial, and starts new ones in each cell; reuse_cells=True keeps them for later "
            f"trials"
        )
    own = (threading.main_thread(), *idle.threads)
    threads = [thread for thread in threading.enumerate() if thread not in own]
    if lasting := [thread.name for thread in threads if not thread.daemon]:
        return f"the trial left {counted(len(lasting), 'thread')} running"
    return None


def load_objective(blob: int) -> Objective:
    """Unpickle the objective from the descriptor `blob`, without moving the file offset that all
    cells share."""
    size = os.fstat(blob).st_size
    data = bytearray()
    while len(data) < size:
        data += os.pread(blob, size - len(data), len(data))
    objective: Objective = pickle.loads(data)
    return objective


def main(fd: int, blob: int, parent: int, once: int) -> None:
    """Run a cell that was started as a new interpreter instead of a fork."""
    channel = Channel(socket.socket(fileno=fd))
    system.die_with_parent(parent)
    objective = load_objective(blob)
    os.close(blob)
    serve_tasks(channel, objective, parent=parent, once=bool(once))
