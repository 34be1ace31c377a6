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
import sys
from collections.abc import Iterator
from pathlib import Path

from supermax.files import OTHERS_WRITE, user_folder


def keep_bytecode(package: str = "torch") -> None:
    """Keep bytecode in the user's cache where `package` has none and Python would write none
    beside it. This holds for the imports of this process and of those that it starts."""
    if sys.pycache_prefix is not None or not _is_compiled_anew(package):
        return
    folder = user_folder("XDG_CACHE_HOME", ".cache") / "supermax" / "bytecode"
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError:  # no home, or one that cannot be written
        return
    if found.st_uid != os.geteuid() or found.st_mode & OTHERS_WRITE:
        return  # others could put programs there
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(folder)
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def _is_compiled_anew(package: str) -> bool:
    """Tell whether each process that imports `package` has to compile it."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    if spec is None or spec.origin is None or spec.cached is None or Path(spec.cached).exists():
        return False
    return sys.dont_write_bytecode or not os.access(Path(spec.origin).parent, os.W_OK)


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Pause the garbage collector. Imports leave hardly any cycles, and it takes a seventh of
    their time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
