"""Measure training speed on this GPU against Hugging Face Trainer in the same run.

    python benchmarks/speed.py steady [TASK ...]     samples per second in the steady state
    python benchmarks/speed.py trials [TASK]         whole trials, in a search
    python benchmarks/speed.py parts [TASK]          profile of a captured step, by kind of kernel
    python benchmarks/speed.py attention [TASK]      attention kernels, and their cost per dropout
    python benchmarks/speed.py start [TASK]          time to the first step, and a trial's overhead
    python benchmarks/speed.py growth [TASK]         time and memory over many trials in one cell
    python benchmarks/speed.py same [TASK]           the metric reached with each step executor
    python benchmarks/speed.py table                 the results so far, with their thresholds
    python benchmarks/speed.py chart                 the same as a chart

Contenders train the same encoder, from the same configuration, on the same pairs, with the same
effective batch, optimizer, schedule, clipping and precision (bf16); only the fp32 baseline has its
own precision and padded length. Every measurement is a line in --results. Every command that
compares contenders measures Trainer too: ratios are within one command.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from common import machine
from speed_options import ON_A_GPU, check, options_of
from speed_tables import renamed, tables
from speed_tasks import COMPARED, Line, device_name
from speed_trials import SHORT, contenders_of, how_many, trials

SEARCHES = ["bare", "cells"]


def main() -> int:
    options = options_of(__doc__)
    path: Path = options.results
    lines = _read(path) if path.exists() or options.part not in ("table", "chart") else []

    here = {"device": device_name(), "machine": machine(("torch", "transformers"))}

    def keep(line: Line) -> None:
        line |= here
        lines.append(line)
        print(json.dumps(line), file=sys.stderr, flush=True)
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    first = (options.tasks or ["base16"])[0]
    if options.part == "steady":
        from speed_steady import CONTENDERS, SINGLE, steady

        chosen = options.contenders or CONTENDERS
        check(chosen, SINGLE, shown=SINGLE)
        steady(options.tasks or COMPARED, chosen, keep)
    elif options.part == "trials":
        names = _searches(options)
        check(names, SHORT.values(), shown=SHORT)
        counts = options.trials, options.reference_trials, options.baseline_trials
        numbers = {name: how_many(name, *counts) for name in ["Trainer", *names]}
        trials(first, names, numbers, keep)
    elif options.part in ON_A_GPU:
        from speed_attention import attention
        from speed_parts import parts

        {"parts": parts, "attention": attention}[options.part](first, keep)
    elif options.part == "start":
        from speed_start import start

        start(first, keep)
    elif options.part == "growth":
        from speed_growth import growth

        growth(first, options.repeat, options.seconds, keep)
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


def _read(path: Path) -> list[Line]:
    """Return the lines of the file, which is created if necessary, under current names."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+") as file:
            file.seek(0)
            return [renamed(json.loads(line)) for line in file.read().splitlines()]
    except OSError as error:
        raise SystemExit(f"{path} cannot be written: {error.strerror}.") from None
    except ValueError:
        raise SystemExit(f"{path} cannot be read: not every line of it is JSON.") from None


def _searches(options: argparse.Namespace) -> list[str]:
    words = options.contenders or SEARCHES
    return contenders_of(words, options.cells, mps=options.mps, compiled=options.compiled)


def _write(lines: list[Line], path: Path) -> None:
    """Write the dated JSON, with the machine of the last measurement."""
    last = next(line for line in reversed(lines) if "machine" in line)
    rest = [{k: v for k, v in line.items() if k not in ("machine", "device")} for line in lines]
    kept = {"machine": last["machine"], "device": last["device"], "lines": rest}
    path.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
