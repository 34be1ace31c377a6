"""CUDA's multi-process service, for as long as a run goes: work of several cells is on a GPU at
the same time, where it otherwise takes turns.

    with shared(): run ──▶ guard (this module as a program) ──▶ the service ──▶ its servers

The guard ends the service when the run has ended, in whatever way.
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

from supermax.engine import kernel
from supermax.words import one_line

CONTROL = "nvidia-cuda-mps-control"
PIPE, LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_READY, _LOG = "ready", "service.log"
_STARTING = 20.0  # seconds
_ENDING = 10.0


@contextlib.contextmanager
def shared(tell: Callable[[str], None], share: int = 100) -> Iterator[bool]:
    """Processes that are started inside share their GPUs, if it can be had; otherwise `tell` says
    why not. Each may use so many percent of a GPU's processors, unless the environment says
    something else. A service that somebody else has started is used as it is."""
    if shutil.which(CONTROL) is None or not kernel.LINUX:
        tell(f"Cells take turns on the GPU: there is no {CONTROL} on this machine.")
        yield False
    elif _answers(dict(os.environ)):
        yield True
    elif named := os.environ.get(PIPE):
        tell(f"Cells take turns on the GPU: the service that {PIPE} names ({named}) is not there.")
        yield False
    else:
        with _started(tell, share) as on:
            yield on


@contextlib.contextmanager
def _started(tell: Callable[[str], None], share: int) -> Iterator[bool]:
    before = {name: os.environ.get(name) for name in (PIPE, LOG, SHARE)}
    folder = tempfile.mkdtemp(prefix="supermax-mps-")  # paths of pipes are short
    guard = _start(folder)
    try:
        said = _first_line(guard)
        if said == _READY:
            os.environ.update(_environment(folder))
            os.environ[SHARE] = before[SHARE] or str(share)
        else:
            tell(f"Cells take turns on the GPU: its service does not start ({said}).")
        yield said == _READY
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        _end(guard)


def _environment(folder: str) -> dict[str, str]:
    return {PIPE: folder, LOG: folder}


def _start(folder: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "supermax.mps", folder]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # a Ctrl-C is the run's to deal with
    )


def _first_line(guard: subprocess.Popen[str]) -> str:
    assert guard.stdout is not None
    if not select.select([guard.stdout], [], [], _STARTING + 10)[0]:
        return "nothing was heard of it"
    return guard.stdout.readline().strip() or "it ended at once"


def _end(guard: subprocess.Popen[str]) -> None:
    assert guard.stdin is not None
    assert guard.stdout is not None
    with contextlib.suppress(OSError):
        guard.stdin.close()
    try:
        guard.wait(2 * _ENDING)
    except subprocess.TimeoutExpired:
        guard.kill()
        guard.wait()
    guard.stdout.close()


# The guard.


def main(folder: str) -> None:
    kernel.adopt_orphans()
    environment = {**os.environ, **_environment(folder)}
    try:
        service = _service(environment, Path(folder) / _LOG)
    except OSError as error:
        print(f"it cannot be run: {error.strerror}", flush=True)
    else:
        with contextlib.suppress(BrokenPipeError):  # the run is no more
            _serve(service, environment, Path(folder) / _LOG)
        _clear(service)
    shutil.rmtree(folder, ignore_errors=True)


def _service(environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [CONTROL, "-f"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _serve(service: subprocess.Popen[bytes], environment: dict[str, str], log: Path) -> None:
    """Until the run closes its end, or is no more."""
    if (trouble := _wait_for(service, environment, log)) is not None:
        print(trouble, flush=True)
        return
    print(_READY, flush=True)
    sys.stdin.read()
    _ask("quit -t 3", environment)


def _wait_for(
    service: subprocess.Popen[bytes], environment: dict[str, str], log: Path
) -> str | None:
    deadline = time.monotonic() + _STARTING
    while service.poll() is None and time.monotonic() < deadline:
        if select.select([sys.stdin], [], [], 0)[0]:
            return "the run has ended"
        if _answers(environment):
            return None
        time.sleep(0.1)
    if service.poll() is None:
        return "it does not answer"
    said = one_line(log.read_text(errors="replace"), 200) or "without a word"
    return f"it ended with code {service.returncode}: {said}"


def _answers(environment: dict[str, str]) -> bool:
    return _ask("get_default_active_thread_percentage", environment)


def _ask(words: str, environment: dict[str, str]) -> bool:
    try:
        done = subprocess.run(
            [CONTROL], input=f"{words}\n", text=True, env=environment, capture_output=True,
            timeout=_ENDING, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def _clear(service: subprocess.Popen[bytes]) -> None:
    """Wait for the service to end; then end what is left of it."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        service.wait(_ENDING / 2)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()  # also for what was adopted


if __name__ == "__main__":
    main(sys.argv[1])
