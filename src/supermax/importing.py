"""Import torch and transformers, some 4,000 modules, in less time.

uv installs packages without bytecode, and container images often tell Python to write none
(PYTHONDONTWRITEBYTECODE). Each start then compiles all modules anew, which takes longer than the
rest of their import.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from supermax.files import OTHERS_WRITE, user_folder


def cache_bytecode(package: str = "torch") -> None:
    """Cache bytecode in the user's cache folder if `package` has none and Python would write none
    beside it. This holds for the imports of this process and of those that it starts. A user who
    sets PYTHONPYCACHEPREFIX has another folder."""
    if sys.pycache_prefix is not None or not _lacks_bytecode(package):
        return
    folder = user_folder("XDG_CACHE_HOME", ".cache") / "supermax" / "bytecode"
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        if not _is_private(folder.resolve()):
            return
    except OSError:  # no home, or one that cannot be written
        return
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(folder)
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def _is_private(folder: Path) -> bool:
    """Return whether nobody else can write to a folder, or put another one in its place."""
    if folder.stat().st_mode & OTHERS_WRITE:
        return False
    found = [place.stat() for place in (folder, *folder.parents)]
    return all(
        place.st_uid in (0, os.geteuid())
        and (not place.st_mode & OTHERS_WRITE or place.st_mode & stat.S_ISVTX)
        for place in found
    )


def _lacks_bytecode(package: str) -> bool:
    """Return whether each process that imports `package` has to compile it."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    if spec is None or spec.origin is None or spec.cached is None or Path(spec.cached).exists():
        return False
    return sys.dont_write_bytecode or not os.access(Path(spec.origin).parent, os.W_OK)


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector: it takes a seventh of the time of imports, and frees almost
    nothing then."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
