"""Faster import of torch and transformers, some 4,000 modules.

uv installs packages without bytecode, and container images often disable it
(PYTHONDONTWRITEBYTECODE). Each process then compiles all modules, which takes longer than the rest
of their import.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from supermax._util.files import OTHERS_WRITE, make_folder, user_folder

_MIN_FREE_DISK = 1 << 30
"""Bytes that must be free: Python 3.11 keeps bytecode that a full disk truncated, and every later
import of it fails."""


def cache_bytecode(package: str = "torch") -> None:
    """Cache bytecode in the user's cache folder if `package` has none and Python would write none
    beside it. Applies to this process and those that it starts. PYTHONPYCACHEPREFIX, if set, takes
    precedence."""
    if sys.pycache_prefix is not None or not _lacks_bytecode(package):
        return
    named = user_folder("XDG_CACHE_HOME", ".cache") / "supermax" / "bytecode"
    try:
        make_folder(named)
        folder = named.resolve()
        if not _is_private(folder) or shutil.disk_usage(folder).free < _MIN_FREE_DISK:
            return
    except (OSError, RuntimeError):  # no home, one that cannot be written, links in a circle
        return
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(folder)
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def drop_damaged(error: EOFError) -> bool:
    """Delete the cache if an import failed on truncated bytecode. Return True if it was
    deleted."""
    # CPython has no class for this error: marshal raises a plain EOFError.
    damaged = sys.pycache_prefix is not None and "marshal data" in str(error)
    ours = damaged and Path(str(sys.pycache_prefix)).parts[-2:] == ("supermax", "bytecode")
    if ours:
        shutil.rmtree(str(sys.pycache_prefix), ignore_errors=True)
    return ours


def _is_private(folder: Path) -> bool:
    """Return True if no other user can write to a folder, or replace it or one of its parents."""
    if folder.stat().st_mode & OTHERS_WRITE:
        return False
    found = [place.stat() for place in (folder, *folder.parents)]
    return all(
        place.st_uid in (0, os.geteuid())
        and (not place.st_mode & OTHERS_WRITE or place.st_mode & stat.S_ISVTX)
        for place in found
    )


def _lacks_bytecode(package: str) -> bool:
    """Return True if each process that imports `package` has to compile it."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    if spec is None or spec.origin is None or spec.cached is None or Path(spec.cached).exists():
        return False
    return sys.dont_write_bytecode or not os.access(Path(spec.origin).parent, os.W_OK)


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector, which takes a seventh of the time of imports and frees almost
    nothing then."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
