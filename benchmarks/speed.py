"""How fast trials are trained on this GPU, beside Hugging Face Trainer in the same run.

    python benchmarks/speed.py steady [TASK ...]     samples a second, once it goes
    python benchmarks/speed.py trials [TASK]         whole trials, in a search
    python benchmarks/speed.py parts [TASK]          where the time of a recorded step goes
    python benchmarks/speed.py widths [TASK]         a recorded step by its width, and recording it
    python benchmarks/speed.py attention [TASK]      its kernels, and a dropout they see first
    python benchmarks/speed.py start [TASK]          before the first step, and beside the steps
    python benchmarks/speed.py growth [TASK]         many short trials in one cell
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
from pathlib import Path

from common import machine
from speed_options import ON_A_GPU, check, options_of
from speed_tables import tables
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
        counts = options.trials, options.reference_trials, options.old_trials
        numbers = {name: how_many(name, *counts) for name in ["Trainer", *names]}
        trials(first, names, numbers, keep)
    elif options.part in ON_A_GPU:
        from speed_attention import attention
        from speed_parts import parts
        from speed_widths import widths

        {"parts": parts, "widths": widths, "attention": attention}[options.part](first, keep)
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
    """The lines that are there; more can be written behind them."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+") as file:
            file.seek(0)
            return [json.loads(line) for line in file.read().splitlines()]
    except OSError as error:
        raise SystemExit(f"{path} cannot be written: {error.strerror}.") from None
    except ValueError:
        raise SystemExit(f"{path} cannot be read: not every line of it is JSON.") from None


def _searches(options: argparse.Namespace) -> list[str]:
    words = options.contenders or SEARCHES
    return contenders_of(words, options.cells, mps=options.mps, compiled=options.compiled)


def _write(lines: list[Line], path: Path) -> None:
    """The dated JSON, with the machine that was measured last."""
    last = next(line for line in reversed(lines) if "machine" in line)
    rest = [{k: v for k, v in line.items() if k not in ("machine", "device")} for line in lines]
    kept = {"machine": last["machine"], "device": last["device"], "lines": rest}
    path.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
