"""A run that is started again when it dies: the supervisor's process and its decisions.

start ──▶ wait ──▶ decide(how it ended) ──▶ done, or start again after a pause
                       ▲ signals are passed on meanwhile
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from supermax.engine import kernel
from supermax.engine.faults import signal_name

REACHED, BUG, USER, ENVIRONMENT, HALTED, PAUSED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130
"""What a run's exit code says; 128 + N: ended by signal N."""
PARENT, BEAT = "SUPERMAX_SUPERVISOR", "SUPERMAX_BEAT"
RESTART, BEGAN = "SUPERMAX_RESTART", "SUPERMAX_BEGAN"
_MOST_DEATHS = 10
_LONGEST_PAUSE = 60.0
_FIRST_PAUSE = 1.0


@dataclass(frozen=True)
class Again:
    delay: float


@dataclass(frozen=True)
class Done:
    code: int
    gave_up: bool = False


def decide(code: int, deaths: int, asked: int) -> Again | Done:
    """What becomes of a run that ended with `code` (negative: of a signal). `deaths` are those in
    a row, this one included, without a trial finished in between; `asked` is the signal that was
    to stop it, or 0."""
    ended_by = meant(-code) if code < 0 else 0
    exit_code = 128 + ended_by if ended_by else code
    abnormal = code == BUG or ended_by not in (0, signal.SIGINT, signal.SIGTERM)
    if not abnormal:
        return Done(exit_code)
    if asked:  # it may have been too young to be stopped in order
        return Done(128 + asked)
    if deaths >= _MOST_DEATHS:
        return Done(exit_code, gave_up=True)
    return Again(min(_FIRST_PAUSE * 2 ** (deaths - 1), _LONGEST_PAUSE))


def meant(signum: int) -> int:
    """A terminal that was closed is no reason to lose what runs: it pauses as for TERM."""
    return signal.SIGTERM if signum == signal.SIGHUP else signum


class Supervisor:
    """Runs a function in a forked child, and forks again when it dies. The child has the imports
    and the settings of this process, also after a restart. Signals are for the child; the second
    Ctrl-C reaches it too."""

    def __init__(self, child: Callable[[], int], tell: Callable[[str], None]) -> None:
        self._run_child = child
        self._tell = tell
        self._child: int | None = None  # its pid
        self._asked: int = 0
        self._wake = -1
        self._before: dict[int, Any] = {}  # handlers of the signals that are passed on
        self._passing = False
        self._signals: deque[int] = deque()
        self._began = time.time()

    def run(self) -> int:
        """Return the exit code once the run has come to an end of its own. It is the last thing
        that a process does: of a storm of signals the later ones must not change how it ends. In
        the child it raises SystemExit with what the child returns."""
        me = os.getpid()
        ear, self._wake = _pipe()
        self._before = {s: signal.getsignal(s) or signal.SIG_DFL for s in _handled()}
        self._before[signal.SIGTERM] = signal.SIG_DFL  # also where it was ignored: it ends the run
        for signum in self._before:
            signal.signal(signum, self._pass_on)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # the child writes to the terminal
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would hide how the child ended
        try:
            return self._keep_running(ear)
        finally:
            if os.getpid() == me:
                for signum in self._before:  # Python would put the defaults back before its end
                    signal.signal(signum, signal.SIG_IGN)
            os.close(ear)
            os.close(self._wake)

    def _keep_running(self, ear: int) -> int:
        deaths = restarts = 0
        while True:
            code, progressed = self._once(restarts)
            deaths = 1 if progressed else deaths + 1
            decision = decide(code, deaths, self._asked)
            if isinstance(decision, Done):
                if decision.gave_up:
                    self._tell(
                        f"The run has died {deaths} times in a row without finishing a trial "
                        f"(last: {_how(code)}), and is not started again. What is finished is "
                        f"kept; the same command goes on."
                    )
                return decision.code
            restarts += 1
            self._tell(
                f"The run died ({_how(code)}). It is started again in {decision.delay:g} s; "
                f"finished trials are safe, running ones go on from their checkpoints."
            )
            if select.select([ear], [], [], decision.delay)[0]:
                return 128 + self._asked

    def _once(self, restarts: int) -> tuple[int, bool]:
        """Start it, wait for its end: how it ended, and whether a trial was finished."""
        ear, beat = _pipe()
        try:
            try:
                pid = self._fork(beat, restarts)
            except OSError as error:
                self._tell(f"The run cannot be started: {error.strerror}.")
                return BUG, False
            if pid == 0:
                raise SystemExit(self._run_child())
            self._child = pid
            if self._asked:  # while it was being started
                self._send(self._asked)
            code = self._wait(pid)
            with contextlib.suppress(BlockingIOError):
                return code, bool(os.read(ear, 1))
            return code, False
        finally:
            os.close(ear)
            os.close(beat)

    def _wait(self, pid: int) -> int:
        """Wait for the child's end and return its exit code. It is no longer sent signals when its
        pid may belong to another process."""
        if kernel.LINUX:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            self._child = None
        status = os.waitpid(pid, 0)[1]
        self._child = None
        return os.waitstatus_to_exitcode(status)

    def _fork(self, beat: int, restarts: int) -> int:
        """Fork, with signals blocked until the child has restored its handlers."""
        supervisor = os.getpid()
        for stream in (sys.stdout, sys.stderr):  # or both processes would write the buffer
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, self._before)
        try:
            with warnings.catch_warnings():
                # Of threads, from Python 3.12 on. There are only those of numpy's OpenBLAS, which
                # joins them before a fork and starts them when they are needed.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                os.setpgid(0, 0)  # Ctrl-C is for the supervisor, which passes it on once
                for signum, handler in self._before.items():
                    signal.signal(signum, handler)
                os.environ |= {
                    PARENT: str(supervisor),
                    BEAT: str(beat),
                    RESTART: str(restarts),
                    BEGAN: str(self._began),
                }
            return pid
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _pass_on(self, signum: int, _: object) -> None:
        """Pass a signal on to the child. The next signal may interrupt this: it only queues
        itself then, so that none is lost and a storm of them does not nest any deeper."""
        self._signals.append(meant(signum))
        while self._signals and not self._passing:
            self._passing = True
            while self._signals:
                self._asked = self._signals.popleft()
                with contextlib.suppress(OSError):  # full of earlier ones
                    os.write(self._wake, b".")
                self._send(self._asked)
            self._passing = False

    def _send(self, signum: int) -> None:
        if self._child is not None:
            with contextlib.suppress(OSError):  # it is gone
                os.kill(self._child, signum)


def _pipe() -> tuple[int, int]:
    ear, mouth = os.pipe()
    os.set_blocking(ear, False)
    os.set_blocking(mouth, False)
    return ear, mouth


def _handled() -> list[int]:
    """Return the signals to pass on: TERM, and the others unless this process was started with
    them ignored, by nohup or a shell's &."""
    rest = (signal.SIGINT, signal.SIGHUP)
    return [signal.SIGTERM, *(s for s in rest if signal.getsignal(s) is not signal.SIG_IGN)]


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal_name(-code)


# In the child.


def is_supervised(environment: Mapping[str, str] = os.environ) -> bool:
    return PARENT in environment


def restarts(environment: Mapping[str, str] = os.environ) -> int:
    """How often this run was started again."""
    return int(environment.get(RESTART) or 0)


def spent(environment: Mapping[str, str] = os.environ) -> float:
    """Seconds since the command was given, however often it was started again meanwhile."""
    return max(0.0, time.time() - float(environment.get(BEGAN) or time.time()))


def follow() -> Callable[[], None]:
    """In a supervised child: pause when the supervisor is gone. Gives what is to be called after
    each finished trial. Programs that this one starts are not supervised."""
    parent, beat = int(os.environ.pop(PARENT)), int(os.environ.pop(BEAT))
    for name in (RESTART, BEGAN):
        os.environ.pop(name, None)
    kernel.die_with_parent(parent, signal.SIGTERM)

    def tell() -> None:
        with contextlib.suppress(OSError):  # nobody is there, or has not listened for long
            os.write(beat, b".")

    return tell
