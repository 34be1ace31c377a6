"""Second Unix user, for tests that run as root."""

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
"""User id that no machine has."""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@contextmanager
def common_folder(mode: int = 0o1777) -> Iterator[Path]:
    """Yield a folder that every user can reach, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="supermax-common-")).resolve()
    folder.chmod(mode)
    yield folder
    shutil.rmtree(folder)


def as_somebody(action: Callable[[], object], uid: int = SOMEBODY) -> str:
    """Return the result of `action`, or its exception, as text. It runs in a child process; under
    root, as another user."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            os.write(writer, str(action()).encode())
        except BaseException:
            os.write(writer, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        text = said.read()
    os.waitpid(pid, 0)
    return text
