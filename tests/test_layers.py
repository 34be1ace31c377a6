"""Imports go one way, and the engine stays light.

`errors` is counted to `_util`: both are the foundation, and each needs one thing of the other.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests import ROOT

SRC = ROOT / "src"
SOURCE = SRC / "supermax"
# Each part, and the parts that it imports.
IMPORTS = {
    "__main__": "_util ui.cli",
    "_util": "",
    "agents": "_util",
    "cluster": "_util engine.processes engine.storage",
    "engine": "_util engine.trial",
    "engine.health": "_util engine engine.jobs engine.processes engine.trial",
    "engine.jobs": "_util engine.processes engine.storage engine.trial",
    "engine.processes": "_util engine engine.storage engine.trial",
    "engine.promotion": "_util engine engine.jobs engine.processes engine.storage",
    "engine.run": (
        "_util engine engine.health engine.jobs engine.processes engine.promotion engine.sampling "
        "engine.sharing engine.storage engine.trial"
    ),
    "engine.sampling": "_util engine.promotion engine.storage",
    "engine.sharing": "_util engine.health engine.jobs engine.storage",
    "engine.storage": "_util engine.trial",
    "engine.trial": "_util",
    "memory": "_util",
    "results": "_util engine engine.jobs engine.sharing engine.storage engine.trial",
    "results.report": "_util agents engine.storage results search.settings space",
    "results.tracking": "_util engine.run engine.storage results studies",
    "run": (
        "_util engine engine.jobs engine.processes engine.run results results.tracking space "
        "ui.display"
    ),
    "search": (
        "_util agents engine engine.processes engine.promotion engine.run engine.storage "
        "engine.trial memory results results.tracking run search.settings space studies tasks "
        "training.config training.data training.deploy training.eval training.models "
        "training.steps"
    ),
    "search.settings": "_util agents space",
    "space": "_util agents",
    "studies": "_util engine.run engine.sharing engine.storage space",
    "study": (
        "_util engine results results.report search search.settings space studies training.data "
        "training.deploy"
    ),
    "supermax": (
        "_util engine engine.processes engine.promotion engine.run run space studies study trainer"
    ),
    "tasks": (
        "_util agents engine engine.jobs engine.processes engine.promotion engine.storage "
        "engine.trial memory space training training.config training.data training.eval "
        "training.models training.optim training.steps"
    ),
    "testing": "",
    "trainer": (
        "_util engine engine.jobs engine.processes engine.promotion engine.run engine.storage "
        "engine.trial run space studies"
    ),
    "training": (
        "_util agents training.config training.data training.eval training.models training.optim "
        "training.steps"
    ),
    "training.config": "_util agents",
    "training.data": "_util agents",
    "training.deploy": (
        "_util agents training training.config training.data training.eval training.models "
        "training.steps"
    ),
    "training.eval": "_util agents training.config training.data training.models training.steps",
    "training.models": "_util agents training.config",
    "training.optim": "_util training.config",
    "training.steps": "_util agents training.config training.data training.models training.optim",
    "ui": "",
    "ui.cli": (
        "_util agents cluster engine engine.processes engine.run engine.sharing engine.storage "
        "engine.trial memory results results.report results.tracking search search.settings space "
        "studies tasks training training.config training.data training.deploy training.eval "
        "training.models training.steps ui.display"
    ),
    "ui.display": "_util engine engine.storage engine.trial memory",
}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


def imported(path: Path) -> Iterator[str]:
    """Yield what a file imports: at its top, within functions and for type checkers."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module for name in full)


def part_of(module: str) -> str:
    """Return the longest name of the table that a module's name begins with."""
    name = module.removeprefix("supermax.")
    fits = [part for part in IMPORTS if name == part or name.startswith(f"{part}.")]
    return "_util" if name == "errors" else max(fits, key=len)


def graph() -> dict[str, set[str]]:
    return {
        module: {name for name in imported(path) if name in MODULES} - {module}
        for module, path in MODULES.items()
    }


def test_each_part_imports_what_the_table_says() -> None:
    found: dict[str, set[str]] = {}
    for module, names in graph().items():
        part = part_of(module)
        found.setdefault(part, set()).update(map(part_of, names - {"supermax"}))
    found = {part: names - {part} for part, names in found.items()}
    assert found == {part: set(names.split()) for part, names in IMPORTS.items()}


def test_no_import_goes_in_a_circle() -> None:
    """Neither among the modules nor among the parts."""
    TopologicalSorter({part: names.split() for part, names in IMPORTS.items()}).prepare()
    modules = graph()
    for names in modules.values():
        names.discard("supermax")  # names of the package itself are imported on first use
    TopologicalSorter(modules).prepare()


def test_the_engine_knows_no_torch_and_no_terminal() -> None:
    for path in (SOURCE / "engine").rglob("*.py"):
        assert not {name.split(".")[0] for name in imported(path)} & {"torch", "rich", "typer"}


def test_importing_supermax_does_not_import_torch() -> None:
    code = "import supermax, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.slow
def test_a_search_does_not_load_what_only_training_needs() -> None:
    """Modules of transformers and torch take seconds, in every program that trains nothing."""
    heavy = ["transformers.modeling_utils", "torch._dynamo", "torch.distributed.tensor", "sympy"]
    code = (
        "import sys, supermax.search.search;"
        f"sys.exit(str([m for m in {heavy} if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == "[]"


def test_a_fork_server_loads_nothing_of_what_a_coordinator_does() -> None:
    """It is started for every run, and so is a cell where none can be forked."""
    code = "import supermax.engine.processes.fork_server, sys; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in ("sqlalchemy", "rich", "supermax.engine.run.coordinator", "supermax.run"):
        assert f"'{name}'" not in done.stdout


def test_no_file_grows_out_of_hand() -> None:
    long = {
        path.name: n for path in SOURCE.rglob("*.py") if (n := path.read_text().count("\n")) > 500
    }
    assert long == {}
