"""The supervisor: what it decides, and real processes that die under it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supermax.engine.processes import supervisor
from supermax.engine.processes.supervisor import Exit, Restart, decide_restart
from supermax.errors import Quarantined
from supermax.ui.cli import exit_code
from tests.conftest import eventually, ignoring

STOPS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
PROGRAM = """
import os, pathlib, signal, sys, time
count = pathlib.Path("count")
n = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(n))
beat = lambda: os.write(int(os.environ["SUPERMAX_BEAT"]), b".")
"""
RUNNER = """
import os, sys
from supermax.engine.processes import supervisor
supervisor._FIRST_PAUSE = 0.02
supervisor._LONGEST_PAUSE = 0.05
say = lambda text: print(text, file=sys.stderr, flush=True)
def program():
    os.set_inheritable(int(os.environ["SUPERMAX_BEAT"]), True)
    os.execv(sys.executable, [sys.executable, "program.py"])
sys.exit(supervisor.Supervisor(program, say).run())
"""


def start(folder: Path, program: str, ignored: Sequence[int] = ()) -> subprocess.Popen[str]:
    (folder / "program.py").write_text(PROGRAM + program)
    command = [*ignoring(*ignored), sys.executable, "-c", RUNNER]
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)


def test_a_quarantined_run_has_its_own_exit_code_and_is_not_restarted() -> None:
    code = exit_code(Quarantined("bad"))
    assert code == supervisor.QUARANTINED == 6
    assert decide_restart(code, 1, 0) == Exit(6)


def execute() -> int:
    """Run the program in the forked child, which never returns to the tests."""
    try:
        os.set_inheritable(int(os.environ[supervisor.BEAT]), True)
        os.execv(sys.executable, [sys.executable, "program.py"])
    finally:
        os._exit(99)


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], tuple[int, str]]]:
    """Run a supervisor in this process; return its exit code and its messages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE", 0.02)
    monkeypatch.setattr(supervisor, "_LONGEST_PAUSE", 0.05)

    def supervised(program: str) -> tuple[int, str]:
        (tmp_path / "program.py").write_text(PROGRAM + program)
        said: list[str] = []
        code = supervisor.Supervisor(execute, said.append).run()
        return code, "\n".join(said)

    before = {s: signal.getsignal(s) for s in (*STOPS, signal.SIGCHLD, signal.SIGTTOU)}
    yield supervised
    for signum, handler in before.items():
        signal.signal(signum, handler)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    said = process.communicate(timeout=30)[1]
    return process.returncode, said


def starts(folder: Path) -> int:
    return int((folder / "count").read_text())


@given(st.integers(-31, 255), st.integers(1, 100), st.sampled_from([0, *STOPS[1:]]))
def test_a_run_that_ended_of_its_own_accord_is_never_started_again(
    code: int, deaths: int, asked: int
) -> None:
    decision = decide_restart(code, deaths, asked)
    prevented = code == supervisor.ENVIRONMENT and deaths > 1 and not asked
    abnormal = code == 1 or prevented or (code < 0 and -code not in STOPS)
    assert isinstance(decision, Restart) == (abnormal and not asked and deaths < 10)
    if isinstance(decision, Restart):
        assert 0 < decision.delay <= 60
    elif abnormal and asked:
        assert decision.code == 128 + asked
    else:
        assert decision.code == (code if code >= 0 else 143 if code == -1 else 128 - code)


def test_pauses_grow_and_end() -> None:
    pauses = [decide_restart(-9, deaths, 0) for deaths in range(1, 11)]
    assert [p.delay for p in pauses if isinstance(p, Restart)][:4] == [1, 2, 4, 8]
    assert pauses[-1] == Exit(137, gave_up=True)


def test_a_killed_run_is_started_again_until_it_is_done(
    tmp_path: Path, run: Callable[[str], tuple[int, str]]
) -> None:
    code, said = run("if n < 4: os.kill(os.getpid(), signal.SIGKILL)")
    assert (code, starts(tmp_path)) == (0, 4)
    assert said.count("SIGKILL") == 3


@pytest.mark.slow
def test_a_run_that_finishes_trials_may_die_as_often_as_it_likes(
    tmp_path: Path, run: Callable[[str], tuple[int, str]]
) -> None:
    code, _ = run("beat()\nif n < 15: os._exit(1)")
    assert (code, starts(tmp_path)) == (0, 15)


def test_one_that_finishes_none_is_given_up(
    tmp_path: Path, run: Callable[[str], tuple[int, str]]
) -> None:
    code, said = run("os._exit(1)")
    assert (code, starts(tmp_path)) == (1, 10)
    assert "10 times in a row without finishing a trial" in said


def test_a_killed_run_waits_for_a_machine_that_prevents_its_restart(
    tmp_path: Path, run: Callable[[str], tuple[int, str]]
) -> None:
    code, said = run("if n == 1: os.kill(os.getpid(), signal.SIGKILL)\nsys.exit(3 * (n < 4))")
    assert (code, starts(tmp_path)) == (0, 4)
    assert said.count("The run cannot go on yet. It restarts in") == 2


def test_a_run_that_has_finished_a_trial_since_its_restart_ends_with_its_own_code(
    tmp_path: Path, run: Callable[[str], tuple[int, str]]
) -> None:
    code, _ = run("if n == 1: os.kill(os.getpid(), signal.SIGKILL)\nbeat()\nsys.exit(3)")
    assert (code, starts(tmp_path)) == (3, 2)


@pytest.mark.parametrize("code", [2, 3, 4, 5])
def test_a_mistake_is_not_tried_again(
    tmp_path: Path, code: int, run: Callable[[str], tuple[int, str]]
) -> None:
    assert run(f"sys.exit({code})")[0] == code
    assert starts(tmp_path) == 1


WAITS = """
from supermax.engine.processes import supervisor
supervisor.follow()()
got = []
def heard(signum, frame):
    got.append(signum)
    pathlib.Path("heard").write_text(" ".join(map(str, got)))
    if len(got) == 2 or signum == signal.SIGTERM:
        sys.exit(130)
for s in (signal.SIGINT, signal.SIGTERM): signal.signal(s, heard)
pathlib.Path("ready").write_text(str(os.getpid()))
while True: time.sleep(0.05)
"""


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = start(tmp_path, WAITS)
    ready = tmp_path / "ready"
    assert eventually(lambda: ready.exists() and ready.read_text() != "")
    yield process
    process.kill()
    process.communicate()


def heard(folder: Path) -> list[int]:
    file = folder / "heard"
    return [int(n) for n in file.read_text().split()] if file.exists() else []


def test_each_signal_is_passed_on_once(waiting: subprocess.Popen[str], tmp_path: Path) -> None:
    waiting.send_signal(signal.SIGINT)
    assert eventually(lambda: heard(tmp_path) == [signal.SIGINT])
    waiting.send_signal(signal.SIGTERM)  # another one: had the first come twice, that would show
    assert finish(waiting)[0] == 130
    assert heard(tmp_path) == [signal.SIGINT, signal.SIGTERM]
    assert starts(tmp_path) == 1


def test_a_closed_terminal_pauses_the_run(waiting: subprocess.Popen[str], tmp_path: Path) -> None:
    waiting.send_signal(signal.SIGHUP)
    finish(waiting)
    assert heard(tmp_path) == [signal.SIGTERM]


def test_under_nohup_and_behind_a_shells_ampersand_ignored_signals_stay_ignored(
    tmp_path: Path,
) -> None:
    process = start(tmp_path, WAITS, ignored=(signal.SIGHUP, signal.SIGINT))
    try:
        assert eventually(lambda: (tmp_path / "ready").exists())
        for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            process.send_signal(signum)
        assert finish(process)[0] == 130  # as WAITS ends
    finally:
        process.kill()
    assert heard(tmp_path) == [signal.SIGTERM]


def test_where_sigchld_is_ignored_deaths_are_seen(tmp_path: Path) -> None:
    """Then the kernel keeps no exit codes, and there would be nothing to wait for."""
    program = "if n < 3: os.kill(os.getpid(), signal.SIGKILL)\nsys.exit(4)"
    code, said = finish(start(tmp_path, program, ignored=(signal.SIGCHLD,)))
    assert (code, starts(tmp_path)) == (4, 3)
    assert said.count("SIGKILL") == 2


def test_where_sigchld_is_blocked_deaths_are_seen(tmp_path: Path) -> None:
    """A program inherits the signal mask of the one that starts it."""
    blocked = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])\n"
    (tmp_path / "program.py").write_text(PROGRAM + "sys.exit(4)")
    process = subprocess.Popen(
        [sys.executable, "-c", blocked + RUNNER], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    try:
        assert finish(process)[0] == 4
    finally:
        process.kill()


def test_term_ends_the_run_also_where_it_was_ignored_from_the_start(tmp_path: Path) -> None:
    program = "pathlib.Path('ready').touch()\ntime.sleep(60)"
    process = start(tmp_path, program, ignored=(signal.SIGTERM,))
    assert eventually((tmp_path / "ready").exists)
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 143
    assert starts(tmp_path) == 1


# Children that are functions, as a search is.
FUNCTION = """
import os, pathlib, sys
from supermax.engine.processes import supervisor
supervisor._FIRST_PAUSE = supervisor._LONGEST_PAUSE = 0.02
def child():
    n = len(list(pathlib.Path().glob("start-*"))) + 1
    pathlib.Path(f"start-{n}").touch()
    beat = supervisor.follow()
    CHILD
print("once", end="")
say = lambda text: print(text, file=sys.stderr, flush=True)
sys.exit(supervisor.Supervisor(child, say).run())
"""


@pytest.mark.parametrize(
    ("child", "code", "starts"),
    [
        ("return 4", 4, 1),
        ("return 0 if n == 3 else os.kill(os.getpid(), 9)", 0, 3),
        ("if n < 3: raise RuntimeError\n    return 5", 5, 3),
        ("raise SystemExit(2)", 2, 1),
        ("raise KeyboardInterrupt", 130, 1),
        ("beat()\n    return 0 if n == 12 else os._exit(1)", 0, 12),
        ("print(' and later', end=''); return 0 if supervisor.restarts() == 0 else 9", 0, 1),
    ],
)
def test_a_function_is_run_in_a_fork(tmp_path: Path, child: str, code: int, starts: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FUNCTION.replace("CHILD", child)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, len(list(tmp_path.glob("start-*")))) == (code, starts), done.stderr
    assert done.stdout == "once" + " and later" * ("later" in child)  # no buffer is written twice


def test_a_machine_that_is_full_for_a_moment_costs_a_pause(
    tmp_path: Path, run: Callable[[str], tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, full = os.fork, [True, True]

    def fork() -> int:
        if full and full.pop():
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return real()

    monkeypatch.setattr(os, "fork", fork)
    code, said = run("sys.exit(4)")
    assert (code, starts(tmp_path)) == (4, 1)
    assert said.count("cannot be started: Resource temporarily unavailable") == 2


def test_when_the_supervisor_is_killed_the_run_pauses(
    waiting: subprocess.Popen[str], tmp_path: Path
) -> None:
    child = int((tmp_path / "ready").read_text())
    waiting.kill()
    assert eventually(lambda: not psutil.pid_exists(child))
    assert heard(tmp_path) == [signal.SIGTERM]


def test_a_signal_in_a_pause_ends_it(tmp_path: Path) -> None:
    slow = RUNNER.replace("0.02", "30").replace("0.05", "30")
    (tmp_path / "program.py").write_text(PROGRAM + "os._exit(1)")
    process = subprocess.Popen(
        [sys.executable, "-c", slow], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert "restarts in" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(5) == 143
    process.stderr.close()


BARE = """
from supermax.engine.processes import supervisor
supervisor.follow()()
sys.exit(2 if supervisor.is_supervised() else 0)
"""


def test_what_the_run_starts_is_not_supervised(
    tmp_path: Path, run: Callable[[str], tuple[int, str]]
) -> None:
    assert run(BARE)[0] == 0
    assert not supervisor.is_supervised()


def test_a_signal_while_the_run_is_being_started_is_not_lost(
    tmp_path: Path,
    run: Callable[[str], tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = os.fork

    def slow() -> int:
        pid = real()
        if pid:
            os.kill(os.getpid(), signal.SIGTERM)
        return pid

    monkeypatch.setattr(os, "fork", slow)
    assert run("time.sleep(60)")[0] == 143


def test_a_signal_that_another_thread_receives_is_not_lost(
    tmp_path: Path, run: Callable[[str], tuple[int, str]]
) -> None:
    def receive() -> None:
        eventually((tmp_path / "count").exists)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    receiver = threading.Thread(target=receive)
    receiver.start()
    code = run("time.sleep(20)")[0]
    receiver.join()
    assert code == 143


def test_a_signal_that_comes_while_another_is_passed_on_is_not_lost(
    tmp_path: Path,
    run: Callable[[str], tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = os.kill
    sent: list[int] = []

    def send(pid: int, signum: int) -> None:
        if not sent:
            real(os.getpid(), signal.SIGTERM)  # its handler interrupts that of SIGINT
        sent.append(signum)
        real(pid, signum)

    monkeypatch.setattr(os, "kill", send)
    code, _ = run(
        "got = []\n"
        "for s in (signal.SIGINT, signal.SIGTERM): signal.signal(s, lambda s, _: got.append(s))\n"
        "os.kill(os.getppid(), signal.SIGINT)\n"
        "end = time.monotonic() + 30\n"
        "while len(got) < 2 and time.monotonic() < end: time.sleep(0.01)\n"
        "sys.exit(len(got))"
    )
    assert code == 2
    assert sent == [signal.SIGINT, signal.SIGTERM]


def test_the_fork_has_the_handlers_of_before(
    run: Callable[[str], tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal that comes first of all must end it, not reach the supervisor's own handler."""
    real = os.fork

    def struck() -> int:
        pid = real()
        if pid:
            os.kill(pid, signal.SIGTERM)
        return pid

    monkeypatch.setattr(os, "fork", struck)
    assert run("time.sleep(60)")[0] == 143
