"""Fixtures: a study on disk, short pauses, and a check that no process is left."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import optuna
import psutil
import pytest
from alembic.script import ScriptDirectory
from optuna.storages import RDBStorage
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from supermax.engine.jobs import policy
from supermax.engine.processes import pool
from supermax.engine.processes.prestart import _PLACEHOLDER, TAG
from supermax.engine.run import deadlines
from supermax.engine.storage.sqlite import file_of_url
from tests.preloading import Template, forked_from

optuna.logging.set_verbosity(optuna.logging.WARNING)
hypothesis.settings.register_profile("any machine", deadline=None)  # some are slow now and then
hypothesis.settings.load_profile("any machine")
PATIENCE = 10.0  # seconds for what a test has started to end
_BUSY = 5  # times slower than it could be, at most
_TRACKER = "from multiprocessing.resource_tracker import main"  # it stays as long as its parent


def _start_children_with_default_signals() -> None:
    """Reset signals that the parent ignores or blocks, as `nohup make test &` does.

    A child inherits what is ignored, but not a handler. So this run goes on ignoring a hang-up
    and so on, and the programs that tests start are stopped by it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("HUP", "QUIT", "TERM", "USR1", "USR2", "ALRM", "TSTP", "TTIN", "TTOU", "CONT"):
        signum = signal.Signals[f"SIG{name}"]
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, lambda *_: None)
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _use_own_folder(worker: str) -> None:
    """Have this run and its processes leave their files in one folder, except pytest's own.
    Workers share it."""
    if _FOLDER not in os.environ:
        root = _fastest_folder()
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", root)
        os.environ[_FOLDER] = tempfile.mkdtemp(prefix="smx-", dir=root)  # short: paths of sockets
        Path(os.environ[_FOLDER]).chmod(0o1777)  # tests become other users
        # Registered before torch is imported, this runs after torch has written there once more.
        atexit.register(_remove_own_folder, os.getpid())
    os.environ["TMPDIR"] = tempfile.tempdir = os.environ[_FOLDER]
    os.environ["XDG_CACHE_HOME"] = str(Path(os.environ[_FOLDER]) / f"cache-{worker}")


def _fastest_folder() -> str:
    """Return a folder in memory with enough room, in which programs may run; else, or if TMPDIR is
    set, the usual one. On a disk, a third of the time of the tests is waiting for it."""
    memory = Path("/dev/shm")
    if "TMPDIR" not in os.environ and memory.is_dir() and os.access(memory, os.W_OK):
        found = os.statvfs(memory)
        if found.f_bavail * found.f_frsize >= _ROOM and not found.f_flag & os.ST_NOEXEC:
            return str(memory)
    return tempfile.gettempdir()


def _remove_own_folder(owner: int) -> None:
    if os.getpid() == owner:  # and no fork of it
        shutil.rmtree(os.environ[_FOLDER], ignore_errors=True)


_ROOM = 4 << 30  # bytes
_FOLDER = "SUPERMAX_TEST_FOLDER"
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "alone")
if os.environ.get("SUPERMAX_TEST_WORKER") != _WORKER:  # its cells read this file as well
    os.environ["SUPERMAX_TEST_WORKER"] = _WORKER
    _use_own_folder(_WORKER)
    os.environ.setdefault("ONEDNN_JIT_PROFILE", "0")  # else /tmp/perf-PID.map on ARM
    os.environ["SUPERMAX_MODELS"] = "tiny"  # what `init` writes, whatever is installed here
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run beside each other
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as runs set it for their processes
    os.environ["SUPERMAX_TEST_SESSION"] = str(os.getpid())  # other runs here are not ours
    _start_children_with_default_signals()


_running: dict[str, float] = {}  # tests that have started, with the time


def pytest_configure(config: pytest.Config) -> None:
    """Name the running tests if this run is terminated, for example by the time limit of CI."""
    terminates = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if terminates and not hasattr(config, "workerinput"):
        signal.signal(signal.SIGTERM, _name_running_tests)


def pytest_runtest_logstart(nodeid: str) -> None:
    _running[nodeid] = time.monotonic()


def pytest_runtest_logfinish(nodeid: str) -> None:
    _running.pop(nodeid, None)


def _name_running_tests(signum: int, _frame: object) -> None:
    now = time.monotonic()
    lines = [f"{nodeid}, running for {now - since:.0f} s" for nodeid, since in _running.items()]
    os.write(2, "\n".join(["", "Terminated during these tests:", *lines, ""]).encode())
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses of retries and shutdown."""
    monkeypatch.setattr(deadlines, "_TERM_GRACE", 0.3)
    monkeypatch.setattr(deadlines, "_STOP_GRACE", 1.0)
    monkeypatch.setattr(pool, "_EXIT_TIMEOUT", 1.0)
    monkeypatch.setattr(policy, "_BACK_OFF", 0.01)
    monkeypatch.setattr(policy, "_LONGEST_FREE_BACK_OFF", 0.01)


@pytest.fixture(scope="session")
def template() -> Iterator[Template]:
    """Process that has imported torch and transformers, as trials of the agents need them."""
    one = Template("supermax.tasks.objective", "torch._dynamo", "sklearn.metrics")
    yield one
    one.end()


@pytest.fixture(scope="session")
def engine_template() -> Iterator[Template]:
    """Process that has imported what trials without torch need."""
    one = Template("tests.conftest", "supermax.run", "supermax.space")
    yield one
    one.end()


@pytest.fixture
def preloaded(request: pytest.FixtureRequest, template: Template) -> Iterator[None]:
    """Fork the fork servers of a test's runs from the template. Slow tests start them as users
    do."""
    slow = request.node.get_closest_marker("slow")
    with contextlib.nullcontext() if slow else forked_from(template):
        yield


@pytest.fixture
def engine_preloaded(request: pytest.FixtureRequest, engine_template: Template) -> Iterator[None]:
    """Do as `preloaded`, for objectives without torch."""
    slow = request.node.get_closest_marker("slow")
    with contextlib.nullcontext() if slow else forked_from(engine_template):
        yield


@pytest.fixture(autouse=True)
def nothing_left_running() -> Iterator[None]:
    """Fail a test whose processes outlive it."""
    before = set(psutil.pids())  # one that has just started has no environment yet

    def left() -> dict[int, str]:
        return {pid: line for pid, line in session_processes().items() if pid not in before}

    yield
    if not eventually(lambda: not left(), PATIENCE):
        found = left()
        eventually(lambda: not _kill(left()))  # a supervisor's child may start others meanwhile
        _forget(found)
        pytest.fail(f"left running: {found}")


def _kill(pids: Iterable[int]) -> bool:
    """Kill these processes. Return True if there were any."""
    pids = list(pids)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(pids)


def _forget(killed: Iterable[int]) -> None:
    """Close the resources of these processes, which the garbage collector would report in a later
    test."""
    for thing in gc.get_objects():
        if isinstance(thing, subprocess.Popen) and thing.pid in killed:
            thing.wait()
            for stream in (thing.stdin, thing.stdout, thing.stderr):
                if stream is not None:
                    stream.close()


def session_processes() -> dict[int, str]:
    """Return the processes that this run of the tests has started, each with its command line."""
    return {
        pid: line for pid, (line, _) in _session_processes().items() if not line.count(_TRACKER)
    }


def engine_processes() -> list[int]:
    """Return the pids of fork servers and cells of runs."""
    found = _session_processes().items()
    return [pid for pid, (_, env) in found if env.get(TAG, _PLACEHOLDER) != _PLACEHOLDER]


def _session_processes() -> dict[int, tuple[str, dict[str, str]]]:
    session = os.environ["SUPERMAX_TEST_SESSION"]
    found = {}
    for pid in _marked(f"SUPERMAX_TEST_SESSION={session}"):
        with contextlib.suppress(psutil.Error, OSError):  # gone, a zombie, or somebody else's
            process = psutil.Process(pid)
            found[pid] = (" ".join(process.cmdline())[:80], process.environ())
    return found


_others: set[int] = set()  # processes that this run of the tests has not started


def _marked(variable: str) -> list[int]:
    """Return the other processes with this environment variable. Every test asks for them, so
    the environment of a process without it is read once."""
    pids = set(psutil.pids()) - {os.getpid()}
    _others.intersection_update(pids)
    marked = []
    for pid in pids - _others:
        with contextlib.suppress(psutil.Error, OSError):  # gone, a zombie, or somebody else's
            if sys.platform == "linux":
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            else:
                items = psutil.Process(pid).environ().items()
                environment = [f"{name}={value}".encode() for name, value in items]
            if variable.encode() in environment:
                marked.append(pid)
            elif environment != [b""]:  # of a process that begins or ends
                _others.add(pid)
    return marked


def ignoring(*signals: int, blocked: bool = False) -> list[str]:
    """Return the start of a command line: what follows is run with these signals ignored, as
    `nohup` and a shell's `&` do, or blocked."""
    how = "signal.pthread_sigmask(signal.SIG_BLOCK, [s])" if blocked else "signal.signal(s, 1)"
    program = f"import os, signal, sys\nfor s in {[int(s) for s in signals]}: {how}\n"
    return [sys.executable, "-c", f"{program}os.execv(sys.argv[1], sys.argv[1:])"]


def eventually(condition: Callable[[], bool], within: float = 10.0) -> bool:
    """Wait for a condition with a deadline: `within` seconds where the machine has nothing else
    to do, and several times as long anywhere, since only a failure takes that long."""
    deadline = time.monotonic() + _BUSY * within
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture(scope="session", autouse=True)
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a file with Optuna's tables. New SQLite files of this process are copies of it, and
    the migrations of Optuna's tables are read once: either takes longer than most trials here."""
    create, head = RDBStorage.__init__, ScriptDirectory.get_current_head
    heads: dict[str, str | None] = {}
    file = tmp_path_factory.mktemp("empty") / "study.db"
    RDBStorage(f"sqlite:///{file}").engine.dispose()

    def copy(self: RDBStorage, url: str, *args: Any, **options: Any) -> None:
        with contextlib.suppress(OSError, ArgumentError, ValueError):  # creating it raises them
            new = file_of_url(make_url(url)) if url.startswith("sqlite") else None
            if new is not None and not new.exists():
                shutil.copyfile(file, new)
        create(self, url, *args, **options)

    def read_once(self: ScriptDirectory) -> str | None:
        if self.dir not in heads:
            heads[self.dir] = head(self)
        return heads[self.dir]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptDirectory, "get_current_head", read_once)
        patch.setattr(RDBStorage, "__init__", copy)
        yield file


@pytest.fixture
def url(tmp_path: Path, empty_database: Path) -> str:
    shutil.copy(empty_database, tmp_path / "study.db")
    return f"sqlite:///{tmp_path}/study.db"


@pytest.fixture
def study(url: str) -> optuna.Study:
    return optuna.create_study(
        storage=url, study_name="test", sampler=optuna.samplers.RandomSampler(seed=1)
    )
