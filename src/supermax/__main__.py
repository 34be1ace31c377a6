"""`supermax` and `python -m supermax`: the command line, and signals that come before it is there.

The rest takes a second or two to import. Until then nothing is open that would have to be put
away, so a signal ends the program on the spot, with a sentence and an exit code.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType
from typing import Any, NoReturn

_ENVIRONMENT = 3  # as in supervise.py, which is not imported yet


def main() -> None:
    """Whatever is pressed, closed or gone: never a traceback."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        _heed(signum, _end)
    _drop_working_directory(_check_folder())
    from supermax.importing import cache_bytecode, drop_damaged

    cache_bytecode()
    try:
        from supermax.cli import main as run

        _heed(signal.SIGINT, _interrupt)
        _heed(signal.SIGTERM, signal.SIG_DFL)  # which does not wait for the next line of Python
        run()
    except EOFError as error:
        if not drop_damaged(error):
            raise
        _say("Cached bytecode was damaged and is deleted now. Give the same command again.")
        sys.exit(_ENVIRONMENT)
    finally:
        _heed(signal.SIGINT, _end)
        _heed(signal.SIGHUP, signal.SIG_IGN)  # it ends anyway


def _heed(signum: int, handler: Any) -> None:
    """What is ignored, under nohup or behind a shell's &, stays so."""
    if signal.getsignal(signum) is not signal.SIG_IGN:
        signal.signal(signum, handler)


def _end(signum: int, _: FrameType | None) -> NoReturn:
    """At once. A terminal that was closed counts as TERM."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # one more would say it again
    interrupted = signum == signal.SIGINT
    _say("Interrupted." if interrupted else "Ended.")
    os._exit(128 + (signal.SIGINT if interrupted else signal.SIGTERM))


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    """The first Ctrl-C lets a command put things away; one more ends that too."""
    signal.signal(signum, _end)
    signal.default_int_handler(signum, frame)


def _check_folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 (pathlib is not imported yet)
    except OSError as error:
        _say(f"The working directory is gone ({error.strerror}). Change to another: cd ~")
        sys.exit(_ENVIRONMENT)


def _drop_working_directory(folder: str) -> None:
    """Remove the working directory from the module search path, where `python -m` puts it first: a
    csv.py beside the data would be imported instead of Python's own. What is imported before this
    line (signal, typing) can still be shadowed; `python -P -m supermax` prevents that, too."""
    if not sys.flags.safe_path and sys.path[0] in ("", folder):
        del sys.path[0]


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody is there to read it
        os.write(2, f"{text}\n".encode())


if __name__ == "__main__":
    main()
