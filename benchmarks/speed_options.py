"""Options of speed.py, and the file of its results."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from datetime import date
from importlib.util import find_spec
from pathlib import Path

from speed_tasks import DEVICE, HERE, TASKS, cells_of
from speed_trials import BASELINE_SECONDS

PARTS = (
    "steady", "trials", "parts", "attention", "start", "growth", "same", "table", "chart"
)  # fmt: skip
ON_A_GPU = ("parts", "attention")
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
        help="names with commas. steady: bare loop, eager, captured, compiled, 4 cells, "
        "4 cells MPS, 4 cells MPS compiled, 4 cells MPS 70%% compiled. trials: bare, baseline, "
        "Trainer without cuDNN, cells (see --cells, --mps, --compiled), or cells as in steady. "
        "Trainer is always one of them.",
    )
    parser.add_argument("--cells", type=_counts, default="1,4,8", help="trials: numbers of cells")
    parser.add_argument("--mps", action="store_true", help="measure several cells also with MPS")
    parser.add_argument("--compiled", action="store_true", help="also with compiled layers")
    number = {"type": _count, "metavar": "N"}
    parser.add_argument("--trials", **number, default=8, help="our trials, three or more per cell")
    parser.add_argument(
        "--reference-trials", **number, default=5, help="trials of the peers, at least three"
    )
    limit = f"trials of the fp32 baseline, within {BASELINE_SECONDS:.0f} s"
    parser.add_argument("--baseline-trials", **number, default=3, help=limit)
    parser.add_argument("--seeds", **number, default=8, help="same: number of seeds, at least 2")
    parser.add_argument("--repeat", **number, default=200, help="growth: number of short trials")
    parser.add_argument("--seconds", type=float, default=400, help="growth: time limit")
    parser.add_argument(
        "--results",
        type=Path,
        help="lines of JSON; default: benchmarks/results/speed-DATE.jsonl, with -cpu without a "
        "GPU; for table and chart: the newest file",
    )
    options = parser.parse_args()
    if problem := _problem(options):
        parser.error(problem)
    options.results = options.results or _default(options.part)
    return options


def _problem(options: argparse.Namespace) -> str | None:
    """Return what is wrong with the options; None if nothing is."""
    if options.seeds < 2:
        return "one seed shows no noise: use --seeds 2 or more"
    if unknown := set(options.tasks) - set(TASKS):
        return f"there is no task {', '.join(sorted(unknown))}; there are {', '.join(TASKS)}"
    if len(options.tasks) > 1 and options.part != "steady":
        return f"{options.part} takes one task at a time"
    if options.part in ON_A_GPU and DEVICE == "cpu":
        return f"{options.part} needs a GPU, and there is none here"
    if options.part in WITH_TRAINER and find_spec("accelerate") is None:
        return "Trainer, the reference, needs accelerate: pip install accelerate"
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
