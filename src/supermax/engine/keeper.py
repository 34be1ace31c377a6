"""The keeper: the process that makes cells, reaps them, and ends what they leave behind.

    coordinator ── Setup, StartCell, CaptureLog, SignalCell ──▶ keeper ──fork──▶ cell
    coordinator ◀──────── Loaded, Started, Exited ───────────── keeper ◀─SIGCHLD─ cell
    coordinator ◀───────────── a socket of its own ──────────────────────────────▶ cell

It loads the objective once and then forks a pristine copy of itself for every cell, so a cell is
there in milliseconds and shares what was loaded. Forking is only done while this process has one
thread and no CUDA; otherwise cells are started as new interpreters. It adopts every descendant
that lost its parent, so it can end those that left their cell's process group. When the
coordinator is gone it ends everything and itself.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pickle
import random
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supermax.engine import kernel, worker
from supermax.engine.logs import BoundedLog
from supermax.engine.outcome import describe
from supermax.engine.protocol import (
    CaptureLog,
    Channel,
    ConnectionLost,
    Exited,
    Loaded,
    LoadFailed,
    Preload,
    Setup,
    SignalCell,
    StartCell,
    Started,
)
from supermax.importing import gc_paused

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from supermax.engine.{module} import main; main(*map(int, sys.argv[2:]))"
)
_STRAY_PATIENCE = 5.0
_SAFE_THREADS = ("jemalloc_bg_thd",)  # jemalloc (pyarrow has it) prepares for a fork itself
LOADING = "SUPERMAX_LOADING"  # in the environment while the user's modules are imported


def command(module: str, *numbers: int) -> list[str]:
    """How to start one of the engine's processes, with the caller's view of the world."""
    path = [os.fspath(entry) for entry in sys.path]
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    if not sys.dont_write_bytecode:  # cache_bytecode() may have changed it
        flags = [flag for flag in flags if flag != "-B"]
        if sys.pycache_prefix is not None:  # also with -E, which ignores the environment
            flags += ["-X", f"pycache_prefix={sys.pycache_prefix}"]
    boot = _BOOT.format(module=module)
    return [sys.executable, *flags, "-P", "-c", boot, json.dumps(path), *map(str, numbers)]


@dataclass
class _Log:
    cell: int
    fd: int
    file: BoundedLog


class Keeper:
    """State of the one loop below. `cells` are alive; `logs` are output pipes still open."""

    def __init__(self, channel: Channel, setup: Setup, blob: int) -> None:
        self.channel = channel
        self.setup = setup
        self.blob = blob
        self.objective: Callable[..., Any] | None = None
        self.forks = False
        self.cells: dict[int, int] = {}  # pid -> cell
        self.own: set[int] = set()
        self.logs: dict[int, _Log] = {}  # fd -> log
        self.wake: tuple[int, ...] = ()
        self.selector = selectors.DefaultSelector()
        self.restore_random: Callable[[], None] = lambda: None

    def load(self) -> bool:
        """Load the objective and find out whether cells can be forked from here."""
        before = _random_states()
        os.environ[LOADING] = "1"
        try:
            self.objective = worker.load_objective(self.blob)
        except BaseException as error:  # whatever the user's modules do at import
            raised = describe(error)
            self.channel.send(LoadFailed(f"{raised.type}: {raised.message}", raised.traceback))
            return False
        del os.environ[LOADING]
        if self.setup.fresh:
            _import_what_comes_late()
        _preload(self.objective)
        self.own = set(kernel.children())  # helpers that the user's modules have started
        why_not = _why_not_fork()
        self.forks = why_not is None
        self.restore_random = _random_for_cells(before)
        gc.collect()
        gc.freeze()  # shared pages stay shared: the collector does not touch them in the cells
        self.channel.send(Loaded(why_not))
        return True

    def run(self) -> Callable[[], None] | None:
        """Serve until the coordinator is gone. In a forked cell, returns that cell's life."""
        self.wake = wake_r, wake_w = os.pipe()
        os.set_blocking(wake_r, False)
        os.set_blocking(wake_w, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        self.selector.register(wake_r, selectors.EVENT_READ)
        self.selector.register(self.channel, selectors.EVENT_READ)
        with contextlib.suppress(ConnectionLost):
            while True:
                for key, _ in self.selector.select():
                    if key.fd == wake_r:
                        os.read(wake_r, 4096)
                    elif key.fileobj is self.channel:
                        if life := self.obey():
                            return life
                    elif key.fd in self.logs:
                        self.pump(self.logs[key.fd])
                self.reap()
        self.end_everything()
        return None

    def obey(self) -> Callable[[], None] | None:
        for message in self.channel.waiting():
            match message:
                case StartCell():
                    if life := self.start_cell(message, self.channel.take_fd()):
                        return life
                case CaptureLog(cell, path):
                    fd = self.channel.take_fd()
                    os.set_blocking(fd, False)
                    self.logs[fd] = _Log(cell, fd, BoundedLog(Path(path)))
                    self.selector.register(fd, selectors.EVENT_READ)
                case SignalCell(cell, signum, group):
                    self.signal(cell, signum, group)
        return None

    def start_cell(self, request: StartCell, fd: int) -> Callable[[], None] | None:
        try:
            pid = os.fork() if self.forks else self.spawn(request, fd)
        except OSError:  # no process to be had just now: a cell that never came up, no more
            os.close(fd)
            self.channel.send(Exited(request.cell, 1, None, 0, 0))
            return None
        if pid == 0:
            return self.become_cell(request, fd)
        os.close(fd)
        self.cells[pid] = request.cell
        self.channel.send(Started(request.cell, pid))
        return None

    def spawn(self, request: StartCell, fd: int) -> int:
        fresh = int(self.setup.fresh)
        args = command("worker", fd, self.blob, os.getpid(), fresh)
        os.set_inheritable(fd, True)
        os.set_inheritable(self.blob, True)
        return os.posix_spawn(args[0], args, {**os.environ, **request.env}, setsid=True)

    def become_cell(self, request: StartCell, fd: int) -> Callable[[], None]:
        """In the forked child: let go of all that is the keeper's; say how life goes on."""
        parent = os.getppid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.selector.close()
        self.channel.close()
        for inherited in (*self.wake, *self.logs, self.blob):
            os.close(inherited)
        os.setsid()
        os.environ.update(request.env)
        self.restore_random()
        objective = self.objective
        assert objective is not None
        channel = Channel(socket.socket(fileno=fd))
        return lambda: worker.live(channel, objective, parent=parent, once=self.setup.fresh)

    def signal(self, cell: int, signum: int, group: bool) -> None:
        for pid, known in self.cells.items():
            if known == cell:
                if group:
                    kernel.kill_group(pid, signum)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signum)  # before it made its own group

    def pump(self, log: _Log) -> None:
        """Move what a trial has written from its pipe to its log."""
        while True:
            try:
                data = os.read(log.fd, 1 << 20)
            except BlockingIOError:
                return
            if not data:
                self.close_log(log)
                return
            log.file.write(data)
            if len(data) < 1 << 15:
                return

    def close_log(self, log: _Log) -> None:
        self.selector.unregister(log.fd)
        os.close(log.fd)
        log.file.close()
        del self.logs[log.fd]

    def reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if (cell := self.cells.pop(pid, None)) is not None:
                strays = self.end_strays(pid)
                for log in [log for log in self.logs.values() if log.cell == cell]:
                    self.pump(log)
                    if log.fd in self.logs:
                        self.close_log(log)
                rss = usage.ru_maxrss * (1024 if kernel.LINUX else 1)
                self.channel.send(Exited(cell, *_how(status), rss, strays))

    def end_strays(self, pgid: int | None) -> int:
        """End what a dead cell left: its group, and descendants that left the group.

        A cell adopts its own orphans while it lives, so a child of ours that is no living cell
        can only come from a cell that is dead.
        """
        if pgid is not None:
            kernel.kill_group(pgid, signal.SIGKILL)
        ended: set[int] = set()
        deadline = time.monotonic() + _STRAY_PATIENCE
        while strays := [pid for pid in kernel.children() if pid not in {*self.cells, *self.own}]:
            for pid in strays:
                if not kernel.is_zombie(pid):
                    ended.add(pid)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            for pid in strays:
                with contextlib.suppress(ChildProcessError):
                    if os.waitpid(pid, os.WNOHANG)[0] == 0:
                        time.sleep(0.002)  # killed; its end is a matter of the kernel's moments
            if time.monotonic() > deadline:  # stuck in the kernel: the next sweep finds it
                break
        return len(ended)

    def end_everything(self) -> None:
        for cell in list(self.cells.values()):
            self.signal(cell, signal.SIGKILL, group=True)
        self.cells.clear()
        self.own.clear()
        self.end_strays(None)
        for log in list(self.logs.values()):
            self.pump(log)


def _how(status: int) -> tuple[int | None, int | None]:
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


def _why_not_fork() -> str | None:
    """A reason not to fork cells from this process, or None."""
    if not kernel.LINUX:
        return "this platform has no safe fork"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "loading the objective started CUDA"
    if _other_threads():
        # Some libraries (OpenBLAS) end their threads before a fork and restart them on demand.
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        if others := _other_threads():
            return f"loading the objective started {len(others)} thread(s)"
    return None


def _import_what_comes_late() -> None:
    """torch imports a large part of itself when the first optimizer is made, which takes more
    than a second: once here, instead of in every cell."""
    if "torch" in sys.modules:
        with contextlib.suppress(Exception):
            importlib.import_module("torch._dynamo")


def _preload(objective: Any) -> None:
    """An objective may have a method of this name, for what all its trials import: it is done
    once, in the process that they are forked from. What goes wrong here goes wrong there."""
    with contextlib.suppress(Exception):
        objective.preload()


def _other_threads() -> list[str]:
    """Names of threads beside this one that a fork would cut off in the middle of something."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            if int(task.name) != os.getpid():
                names.append((task / "comm").read_text().strip())
    return [name for name in names if name not in _SAFE_THREADS]


def _random_states() -> tuple[Any, Any]:
    numpy = sys.modules.get("numpy")
    return random.getstate(), numpy.random.get_state() if numpy else None


def _random_for_cells(before: tuple[Any, Any]) -> Callable[[], None]:
    """Every cell starts as a new process would: at the seed that the user's modules set while
    they were imported, or at a random state of its own where they set none."""
    python_now, numpy_now = _random_states()
    python_seeded = python_now != before[0]
    numpy_seeded = pickle.dumps(numpy_now) != pickle.dumps(before[1])

    def restore() -> None:
        random.setstate(python_now) if python_seeded else random.seed()
        if numpy := sys.modules.get("numpy"):
            numpy.random.set_state(numpy_now) if numpy_seeded else numpy.random.seed()

    return restore


def _set_up(setup: Setup, log: int) -> None:
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    for name, value in setup.env.items():
        kernel.show_in_environ(name, value)
    os.environ.update(setup.env)
    sys.argv[:] = setup.argv


def main(control: int, blob: int, parent: int) -> None:
    kernel.die_with_parent(parent)  # until the loop below can notice by itself
    kernel.adopt_orphans()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored, it would hide all ends
    channel = Channel(socket.socket(fileno=control))
    try:
        setup = channel.receive()
        if isinstance(setup, Preload):
            with gc_paused(), contextlib.suppress(Exception):  # trials meet the same errors
                importlib.import_module(setup.module).preload(*setup.arguments)
            setup = channel.receive()
        assert isinstance(setup, Setup)
        _set_up(setup, channel.take_fd())
        keeper = Keeper(channel, setup, blob)
        if not keeper.load():
            return
    except ConnectionLost:
        return
    kernel.outlive_parent()
    life = keeper.run()
    del keeper
    if life is not None:
        life()
