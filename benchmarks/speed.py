"""How fast trials are trained on this GPU, beside Hugging Face Trainer in the same run.

    python benchmarks/speed.py steady [TASK ...]     samples a second, once it goes
    python benchmarks/speed.py trials [TASK]         whole trials, in a search
    python benchmarks/speed.py parts [TASK]          where the time of a recorded step goes
    python benchmarks/speed.py widths [TASK]         a recorded step by its width, and recording it
    python benchmarks/speed.py attention [TASK]      its kernels, and a dropout they see first
    python benchmarks/speed.py start [TASK]          before the first step, and over many trials
    python benchmarks/speed.py same [TASK]           the metric reached, however steps are taken
    python benchmarks/speed.py table                 what is in the results so far, beside its bars
    python benchmarks/speed.py chart                 the same as a picture

Contenders train the same encoder, from the same configuration, on the same pairs, with the same
effective batch, optimizer, schedule, clipping and precision (bf16); only the old way has its own
precision and width. Every measurement is a line in --results, and every command that compares
measures Trainer anew: ratios are taken within one command.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import date
from pathlib import Path

from common import machine
from speed_tables import tables
from speed_tasks import DEVICE, HERE, REFERENCE, TASKS, Line, cells_of, device_name
from speed_trials import BARE, OLD, contenders_of, how_many, trials

PARTS = ("steady", "trials", "parts", "widths", "attention", "start", "same", "table",
         "chart")  # fmt: skip
SEARCHES = "bare,cells"


def main() -> int:
    options = _options()
    path: Path = options.results
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    here = {"device": device_name(), "machine": machine(("torch", "transformers"))}

    def keep(line: Line) -> None:
        line |= here
        lines.append(line)
        print(json.dumps(line), file=sys.stderr, flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    first = (options.tasks or ["base16"])[0]
    if options.part == "steady":
        from speed_steady import CONTENDERS, SINGLE, steady

        chosen = options.contenders.split(",") if options.contenders else CONTENDERS
        _check(chosen, [*SINGLE])
        steady(options.tasks or [name for name in TASKS if name != "tiny"], chosen, keep)
    elif options.part == "trials":
        names = _searches(options)
        _check(names, [REFERENCE, BARE, OLD])
        counts = options.trials, options.reference_trials, options.old_trials
        numbers = {name: how_many(name, *counts) for name in ["Trainer", *names]}
        trials(first, names, numbers, keep)
    elif options.part in ("parts", "widths", "attention"):
        if DEVICE == "cpu":
            print("Recorded steps can only be seen on a GPU: there is none here.", file=sys.stderr)
            return 1
        from speed_attention import attention
        from speed_parts import parts
        from speed_widths import widths

        {"parts": parts, "widths": widths, "attention": attention}[options.part](first, keep)
    elif options.part == "start":
        from speed_start import start

        start(first, options.short or first, options.repeat, options.seconds, keep)
    elif options.part == "same":
        from speed_same import same

        same(first, options.seeds, keep)
    elif options.part == "chart":
        try:
            from speed_chart import chart
        except ImportError:
            print("The chart needs matplotlib: pip install matplotlib.", file=sys.stderr)
            return 1
        chart(lines, path.with_suffix(".png"))
        return 0
    if not lines:
        print(f"There are no results in {path} yet.", file=sys.stderr)
        return 1
    missed = tables(lines)
    if options.part != "table":
        return 0
    _write(lines, path.with_suffix(".json"))
    return int(missed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=", ".join(TASKS))
    parser.add_argument(
        "--contenders",
        help="with commas; of steady: bare loop, eager, captured, compiled, 4 cells, 4 cells MPS, "
        "4 cells MPS compiled, 4 cells MPS 70%% compiled; of trials: bare, old, cells (see "
        "--cells, --mps, --compiled), or names as of steady. Trainer always is one.",
    )
    parser.add_argument("--cells", type=_counts, default="1,4,8", help="of trials, at a time")
    parser.add_argument("--mps", action="store_true", help="several cells also with MPS")
    parser.add_argument("--compiled", action="store_true", help="cells also with compiled steps")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--reference-trials", type=int, default=5, help="of the others' searches")
    parser.add_argument("--old-trials", type=int, default=3, help="of the old way")
    parser.add_argument("--seeds", type=int, default=8, help="of same, at least 2")
    parser.add_argument("--short", metavar="TASK", help="whose encoder many short trials have")
    parser.add_argument("--repeat", type=int, default=200, help="short trials of start")
    parser.add_argument("--seconds", type=float, default=400, help="they may take at most")
    name = f"speed-{date.today().isoformat()}.jsonl"
    parser.add_argument("--results", type=Path, default=HERE / "results" / name)
    options = parser.parse_args()
    if options.seeds < 2:
        parser.error("of one seed there is no noise to see: --seeds 2 at least")
    if unknown := {*options.tasks, options.short or "tiny"} - set(TASKS):
        parser.error(
            f"there is no task {', '.join(sorted(unknown))}; there are {', '.join(TASKS)}"
        )
    return options


def _counts(words: str) -> list[int]:
    found = [int(word) if word.strip().isdecimal() else 0 for word in words.split(",")]
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"write numbers with commas, 1,4,8 say, not {words!r}")
    return found


def _check(names: list[str], known: list[str]) -> None:
    """Before minutes are spent on the others."""
    for name in names:
        if name not in known and cells_of(name) is None:
            raise SystemExit(f"There is no contender {name!r}; there are {', '.join(known)}, and "
                             f"cells, such as '4 cells MPS compiled'.")  # fmt: skip


def _searches(options: argparse.Namespace) -> list[str]:
    words = (options.contenders or SEARCHES).split(",")
    return contenders_of(words, options.cells, mps=options.mps, compiled=options.compiled)


def _write(lines: list[Line], path: Path) -> None:
    """The dated JSON, with the machine that was measured last."""
    last = next(line for line in reversed(lines) if "machine" in line)
    rest = [{k: v for k, v in line.items() if k not in ("machine", "device")} for line in lines]
    kept = {"machine": last["machine"], "device": last["device"], "lines": rest}
    path.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
