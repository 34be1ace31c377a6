"""What speed.py is asked for, and where its results go."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from datetime import date
from importlib.util import find_spec
from pathlib import Path

from speed_tasks import DEVICE, HERE, TASKS, cells_of
from speed_trials import OLD_SECONDS

PARTS = (
    "steady", "trials", "parts", "widths", "attention", "start", "growth", "same", "table", "chart"
)  # fmt: skip
ON_A_GPU = ("parts", "widths", "attention")
WITH_TRAINER = ("steady", "trials")
_RESULTS = HERE / "results"


def options_of(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=", ".join(TASKS))
    parser.add_argument(
        "--contenders",
        type=_names,
        help="with commas; of steady: bare loop, eager, captured, compiled, 4 cells, 4 cells MPS, "
        "4 cells MPS compiled, 4 cells MPS 70%% compiled; of trials: bare, old, Trainer without "
        "cuDNN, cells (see --cells, --mps, --compiled), or cells as of steady. Trainer always is "
        "one.",
    )
    parser.add_argument("--cells", type=_counts, default="1,4,8", help="of trials, at a time")
    parser.add_argument("--mps", action="store_true", help="several cells also with MPS")
    parser.add_argument("--compiled", action="store_true", help="cells also with compiled steps")
    number = {"type": _count, "metavar": "N"}
    parser.add_argument("--trials", **number, default=8, help="ours, at least three to a cell")
    parser.add_argument(
        "--reference-trials", **number, default=5, help="of the others' searches, at least three"
    )
    limit = f"of the old way, as far as they come in {OLD_SECONDS:.0f} s"
    parser.add_argument("--old-trials", **number, default=3, help=limit)
    parser.add_argument("--seeds", **number, default=8, help="of same, at least 2")
    parser.add_argument("--repeat", **number, default=200, help="short trials of growth")
    parser.add_argument("--seconds", type=float, default=400, help="that they may take at most")
    parser.add_argument(
        "--results",
        type=Path,
        help="lines of JSON; by default benchmarks/results/speed-DATE.jsonl, with -cpu where "
        "there is no GPU; of table and chart the newest",
    )
    options = parser.parse_args()
    if trouble := _trouble(options):
        parser.error(trouble)
    options.results = options.results or _default(options.part)
    return options


def _trouble(options: argparse.Namespace) -> str | None:
    """Before minutes are spent."""
    if options.seeds < 2:
        return "of one seed there is no noise to see: --seeds 2 at least"
    if unknown := set(options.tasks) - set(TASKS):
        return f"there is no task {', '.join(sorted(unknown))}; there are {', '.join(TASKS)}"
    if len(options.tasks) > 1 and options.part != "steady":
        return f"{options.part} takes one task at a time"
    if options.part in ON_A_GPU and DEVICE == "cpu":
        return f"{options.part} can only be measured on a GPU: there is none here"
    if options.part in WITH_TRAINER and find_spec("accelerate") is None:
        return "Trainer, which all is held against, needs accelerate: pip install accelerate"
    return None


def check(names: Iterable[str], known: Iterable[str], shown: Iterable[str]) -> None:
    for name in names:
        if name not in known and cells_of(name) is None:
            raise SystemExit(f"There is no contender {name!r}; there are {', '.join(shown)}, and "
                             f"cells, such as '4 cells MPS compiled'.")  # fmt: skip


def _default(part: str) -> Path:
    if part in ("table", "chart"):
        found = [p for p in _RESULTS.glob("speed-*.jsonl") if not p.stem.endswith("-cpu")]
        return max(found, default=_RESULTS / "speed.jsonl")
    where = "" if DEVICE == "cuda" else "-cpu"
    return _RESULTS / f"speed-{date.today().isoformat()}{where}.jsonl"


def _names(words: str) -> list[str]:
    return [word.strip() for word in words.split(",")]


def _count(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"write a number from 1 on, not {word!r}")
    return int(word)


def _counts(words: str) -> list[int]:
    found = [int(word) if word.strip().isdecimal() else 0 for word in words.split(",")]
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"write numbers with commas, 1,4,8 say, not {words!r}")
    return found
