"""Fork servers that are forked from a process with the imports done, instead of started anew.

    pytest ──▶ template (imports once) ──fork──▶ fork server ──fork──▶ cells
       └──────────────── adopts ────────────────────┘

Importing torch and transformers takes seconds, and every run has a fork server of its own. A fork
server from the template is a child of pytest, as is one that the run starts itself.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

from supermax._util import system
from supermax.engine.processes import fork_server, prestart
from supermax.engine.processes.prestart import _PLACEHOLDER, SEND_TIMEOUT, TAG, ForkServerProcess
from supermax.engine.processes.protocol import Channel
from supermax.memory.budgets import ON_CPU

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from tests.preloading import main; main(int(sys.argv[2]), sys.argv[3:])"
)
_READ_WHILE_IMPORTED = ("PYTHON", "LD_", "HF_", "TRANSFORMERS_", "TORCH_", "MIMALLOC_", "OMP_")
_LARGEST_REQUEST = 1 << 17  # bytes
_START_TIMEOUT = 300.0  # seconds, the imports included


class _Adopted:
    """The part of subprocess.Popen that a run uses, of a child that another process has forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        if timeout is None:
            code = self._wait(0)
            assert code is not None
            return code
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("fork server", timeout)
            time.sleep(0.002)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class Template:
    """Process that has imported `modules`, and forks fork servers. Only Linux has one."""

    def __init__(self, *modules: str) -> None:
        self._env = {**ON_CPU, **os.environ, TAG: _PLACEHOLDER}
        self._process: subprocess.Popen[bytes] | None = None
        if not system.LINUX:
            return
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_START_TIMEOUT)
        with theirs:
            arguments = [json.dumps(sys.path), str(theirs.fileno()), *modules]
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, *arguments],
                env=self._env,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def suits(self, env: Mapping[str, str]) -> bool:
        """Return whether a process of the template's may have this environment: it must not differ
        in what libraries read while they are imported. What every search sets does no harm."""
        differing = {name for name, _ in env.items() ^ self._env.items()} - ON_CPU.keys()
        fits = not any(name.startswith(_READ_WHILE_IMPORTED) for name in differing)
        return fits and self._process is not None and self._process.poll() is None

    def start(
        self, env: Mapping[str, str], output: int | IO[bytes] = subprocess.DEVNULL
    ) -> ForkServerProcess:
        """Do what prestart.start does."""
        ours, theirs = socket.socketpair()
        objective = tempfile.TemporaryFile()  # noqa: SIM115 (the run closes it)
        with theirs, contextlib.ExitStack() as files:
            nowhere = files.enter_context(Path(os.devnull).open("wb"))
            log = nowhere if isinstance(output, int) else output
            wanted = {
                "cwd": str(Path.cwd()),
                "env": {name: value for name, value in env.items() if name != TAG},
                "files": resource.getrlimit(resource.RLIMIT_NOFILE),
                "path": sys.path,
            }
            request = json.dumps(wanted).encode()
            assert len(request) < _LARGEST_REQUEST
            with _subreaper():
                fds = [theirs.fileno(), objective.fileno(), log.fileno()]
                socket.send_fds(self._socket, [request], fds)
                pid = int(self._socket.recv(64))
        process = cast("subprocess.Popen[bytes]", _Adopted(pid))
        environment = {**env, TAG: _PLACEHOLDER}
        return ForkServerProcess(process, Channel(ours, SEND_TIMEOUT), objective, environment)

    def end(self) -> None:
        if self._process is not None:
            self._socket.close()
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def _subreaper() -> Iterator[None]:
    """Make this process the parent of its descendants' orphans, for a moment."""
    system.adopt_orphans()
    try:
        yield
    finally:
        ctypes.CDLL(None).prctl(system._PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def main(fd: int, modules: list[str]) -> None:
    """Import, then fork a fork server for each request, until the other side hangs up."""
    system.die_with_parent(os.getppid())
    for module in modules:
        importlib.import_module(module)
    if encoders := sys.modules.get("supermax.tasks.objective"):
        encoders.preload("tiny")
    gc.collect()
    gc.freeze()
    assert fork_server._why_not_fork() is None
    requests = socket.socket(fileno=fd)
    while True:
        request, fds, _, _ = socket.recv_fds(requests, _LARGEST_REQUEST, 3)
        if not request:
            return
        if (child := os.fork()) == 0:
            middle = os.getpid()
            if os.fork():
                os._exit(0)
            _become_fork_server(json.loads(request), fds, requests, middle)
            _exit()
        os.waitpid(child, 0)
        for each in fds:
            os.close(each)


def _become_fork_server(
    wanted: dict[str, Any], fds: list[int], requests: socket.socket, middle: int
) -> None:
    """Do in the forked process what starting it as a new interpreter would have done."""
    control, blob, log = fds
    os.setsid()
    os.chdir(wanted["cwd"])
    resource.setrlimit(resource.RLIMIT_NOFILE, wanted["files"])
    sys.path[:] = wanted["path"]
    env = wanted["env"]
    for name in os.environ.keys() - env.keys() - {TAG}:
        del os.environ[name]
    os.environ.update(env)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    while os.getppid() == middle:  # until it is adopted
        time.sleep(0.001)
    requests.send(str(os.getpid()).encode())
    requests.close()
    fork_server.main(control, blob, os.getppid())


def _exit() -> None:
    """End a fork server or a cell as an interpreter does, except for freeing its memory: that
    would copy all pages it shares with the template."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


@contextlib.contextmanager
def forked_from(template: Template) -> Iterator[None]:
    """Fork the fork servers of the runs inside this block from the template, where it suits."""
    start = prestart.start

    def start_either(
        env: Mapping[str, str], output: int | IO[bytes] = subprocess.DEVNULL
    ) -> ForkServerProcess:
        return template.start(env, output) if template.suits(env) else start(env, output)

    prestart.start = start_either
    try:
        yield
    finally:
        prestart.start = start
