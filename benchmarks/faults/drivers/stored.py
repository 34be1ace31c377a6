"""Command line of a driver, and what it says a contender has stored.

python DRIVER.py FOLDER WORKERS run       run the search, or continue it
python DRIVER.py FOLDER WORKERS report    print what is stored, as JSON
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass
class Stored:
    """Trials in a contender's storage."""

    values: dict[str, float] = field(default_factory=dict)
    """Results of completed trials, by identity."""
    running: int = 0
    """Trials that are stored as running."""


def drive(run: Callable[[Path, int], None], report: Callable[[Path], Stored]) -> None:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("workers", type=int)
    parser.add_argument("part", choices=["run", "report"])
    options = parser.parse_args()
    if options.part == "run":
        run(options.folder, options.workers)
    else:
        print(json.dumps(asdict(report(options.folder))))
