"""Fork server: starts cells, reaps them, and kills the processes they leave behind.

    coordinator ── Setup, StartCell, CaptureLog, SignalCell ──▶ fork server ──fork──▶ cell
    coordinator ◀── ObjectiveLoaded, Started, Exited ──────── fork server ◀─SIGCHLD─ cell
    coordinator ◀───────────── a socket of its own ──────────────────────────────▶ cell

It loads the objective once and forks a pristine copy of itself for every cell: a cell starts in
milliseconds and shares the loaded pages. It forks only while it has a single thread and no CUDA
context; otherwise cells start as new interpreters. It is a child subreaper, so it can kill
descendants that left their cell's process group. When the coordinator is gone it kills all cells
and exits.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from supermax._util import system
from supermax._util.importing import gc_paused
from supermax._util.text import counted
from supermax.engine.processes import random_states
from supermax.engine.processes.cell import Objective, load_objective, serve_tasks
from supermax.engine.processes.descriptors import nonblocking_pipe
from supermax.engine.processes.protocol import (
    CaptureLog,
    Channel,
    ConnectionLost,
    Exited,
    LoadFailed,
    ObjectiveLoaded,
    Output,
    Preload,
    Setup,
    SignalCell,
    StartCell,
    Started,
)
from supermax.engine.processes.random_states import RandomStates
from supermax.engine.storage.logs import BoundedLog
from supermax.engine.trial.outcome import describe

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from supermax.engine.processes.{module} import main; main(*map(int, sys.argv[2:]))"
)
_KILL_TIMEOUT = 5.0  # seconds
_SAFE_THREADS = ("jemalloc_bg_thd",)  # jemalloc (in pyarrow) has fork handlers of its own
LOADING = "SUPERMAX_LOADING"
"""Environment variable that is set while the user's modules are imported."""


def command(module: str, *numbers: int) -> list[str]:
    """Return the command line that starts `main` of an engine module, with this process's sys.path
    and interpreter flags. `numbers` are its arguments."""
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
    write: Callable[[bytes], None]
    close: Callable[[], None]


class ForkServer:
    """Event loop over the coordinator's socket, SIGCHLD and the output pipes of the cells.

    `blob` is the descriptor of the pickled objective.
    """

    def __init__(self, channel: Channel, setup: Setup, blob: int) -> None:
        self.channel = channel
        self.setup = setup
        self.blob = blob
        self.objective: Objective | None = None
        self.forks = False  # True: cells are forked, not spawned
        self.cells: dict[int, int] = {}  # pid -> number, of live cells
        self.own_children: set[int] = set()
        self.logs: dict[int, _Log] = {}  # fd -> log, of open output pipes
        self.oom_kills_before: dict[int, int] = {}  # number of cell -> count before its task
        self.wake_fds: tuple[int, ...] = ()
        self.selector = selectors.DefaultSelector()
        self.restore_random: Callable[[], None] = lambda: None

    def load(self) -> bool:
        """Load the objective and report it to the coordinator; return whether that succeeded."""
        before = RandomStates.now()
        os.environ[LOADING] = "1"
        try:
            self.objective = load_objective(self.blob)
        except BaseException as error:  # imports run the user's code
            raised = describe(error)
            self.channel.send(LoadFailed(f"{raised.type}: {raised.message}", raised.traceback))
            return False
        del os.environ[LOADING]
        if self.setup.fresh:
            _import_torch_dynamo()
        _preload(self.objective)
        self.own_children = set(system.children())  # started by the user's modules
        why_not = _why_not_fork()
        self.forks = why_not is None
        self.restore_random = random_states.for_cells(before)
        gc.collect()
        gc.freeze()  # keeps pages shared: the collector does not write to them in the cells
        self.channel.send(ObjectiveLoaded(why_not))
        return True

    def run(self) -> Callable[[], None] | None:
        """Serve until the coordinator is gone, then return None. In a forked cell, return the
        function that runs it."""
        self.wake_fds = wake_r, wake_w = nonblocking_pipe()
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
                        if run_cell := self.handle_messages():
                            return run_cell
                    elif key.fd in self.logs:
                        self.copy_output(self.logs[key.fd])
                self.reap()
        self.kill_all()
        return None

    def handle_messages(self) -> Callable[[], None] | None:
        for message in self.channel.pending():
            match message:
                case StartCell():
                    if run_cell := self.start_cell(message, self.channel.take_fd()):
                        return run_cell
                case CaptureLog():
                    self.capture_log(message, self.channel.take_fd())
                case SignalCell(cell, signum, group):
                    self.signal(cell, signum, group)
        return None

    def start_cell(self, request: StartCell, fd: int) -> Callable[[], None] | None:
        try:
            pid = os.fork() if self.forks else self.spawn(request, fd)
        except OSError:  # the system refuses a process: reported as a cell that failed to start
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
        args = command("cell", fd, self.blob, os.getpid(), fresh)
        os.set_inheritable(fd, True)
        os.set_inheritable(self.blob, True)
        return os.posix_spawn(args[0], args, {**os.environ, **request.env}, setsid=True)

    def become_cell(self, request: StartCell, fd: int) -> Callable[[], None]:
        """Close the fork server's descriptors in the forked child; return the function that runs
        the cell."""
        parent = os.getppid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.selector.close()
        self.channel.close()
        for inherited in (*self.wake_fds, *self.logs, self.blob):
            os.close(inherited)
        os.setsid()
        os.environ.update(request.env)
        self.restore_random()
        objective = self.objective
        assert objective is not None
        channel = Channel(socket.socket(fileno=fd))
        return lambda: serve_tasks(channel, objective, parent=parent, once=self.setup.fresh)

    def signal(self, cell: int, signum: int, group: bool) -> None:
        for pid, known in self.cells.items():
            if known == cell:
                if group:
                    system.kill_group(pid, signum)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signum)  # it may not have called setsid yet

    def capture_log(self, request: CaptureLog, fd: int) -> None:
        os.set_blocking(fd, False)
        file = BoundedLog(Path(request.path))
        write, close = file.write, file.close
        if request.send:
            write, close = partial(self.send_output, request.path), lambda: None
        self.logs[fd] = _Log(request.cell, fd, write, close)
        self.oom_kills_before[request.cell] = system.oom_kills()
        self.selector.register(fd, selectors.EVENT_READ)

    def send_output(self, path: str, data: bytes) -> None:
        with contextlib.suppress(ConnectionLost):  # run() notices it
            self.channel.send(Output(path, base64.b64encode(data).decode()))

    def copy_output(self, log: _Log) -> None:
        """Copy the available output of a trial from its pipe to its log."""
        while True:
            try:
                data = os.read(log.fd, 1 << 20)
            except BlockingIOError:
                return
            if not data:
                self.close_log(log)
                return
            log.write(data)
            if len(data) < 1 << 15:
                return

    def close_log(self, log: _Log) -> None:
        self.selector.unregister(log.fd)
        os.close(log.fd)
        log.close()
        del self.logs[log.fd]

    def reap(self) -> None:
        """Collect exited cells, kill what they left, and report their exits."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if (cell := self.cells.pop(pid, None)) is not None:
                strays = self.kill_strays(pid)
                for log in [log for log in self.logs.values() if log.cell == cell]:
                    self.copy_output(log)
                    if log.fd in self.logs:
                        self.close_log(log)
                oom_kills = system.oom_kills()
                killed = oom_kills - self.oom_kills_before.pop(cell, oom_kills)
                rss = usage.ru_maxrss * (1024 if system.LINUX else 1)
                self.channel.send(Exited(cell, *_code_and_signal(status), rss, strays, killed))

    def kill_strays(self, pgid: int | None) -> int:
        """Kill what a dead cell left: its process group, and descendants outside it. Return their
        number, without the group.

        A live cell is a subreaper of its own orphans, so a child of this process that is no live
        cell can only come from a dead one.
        """
        if pgid is not None:
            system.kill_group(pgid, signal.SIGKILL)
        killed: set[int] = set()
        deadline = time.monotonic() + _KILL_TIMEOUT
        while strays := self.strays():
            for pid in strays:
                if not system.is_zombie(pid):
                    killed.add(pid)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            for pid in strays:
                with contextlib.suppress(ChildProcessError):
                    if os.waitpid(pid, os.WNOHANG)[0] == 0:
                        time.sleep(0.002)  # killed, but not yet reaped by the kernel
            if time.monotonic() > deadline:  # in uninterruptible sleep: the next call finds it
                break
        return len(killed)

    def strays(self) -> list[int]:
        known = {*self.cells, *self.own_children}
        return [pid for pid in system.children() if pid not in known]

    def kill_all(self) -> None:
        for cell in list(self.cells.values()):
            self.signal(cell, signal.SIGKILL, group=True)
        self.cells.clear()
        self.own_children.clear()
        self.kill_strays(None)
        for log in list(self.logs.values()):
            self.copy_output(log)


def _code_and_signal(status: int) -> tuple[int | None, int | None]:
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


def _why_not_fork() -> str | None:
    """Return why cells cannot be forked from this process; None: they can."""
    if not system.LINUX:
        return "this platform has no safe fork"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "loading the objective started CUDA"
    if _other_threads():
        # Some libraries (OpenBLAS) join their threads in a fork handler and restart them on
        # demand: only threads that survive a trial fork count.
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        if others := _other_threads():
            return f"loading the objective started {counted(len(others), 'thread')}"
    return None


def _import_torch_dynamo() -> None:
    """Import torch._dynamo once instead of in every cell: torch does so when the first optimizer
    is created, which takes more than a second."""
    if "torch" in sys.modules:
        with contextlib.suppress(Exception):
            importlib.import_module("torch._dynamo")


def _preload(objective: object) -> None:
    """Call the objective's method preload(), if it has one: it imports what all trials need once,
    before they are forked. Errors are ignored; the trials meet them again."""
    with contextlib.suppress(Exception):
        if (preload := getattr(objective, "preload", None)) is not None:
            preload()


def _other_threads() -> list[str]:
    """Return the names of the other threads that do not survive a fork."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has just ended
            if int(task.name) != os.getpid():
                names.append((task / "comm").read_text().strip())
    return [name for name in names if name not in _SAFE_THREADS]


def _set_up(setup: Setup, log: int) -> None:
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    for name, value in setup.env.items():
        system.show_in_environ(name, value)
    os.environ.update(setup.env)
    sys.argv[:] = setup.argv


def main(control: int, blob: int, parent: int) -> None:
    system.die_with_parent(parent)  # until run() notices the end of the socket
    system.adopt_orphans()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, wait4 has no exit statuses
    channel = Channel(socket.socket(fileno=control))
    try:
        setup = channel.receive()
        if isinstance(setup, Preload):
            with gc_paused(), contextlib.suppress(Exception):  # trials meet the same errors
                importlib.import_module(setup.module).preload(*setup.arguments)
            setup = channel.receive()
        assert isinstance(setup, Setup)
        _set_up(setup, channel.take_fd())
        fork_server = ForkServer(channel, setup, blob)
        if not fork_server.load():
            return
    except ConnectionLost:
        return
    system.outlive_parent()
    run_cell = fork_server.run()
    del fork_server
    if run_cell is not None:
        run_cell()
