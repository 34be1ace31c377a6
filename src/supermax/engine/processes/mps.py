"""CUDA Multi-Process Service (MPS) for the duration of a run: kernels of several cells run on a
GPU concurrently instead of time-sliced.

    with shared(): run ──▶ guard (this module as a program) ──▶ MPS control daemon ──▶ MPS servers

The guard ends the daemon when the run has ended, even if it was killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from supermax._util import system
from supermax._util.text import one_line

CONTROL = "nvidia-cuda-mps-control"
PIPE, LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_DEFAULT_SHARE = "get_default_active_thread_percentage"
_READY, _LOG = "ready", "daemon.log"
_START_TIMEOUT = 20.0  # seconds
_END_TIMEOUT = 10.0


@contextlib.contextmanager
def shared(notify: Callable[[str], None], share: int = 100) -> Iterator[bool]:
    """Run MPS for the processes started inside; yield whether it is available.

    `notify` receives the reason why not. `share` is the percentage of a GPU's multiprocessors that
    each process may use, unless the environment sets it. An MPS daemon that is running already is
    used as it is.
    """
    if shutil.which(CONTROL) is None or not system.LINUX:
        notify(f"Cells share the GPU without MPS: there is no {CONTROL} on this machine.")
        yield False
    elif _answers(dict(os.environ)):
        yield True
    elif named := os.environ.get(PIPE):
        notify(f"Cells share the GPU without MPS: no daemon answers at {PIPE} ({named}).")
        yield False
    else:
        with _started(notify, share) as on:
            yield on


def share_in_use() -> float:
    """Return the share of processes started now, in percent: that of the environment, or the
    default of the daemon. 100 where none answers."""
    given = os.environ.get(SHARE)
    try:
        return float(given or _answer(_DEFAULT_SHARE, dict(os.environ)) or 100)
    except ValueError:
        return 100.0


@contextlib.contextmanager
def _started(notify: Callable[[str], None], share: int) -> Iterator[bool]:
    before = {name: os.environ.get(name) for name in (PIPE, LOG, SHARE)}
    folder = tempfile.mkdtemp(prefix="supermax-mps-")  # socket paths must be short
    guard = _start(folder)
    try:
        status = _first_line(guard)
        if status == _READY:
            os.environ.update(_environment(folder))
            os.environ[SHARE] = before[SHARE] or str(share)
        else:
            notify(f"Cells share the GPU without MPS: its daemon does not start ({status}).")
        yield status == _READY
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        _end(guard)


def _environment(folder: str) -> dict[str, str]:
    return {PIPE: folder, LOG: folder}


def _start(folder: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "supermax.engine.processes.mps", folder]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # the run handles Ctrl-C
    )


def _first_line(guard: subprocess.Popen[str]) -> str:
    assert guard.stdout is not None
    if not select.select([guard.stdout], [], [], _START_TIMEOUT + 10)[0]:
        return "its guard process does not respond"
    return guard.stdout.readline().strip() or "its guard process exited at once"


def _end(guard: subprocess.Popen[str]) -> None:
    assert guard.stdin is not None
    assert guard.stdout is not None
    with contextlib.suppress(OSError):
        guard.stdin.close()
    try:
        guard.wait(2 * _END_TIMEOUT)
    except subprocess.TimeoutExpired:
        guard.kill()
        guard.wait()
    guard.stdout.close()


# Functions of the guard process.


def main(folder: str) -> None:
    """Run the daemon in `folder` until standard input is closed; print whether it is ready."""
    system.adopt_orphans()
    environment = {**os.environ, **_environment(folder)}
    try:
        daemon = _start_daemon(environment, Path(folder) / _LOG)
    except OSError as error:
        print(f"it cannot be run: {error.strerror}", flush=True)
    else:
        with contextlib.suppress(BrokenPipeError):  # the run has ended
            _serve_until_closed(daemon, environment, Path(folder) / _LOG)
        _end_processes(daemon)
    shutil.rmtree(folder, ignore_errors=True)


def _start_daemon(environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [CONTROL, "-f"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _serve_until_closed(
    daemon: subprocess.Popen[bytes], environment: dict[str, str], log: Path
) -> None:
    """Report that the daemon is ready, wait for the run's end, and have the daemon quit."""
    if (error := _wait_for(daemon, environment, log)) is not None:
        print(error, flush=True)
        return
    print(_READY, flush=True)
    sys.stdin.read()
    _ask("quit -t 3", environment)


def _wait_for(
    daemon: subprocess.Popen[bytes], environment: dict[str, str], log: Path
) -> str | None:
    """Wait until the daemon answers; return None, or why it does not."""
    deadline = time.monotonic() + _START_TIMEOUT
    while daemon.poll() is None and time.monotonic() < deadline:
        if select.select([sys.stdin], [], [], 0)[0]:
            return "the run has ended"
        if _answers(environment):
            return None
        time.sleep(0.1)
    if daemon.poll() is None:
        return "it does not answer"
    output = one_line(log.read_text(errors="replace"), 200) or "no output"
    return f"it ended with code {daemon.returncode}: {output}"


def _answers(environment: dict[str, str]) -> bool:
    return _ask(_DEFAULT_SHARE, environment)


def _ask(command: str, environment: dict[str, str]) -> bool:
    return _answer(command, environment) is not None


def _answer(command: str, environment: dict[str, str]) -> str | None:
    """Return what the daemon answers; None: it does not."""
    try:
        done = subprocess.run(
            [CONTROL], input=f"{command}\n", text=True, env=environment, capture_output=True,
            timeout=_END_TIMEOUT, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return None if done.returncode else done.stdout.strip()


def _end_processes(daemon: subprocess.Popen[bytes]) -> None:
    """Wait for the daemon to exit, then kill its remaining processes."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        daemon.wait(_END_TIMEOUT / 2)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()  # adopted orphans included


if __name__ == "__main__":
    main(sys.argv[1])
