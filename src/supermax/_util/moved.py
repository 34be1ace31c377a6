"""Former names of modules, importable for one release with a DeprecationWarning.

    import supermax.tuning ──Finder──▶ supermax.search.search

Submodules of a moved package are found as well: `supermax.report.page`.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "supermax.engine.provision": "supermax.engine.jobs.provision",
    "supermax.engine.run.provision": "supermax.engine.jobs.provision",
    "supermax.mps": "supermax.engine.processes.mps",
    "supermax.report": "supermax.results.report",
    "supermax.tracking": "supermax.results.tracking",
    "supermax.training.baseline": "supermax.training.eval.baseline",
    "supermax.training.export": "supermax.training.deploy.export",
    "supermax.training.predict": "supermax.training.deploy.predict",
    "supermax.training.refit": "supermax.training.deploy.refit",
    "supermax.search.tuning": "supermax.search.search",
    "supermax.tuning": "supermax.search.search",
}


class Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith("supermax."):
            return None
        for former, current in MOVED.items():
            if name == former or name.startswith(f"{former}."):
                return ModuleSpec(name, _Moved(current + name[len(former) :]))
        return None


class _Moved(Loader):
    def __init__(self, to: str) -> None:
        self._to = to

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of the new name in place of the empty one that Python made."""
        warnings.warn(
            f"{module.__name__} is now {self._to}; the former name will be removed.",
            DeprecationWarning,
            stacklevel=2,
        )
        sys.modules[module.__name__] = importlib.import_module(self._to)


def install() -> None:
    """Ask the finder first: a moved package has a path on which Python would find its submodules
    once more, under their former names."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
