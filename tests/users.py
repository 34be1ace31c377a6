"""A second Unix user, for tests that root runs."""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SOMEBODY = 54321
"""The number of a user that no machine has."""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@contextmanager
def common_folder(mode: int = 0o1777) -> Iterator[Path]:
    """A folder that every user can reach, which pytest's own is not."""
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="supermax-common-")).resolve()
    folder.chmod(mode)
    yield folder
    shutil.rmtree(folder)


def as_somebody(action: Callable[[], object], uid: int = SOMEBODY) -> str:
    """What `action` returns, or raises, as text, in a child of this process; where root runs the
    test, the child is that user."""
    ear, mouth = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            os.write(mouth, str(action()).encode())
        except BaseException:
            os.write(mouth, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(mouth)
    with os.fdopen(ear) as said:
        text = said.read()
    os.waitpid(pid, 0)
    return text
