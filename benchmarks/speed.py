"""Measure training speed on this GPU against Hugging Face Trainer in the same run.

    python benchmarks/speed.py steady [TASK ...]     samples per second in the steady state
    python benchmarks/speed.py trials [TASK ...]     whole trials, in a search
    python benchmarks/speed.py parts [TASK]          profile of a captured step, by kind of kernel
    python benchmarks/speed.py start [TASK]          time to the first step, and a trial's overhead
    python benchmarks/speed.py growth [TASK]         time and memory over many trials in one cell
    python benchmarks/speed.py table                 the results so far, with their thresholds

Contenders train the same encoder, from the same configuration, on the same pairs, with the same
effective batch, optimizer, schedule, clipping and precision (bf16); only the fp32 baseline has its
own precision and padded length. Tasks such as multilabel16 have the other agents, on the same
texts; "trials TASK --contenders '1 cell' --no-cudnn" compares whole trials of an agent, with and
without start-up. Every measurement is a line in --results. Every command that
compares contenders measures Trainer too: ratios are within one command.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common import machine
from speed_tables import tables
from speed_tasks import COMPARED, DEVICE, HERE, TASKS, Keep, Line, cells_of, device_name
from speed_trials import BASELINE_SECONDS, SHORT, how_many, trials

PARTS = ("steady", "trials", "parts", "start", "growth", "table")
WITH_TRAINER = ("steady", "trials")
_RESULTS = HERE / "results"


def main() -> int:
    options = _options()
    path: Path = options.results
    lines = _read(path) if path.exists() or options.part != "table" else []
    here = {"device": device_name(), "machine": machine(("torch", "transformers"))}

    def keep(line: Line) -> None:
        line |= here
        lines.append(line)
        print(json.dumps(line), file=sys.stderr, flush=True)
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    if options.part != "table":
        _measure(options, keep)
    if not lines:
        print(f"There are no results in {path} yet.", file=sys.stderr)
        return 1
    missed = tables(lines)
    return int(missed and options.part == "table")


def _measure(options: argparse.Namespace, keep: Keep) -> None:
    """Run the chosen part. Each imports its own libraries, whose import takes seconds."""
    first = (options.tasks or ["base16"])[0]
    if options.part == "steady":
        from speed_steady import CONTENDERS, SINGLE, steady

        chosen = options.contenders or CONTENDERS
        _check(chosen, SINGLE)
        steady(options.tasks or COMPARED, chosen, keep)
    elif options.part == "trials":
        words = options.contenders or ["bare", "1 cell", "4 cells", "8 cells"]
        _check(words, SHORT)
        names = [SHORT.get(word, word) for word in words]
        counts = options.trials, options.reference_trials, options.baseline_trials
        numbers = {name: how_many(name, *counts) for name in ["Trainer", *names]}
        for name in options.tasks or [first]:
            trials(name, names, numbers, keep, options.no_cudnn)
    elif options.part == "parts":
        from speed_parts import parts

        parts(first, keep)
    elif options.part == "start":
        from speed_start import start

        start(first, keep)
    else:
        from speed_growth import growth

        growth(first, options.repeat, options.seconds, keep)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=", ".join(TASKS))
    parser.add_argument(
        "--contenders",
        type=_names,
        help="names with commas. steady: bare loop, eager, captured, compiled, 4 cells, "
        "4 cells MPS, 4 cells MPS compiled, 4 cells MPS 70%% compiled. trials: bare, baseline, "
        "or cells as in steady. Trainer is always one of them.",
    )
    number: dict[str, Any] = {"type": _count, "metavar": "N"}
    parser.add_argument("--trials", **number, default=8, help="our trials, three or more per cell")
    parser.add_argument(
        "--reference-trials", **number, default=5, help="trials of the peers, at least three"
    )
    limit = f"trials of the fp32 baseline, within {BASELINE_SECONDS:.0f} s"
    parser.add_argument("--baseline-trials", **number, default=3, help=limit)
    parser.add_argument(
        "--no-cudnn",
        action="store_true",
        help="trials: Trainer and the plain loop do without cuDNN's attention too, which builds "
        "kernels for each dropout and length",
    )
    parser.add_argument("--repeat", **number, default=200, help="growth: number of short trials")
    parser.add_argument("--seconds", type=float, default=400, help="growth: time limit")
    parser.add_argument(
        "--results",
        type=Path,
        help="lines of JSON; default: benchmarks/results/speed-DATE.jsonl, with -cpu without a "
        "GPU; for table: the newest file",
    )
    options = parser.parse_args()
    if problem := _problem(options):
        parser.error(problem)
    options.results = options.results or _default(options.part)
    return options


def _problem(options: argparse.Namespace) -> str | None:
    """Return what is wrong with the options; None if nothing is."""
    if unknown := set(options.tasks) - set(TASKS):
        return f"there is no task {', '.join(sorted(unknown))}; there are {', '.join(TASKS)}"
    if len(options.tasks) > 1 and options.part not in WITH_TRAINER:
        return f"{options.part} takes one task at a time"
    if options.part == "parts" and DEVICE == "cpu":
        return "parts needs a GPU, and there is none here"
    if options.part in WITH_TRAINER and find_spec("accelerate") is None:
        return "Trainer, the reference, needs accelerate: pip install accelerate"
    return None


def _check(names: list[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known and cells_of(name) is None:
            raise SystemExit(f"There is no contender {name!r}; there are {', '.join(known)}, and "
                             f"cells, such as '4 cells MPS compiled'.")  # fmt: skip


def _default(part: str) -> Path:
    if part == "table":
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


def _read(path: Path) -> list[Line]:
    """Return the lines of the file, which is created if necessary."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+") as file:
            file.seek(0)
            return [json.loads(line) for line in file.read().splitlines()]
    except OSError as error:
        raise SystemExit(f"{path} cannot be written: {error.strerror}.") from None
    except ValueError:
        raise SystemExit(f"{path} cannot be read: not every line of it is JSON.") from None


if __name__ == "__main__":
    raise SystemExit(main())
