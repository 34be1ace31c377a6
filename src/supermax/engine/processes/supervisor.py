"""Supervisor process: restarts a run that dies.

fork ──▶ wait ──▶ decide_restart(exit code) ──▶ Exit, or Restart: fork after a pause
          ▲ signals are forwarded meanwhile
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
from collections.abc import Callable
from dataclasses import dataclass

from supermax._util import system
from supermax.engine.processes.descriptors import nonblocking_pipe
from supermax.engine.trial.faults import signal_name

REACHED, BUG, USER, ENVIRONMENT, HALTED, PAUSED, QUARANTINED = range(7)
INTERRUPTED = 130
"""Exit codes of a run; 128 + N: ended by signal N."""
PARENT, BEAT = "SUPERMAX_SUPERVISOR", "SUPERMAX_BEAT"
RESTART, BEGAN = "SUPERMAX_RESTART", "SUPERMAX_BEGAN"
"""Environment variables of a supervised run: pid of the supervisor, descriptor of the pipe that
takes a byte per finished trial, number of restarts, time.time() of the command's start."""
_MAX_DEATHS = 10  # in a row
_LONGEST_PAUSE = 60.0  # seconds
_FIRST_PAUSE = 1.0


@dataclass(frozen=True)
class Restart:
    delay: float
    """Seconds to wait before."""


@dataclass(frozen=True)
class Exit:
    code: int
    gave_up: bool = False
    """True: the run died too often."""


def decide_restart(code: int, deaths: int, asked: int) -> Restart | Exit:
    """Decide whether to restart a run that ended with `code` (negative: killed by a signal).

    `deaths` counts those in a row, this one included, without a trial finished in between;
    `asked` is the signal that was to stop the run, or 0. A run that was killed and that the
    machine prevents from starting again, such as by a full disk, is restarted too: if it had not
    been killed, it would have waited.
    """
    ended_by = effective_signal(-code) if code < 0 else 0
    exit_code = 128 + ended_by if ended_by else code
    prevented = code == ENVIRONMENT and deaths > 1 and not asked
    abnormal = prevented or code == BUG or ended_by not in (0, signal.SIGINT, signal.SIGTERM)
    if not abnormal:
        return Exit(exit_code)
    if asked:  # the signal may have come before the run had installed its handlers
        return Exit(128 + asked)
    if deaths >= _MAX_DEATHS:
        return Exit(exit_code, gave_up=True)
    return Restart(min(_FIRST_PAUSE * 2 ** (deaths - 1), _LONGEST_PAUSE))


def effective_signal(signum: int) -> int:
    """Return SIGTERM for SIGHUP: a closed terminal pauses the run. Other signals stay."""
    return signal.SIGTERM if signum == signal.SIGHUP else signum


class Supervisor:
    """Run a function in a forked child, and fork again when it dies.

    The child has the imports and the settings of this process, also after a restart. All stop
    signals are forwarded to it, also the second Ctrl-C. `tell` receives messages for the user.
    """

    def __init__(self, child: Callable[[], int], tell: Callable[[str], None]) -> None:
        self._run_child = child
        self._tell = tell
        self._child_pid: int | None = None
        self._asked: int = 0  # the latest stop signal, or 0
        self._wake_read_fd = -1  # becomes readable with each signal
        self._original_handlers: dict[int, system.SignalHandler] = {}  # of the forwarded signals
        self._forwarding = False
        self._signals: deque[int] = deque()
        self._began = time.time()

    def run(self) -> int:
        """Run until the child ends for good, and return the exit code.

        Call it last in a process: it leaves the stop signals ignored, so that the later ones of
        many cannot change the exit code. In the child it raises SystemExit with the child's
        result.
        """
        supervisor = os.getpid()
        self._wake_read_fd, wake_fd = nonblocking_pipe()
        self._original_handlers = {s: signal.getsignal(s) or signal.SIG_DFL for s in _forwarded()}
        self._original_handlers[signal.SIGTERM] = signal.SIG_DFL  # ends the run, even if ignored
        for signum in self._original_handlers:
            signal.signal(signum, self._forward)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # the child writes to the terminal
        signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes; if ignored: no exit status
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])  # if inherited as blocked
        signal.set_wakeup_fd(wake_fd, warn_on_full_buffer=False)
        try:
            return self._keep_running()
        finally:
            if os.getpid() == supervisor:
                for signum in self._original_handlers:  # Python's finalisation resets handlers
                    signal.signal(signum, signal.SIG_IGN)
                _stop_waking()
            os.close(self._wake_read_fd)
            os.close(wake_fd)

    def _keep_running(self) -> int:
        deaths = restarts = 0
        while True:
            code, progressed = self._run_once(restarts)
            deaths = 1 if progressed else deaths + 1
            decision = decide_restart(code, deaths, self._asked)
            if isinstance(decision, Exit):
                if decision.gave_up:
                    self._tell(
                        f"The run has died {deaths} times in a row without finishing a trial "
                        f"(last: {_exit_text(code)}) and is not restarted. Finished trials are "
                        f"kept; run the same command to continue."
                    )
                return decision.code
            restarts += 1
            why = "cannot go on yet" if code == ENVIRONMENT else f"died ({_exit_text(code)})"
            self._tell(
                f"The run {why}. It restarts in {decision.delay:g} s; finished trials are safe, "
                f"running ones resume from their checkpoints."
            )
            if self._asked_within(decision.delay):
                return 128 + self._asked

    def _run_once(self, restarts: int) -> tuple[int, bool]:
        """Start the run and wait for its end; return its exit code, and whether it has finished a
        trial."""
        progress_read_fd, progress_fd = nonblocking_pipe()
        try:
            try:
                pid = self._fork(progress_fd, restarts)
            except OSError as error:
                self._tell(f"The run cannot be started: {error.strerror}.")
                return BUG, False
            if pid == 0:
                raise SystemExit(self._run_child())
            self._child_pid = pid
            if self._asked:  # a signal that arrived while the child was started
                self._send(self._asked)
            code = self._wait(pid)
            with contextlib.suppress(BlockingIOError):
                return code, bool(os.read(progress_read_fd, 1))
            return code, False
        finally:
            os.close(progress_read_fd)
            os.close(progress_fd)

    def _wait(self, pid: int) -> int:
        """Wait for the child's end and return its exit code."""
        while (status := self._reap(pid)) is None:
            self._sleep_until_signal()
        return os.waitstatus_to_exitcode(status)

    def _reap(self, pid: int) -> int | None:
        """Reap the child if it has ended; return its wait status, or None.

        Forwarding stops before the child is reaped: afterwards its pid may be another process's.
        """
        if system.LINUX:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                return None
            self._child_pid = None
        ended, status = os.waitpid(pid, os.WNOHANG)
        if not ended:
            return None
        self._child_pid = None
        return status

    def _asked_within(self, seconds: float) -> bool:
        """Wait for a stop signal; return whether one came."""
        end = time.monotonic() + seconds
        while not self._asked and (rest := end - time.monotonic()) > 0:
            self._sleep_until_signal(rest)
        return bool(self._asked)

    def _sleep_until_signal(self, seconds: float | None = None) -> None:
        """Sleep until a signal comes, the end of a child included.

        A blocking system call would miss a signal that another thread receives, or that comes
        just before the call: Python runs handlers in the main thread, between two bytecodes.
        """
        if select.select([self._wake_read_fd], [], [], seconds)[0]:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read_fd, 4096)

    def _fork(self, progress_fd: int, restarts: int) -> int:
        """Fork with signals blocked until the child has restored its handlers; return the pid, 0
        in the child."""
        supervisor = os.getpid()
        for stream in (sys.stdout, sys.stderr):  # or both processes would write the buffer
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._original_handlers)
        try:
            with warnings.catch_warnings():
                # Python 3.12 warns of a fork with threads. The only ones here are those of numpy's
                # OpenBLAS, which joins them before a fork and restarts them on demand.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                _stop_waking()
                os.setpgid(0, 0)  # the terminal sends Ctrl-C to the supervisor alone
                for signum, handler in self._original_handlers.items():
                    signal.signal(signum, handler)
                os.environ |= {
                    PARENT: str(supervisor),
                    BEAT: str(progress_fd),
                    RESTART: str(restarts),
                    BEGAN: str(self._began),
                }
            return pid
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)

    def _forward(self, signum: int, _: object) -> None:
        """Forward a signal to the child.

        The next signal may interrupt this handler. It then only queues itself, so that none is
        lost and many in a row do not nest.
        """
        self._signals.append(effective_signal(signum))
        while self._signals and not self._forwarding:
            self._forwarding = True
            while self._signals:
                self._asked = self._signals.popleft()
                self._send(self._asked)
            self._forwarding = False

    def _send(self, signum: int) -> None:
        if self._child_pid is not None:
            with contextlib.suppress(OSError):  # it has exited
                os.kill(self._child_pid, signum)


def _stop_waking() -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _forwarded() -> list[int]:
    """Return the signals to forward: TERM, and the others unless this process was started with
    them ignored, by nohup or a shell's &."""
    rest = (signal.SIGINT, signal.SIGHUP)
    return [signal.SIGTERM, *(s for s in rest if signal.getsignal(s) is not signal.SIG_IGN)]


def _exit_text(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal_name(-code)


# Functions of the child.


def is_supervised() -> bool:
    return PARENT in os.environ


def restarts() -> int:
    """Number of times the supervisor has restarted this run."""
    return int(os.environ.get(RESTART) or 0)


def spent() -> float:
    """Seconds since the command was given, restarts included."""
    return max(0.0, time.time() - float(os.environ.get(BEGAN) or time.time()))


def follow() -> Callable[[], None]:
    """Have SIGTERM sent to this supervised child when its supervisor dies; return the function to
    call after each finished trial. Programs that the child starts are not supervised."""
    parent, progress_fd = int(os.environ.pop(PARENT)), int(os.environ.pop(BEAT))
    for name in (RESTART, BEGAN):
        os.environ.pop(name, None)
    system.die_with_parent(parent, signal.SIGTERM)

    def report_progress() -> None:
        with contextlib.suppress(OSError):  # the supervisor is gone, or the pipe is full
            os.write(progress_fd, b".")

    return report_progress
