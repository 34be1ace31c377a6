"""Entry point of `supermax` and `python -m supermax`: handle signals, then import the command
line.

Importing the command line takes a second or two. Until then there is nothing to clean up, so a
signal ends the program at once, with a message and an exit code.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

_ENVIRONMENT_FAULT = 3  # exit code; also in supervise.py, which is not imported yet


def main() -> None:
    """Run the command line. A signal, a closed stream or a missing folder gives no traceback."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        _set_handler(signum, _exit_now)
    _drop_working_directory(_working_directory())
    from supermax._util.importing import cache_bytecode, drop_damaged
    from supermax._util.threads import brief_spinning

    cache_bytecode()
    os.environ.update(brief_spinning(os.environ))
    try:
        from supermax.ui.cli import main as run

        _set_handler(signal.SIGINT, _interrupt)
        # Immediate: a Python handler waits for bytecode.
        _set_handler(signal.SIGTERM, signal.SIG_DFL)
        run()
    except EOFError as error:
        if not drop_damaged(error):
            raise
        _print_error(
            "Cached bytecode was damaged and has been deleted. Run the same command again."
        )
        sys.exit(_ENVIRONMENT_FAULT)
    finally:
        _set_handler(signal.SIGINT, _exit_now)
        _set_handler(signal.SIGHUP, signal.SIG_IGN)  # the program is ending anyway


def _set_handler(
    signum: int, handler: Callable[[int, FrameType | None], object] | signal.Handlers
) -> None:
    """Install a signal handler, unless the signal is ignored (nohup, a shell's &)."""
    if signal.getsignal(signum) is not signal.SIG_IGN:
        signal.signal(signum, handler)


def _exit_now(signum: int, _: FrameType | None) -> NoReturn:
    """Exit at once with 128 + the signal's number; SIGHUP (a closed terminal) exits as SIGTERM."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, _ignore)  # a second one would print the message again
    interrupted = signum == signal.SIGINT
    _print_error("Interrupted." if interrupted else "Ended.")
    os._exit(128 + (signal.SIGINT if interrupted else signal.SIGTERM))


def _ignore(*_: object) -> None:
    """Do nothing. With SIG_IGN instead, Python would print an error for a signal that has already
    arrived and is not handled yet."""


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    """Raise KeyboardInterrupt, so that the command can clean up; a second Ctrl-C exits at once."""
    signal.signal(signum, _exit_now)
    signal.default_int_handler(signum, frame)


def _working_directory() -> str:
    """Return the working directory; exit with a message where it was deleted."""
    try:
        return os.getcwd()  # noqa: PTH109 (pathlib is not imported yet)
    except OSError as error:
        _print_error(
            f"The working directory is gone ({error.strerror}). Change to another one: cd ~"
        )
        sys.exit(_ENVIRONMENT_FAULT)


def _drop_working_directory(folder: str) -> None:
    """Remove the working directory from the module search path, where `python -m` puts it first.

    Otherwise a csv.py beside the data would be imported instead of Python's own. Modules imported
    before this call (signal, typing) can still be shadowed; `python -P -m supermax` prevents that.
    """
    if not sys.flags.safe_path and sys.path[0] in ("", folder):
        del sys.path[0]


def _print_error(text: str) -> None:
    with contextlib.suppress(OSError):  # standard error is closed
        os.write(2, f"{text}\n".encode())


if __name__ == "__main__":
    main()
