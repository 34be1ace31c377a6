"""Imports go one way, and the engine stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "supermax"
# Each part and what else of the package it may import.
ALLOWED = {
    "errors": {"words"},
    "files": {"errors"},
    "importing": {"files"},
    "naming": set[str](),
    "ranking": set[str](),
    "words": set[str](),
    "trees": {"errors"},
    "memory": {"files", "words"},
    "settings": {"errors", "naming", "trees", "words"},
    "engine": {"errors", "files", "importing", "naming", "ranking", "words"},
    "space": {"errors", "naming", "trees", "words"},
    "training": {"errors", "files", "naming", "words"},
    "agents": {
        "engine",
        "files",
        "memory",
        "space",
        "training",
        "errors",
        "naming",
        "ranking",
        "words",
    },
    "display": {"engine", "files", "memory", "errors", "words"},
    "testing": set[str](),
    "records": {"engine", "errors", "naming", "ranking", "words"},
    "tracking": {"files", "records", "engine", "study", "errors", "naming", "words"},
    "report": {
        "files",
        "records",
        "engine",
        "settings",
        "space",
        "errors",
        "naming",
        "words",
    },
    "run": {"display", "engine", "errors"},
    "study": {"engine", "space", "errors", "naming", "words"},
    "mps": {"engine", "words"},
    "tuning": {
        "memory",
        "run",
        "study",
        "agents",
        "training",
        "engine",
        "space",
        "errors",
        "naming",
        "ranking",
        "words",
    },
    "planning": {
        "spaces",
        "mps",
        "engine",
        "memory",
        "search",
        "tuning",
        "study",
        "records",
        "agents",
        "training",
        "settings",
        "space",
        "errors",
        "words",
    },
    "spaces": {"settings", "space"},
    "search": {
        "files",
        "spaces",
        "mps",
        "memory",
        "tracking",
        "records",
        "tuning",
        "study",
        "agents",
        "training",
        "settings",
        "space",
        "errors",
        "naming",
        "words",
    },
    "frames": {"records", "errors"},
    "api": {
        "planning",
        "search",
        "tuning",
        "study",
        "records",
        "frames",
        "report",
        "settings",
        "agents",
        "training",
        "engine",
        "space",
        "errors",
    },
    "cleaning": {"records", "engine", "naming"},
    "doctor": {"mps", "memory", "study", "agents", "settings", "engine", "errors", "words"},
    "replaying": {"records", "engine", "errors", "words"},
    "supervise": {"engine", "errors"},
    "cli": {
        "spaces",
        "memory",
        "planning",
        "files",
        "importing",
        "search",
        "tracking",
        "report",
        "supervise",
        "replaying",
        "cleaning",
        "doctor",
        "tuning",
        "run",
        "study",
        "settings",
        "records",
        "agents",
        "training",
        "display",
        "engine",
        "space",
        "errors",
        "naming",
        "ranking",
        "trees",
        "words",
    },
    "__main__": {"cli", "importing"},
    "__init__": {"api", "run", "study", "engine", "space", "errors"},
}


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def test_imports_go_one_way() -> None:
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        part = part_of(path)
        used = {name.split(".")[1] for name in imports(path) if name.startswith("supermax.")}
        wrong += [f"{path.name} imports {other}" for other in used - ALLOWED[part] - {part}]
    assert wrong == []


def test_the_engine_knows_no_torch_and_no_terminal() -> None:
    for path in (SOURCE / "engine").glob("*.py"):
        assert not {name.split(".")[0] for name in imports(path)} & {"torch", "rich", "typer"}


def test_importing_supermax_does_not_import_torch() -> None:
    code = "import supermax, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_search_does_not_load_what_only_training_needs() -> None:
    """Of transformers and torch: seconds, in every program that trains nothing itself."""
    heavy = ["transformers.modeling_utils", "torch._dynamo", "torch.distributed.tensor", "sympy"]
    code = f"import sys, supermax.tuning; sys.exit(str([m for m in {heavy} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == "[]"


def test_a_keeper_loads_nothing_of_what_a_coordinator_does() -> None:
    """It is started for every run, and so is a cell where none can be forked."""
    code = "import supermax.engine.keeper, sys; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in ("sqlalchemy", "rich", "supermax.engine.coordinator", "supermax.run"):
        assert f"'{name}'" not in done.stdout


def test_no_file_grows_out_of_hand() -> None:
    long = {
        path.name: n for path in SOURCE.rglob("*.py") if (n := path.read_text().count("\n")) > 500
    }
    assert long == {}
