"""Results with a threshold, the machine, one table and dated JSON, for all benchmarks."""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Line:
    """One row of the table: our figure, the peer's, and the threshold for `measured`."""

    name: str
    ours: str
    theirs: str
    measured: float
    bar: str
    met: bool


def at_most(
    name: str, ours: str, theirs: str, measured: float, limit: float, unit: str = "×"
) -> Line:
    return Line(name, ours, theirs, measured, f"at most {limit:g}{unit}", measured <= limit)


def at_least(name: str, ours: str, theirs: str, measured: float, limit: float) -> Line:
    return Line(name, ours, theirs, measured, f"at least {limit:g}×", measured >= limit)


def unlimited(name: str, ours: str, theirs: str, measured: float) -> Line:
    return Line(name, ours, theirs, measured, "(no threshold)", True)


Bench = Callable[[str, float], list[Line]]


def machine(packages: Sequence[str]) -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "versions": {name: _version(name) for name in packages},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # run from its source
        return "not installed"


def main(
    name: str,
    title: str,
    benches: Mapping[str, Bench],
    about: str | None,
    peer: str = "Optuna",
    packages: Sequence[str] = ("supermax", "optuna", "sqlalchemy"),
) -> int:
    """Run the chosen benchmarks; return 1 if a threshold was missed. Store only a full run."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(benches), help="names, with commas")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the trials to run")
    options = parser.parse_args()
    chosen = options.only.split(",")
    lines: list[Line] = []
    for bench in chosen:
        with tempfile.TemporaryDirectory() as folder:
            lines += benches[bench](folder, options.scale)
    show(title, lines, peer)
    if options.scale == 1.0 and set(chosen) == set(benches):
        keep(name, lines, packages)
    return 0 if all(line.met for line in lines) else 1


def show(title: str, lines: Sequence[Line], peer: str) -> None:
    table = Table(title=title)
    for column in ("what", "Supermax", peer, "measured", "threshold", ""):
        table.add_column(column)
    for line in lines:
        mark = "met" if line.met else "MISSED"
        table.add_row(line.name, line.ours, line.theirs, f"{line.measured:.2f}", line.bar, mark)
    Console(width=160).print(table)


def keep(name: str, lines: Sequence[Line], packages: Sequence[str]) -> None:
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    path = results / f"{name}-{date.today().isoformat()}.json"
    kept = {"machine": machine(packages), "lines": [asdict(line) for line in lines]}
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    print(f"Written to benchmarks/results/{path.name}")
