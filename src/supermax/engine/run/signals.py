"""Signals that end a run: Ctrl-C, TERM and hang-up."""

from __future__ import annotations

import os
import signal
import threading

from supermax._util.system import SignalHandler
from supermax.engine.run.coordinator import Coordinator


class SignalHandlers:
    """Handlers that end the run cleanly on the first signal, and at once on another Ctrl-C.

    Python sets handlers in the main thread only; in another thread nothing is changed. They stay
    until the study is closed, so that no further signal cuts that short."""

    def __init__(self) -> None:
        self._signal: int | None = None
        self._before: dict[int, SignalHandler] = {}

    def install(self, coordinator: Coordinator) -> None:
        if threading.current_thread() is not threading.main_thread():
            return

        def on_signal(signum: int, _: object) -> None:
            if signum == signal.SIGINT:
                if coordinator.stop_requested:
                    raise KeyboardInterrupt
            elif self._signal is not None:
                return  # at once: of many, each would come while the one before is dealt with
            else:
                self._signal = signum
            coordinator.request_stop("interrupt")

        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            ignored = signal.getsignal(signum) is signal.SIG_IGN  # by nohup, or a shell's &
            if signum == signal.SIGTERM or not ignored:  # TERM also says: the supervisor is gone
                self._before[signum] = signal.signal(signum, on_signal)

    def restore(self) -> None:
        """Restore the handlers. A TERM or HUP that ended the run is sent again: it ends the
        program, now that the study is closed."""
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        if self._signal is not None:
            os.kill(os.getpid(), self._signal)
