"""Trial of Syne Tune's local backend, which is a process of its own."""

from __future__ import annotations

import argparse
from pathlib import Path

from syne_tune import Reporter
from work import run_trial

parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float)
parser.add_argument("--folder", type=Path)
parser.add_argument("--st_checkpoint_dir", type=Path)
options, _ = parser.parse_known_args()
reporter = Reporter()
identity = Path(options.st_checkpoint_dir).parent.name
value = run_trial(
    options.folder, identity, lambda value, step: reporter(value=value, step=step, ended=0)
)
reporter(value=value, step=-1, ended=1)
