"""Results of speed.py as tables: every threshold met or MISSED.

lines ──latest()──▶ one per part, task and contender ──▶ tables, thresholds
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from speed_tasks import REFERENCE, TASKS, Line, cells_of
from speed_trials import BASELINE

WARM, GROWTH = 1.0, 0.05
MANY = 24
"""Number of trials whose total time is shown."""
_OVER = {REFERENCE: ("Trainer's search", 10.0), BASELINE: ("the fp32 baseline", 20.0)}
"""Contenders that our trials are compared with, and the required speed-up."""

Row = tuple[str, str, str, bool]
"""Threshold: what, measured, threshold, and whether it was met."""


def at_least(what: str, measured: float | None, bar: float) -> Row:
    """Return a lower bound. `measured` None: it failed, or has no reference in the same run."""
    met = measured is not None and measured >= bar
    return what, _times(measured) or "no figure", f"≥ {bar:g}×", met


def latest(lines: Iterable[Line]) -> list[Line]:
    """Return the latest run per part, task and contender, in the order of tasks."""
    found: dict[tuple[str, str, str], Line] = {}
    for line in lines:
        key = line["part"], line["task"], line["contender"]
        if key not in found or float(line["run"]) >= float(found[key]["run"]):
            found[key] = line
    order = list(TASKS)
    return sorted(found.values(), key=lambda line: order.index(line["task"]))


def ratio(line: Line, lines: Iterable[Line], key: str, over: str = REFERENCE) -> float | None:
    """Return the speed-up over Trainer, or another contender, within one run.

    "samples_per_second" is a rate; other keys are durations. None: no figure in that run.
    """
    there = _of_run(line, lines, key, over)
    if there is None or key not in line:
        return None
    quotient = float(line[key]) / there
    return quotient if key == "samples_per_second" else 1 / quotient


def _of_run(line: Line, lines: Iterable[Line], key: str, over: str = REFERENCE) -> float | None:
    """Return the figure of Trainer, or another contender, in the run of this line."""
    one = _line_of_run(line, lines, over)
    return float(one[key]) if one is not None and key in one else None


def _line_of_run(line: Line, lines: Iterable[Line], over: str = REFERENCE) -> Line | None:
    """Return the line of Trainer, or another contender, in the run of this line."""
    for one in lines:
        same = all(one[k] == line[k] for k in ("part", "run", "task"))
        if same and one["contender"] == over:
            return one
    return None


def tables(lines: list[Line]) -> bool:
    """Print all tables. Return True if a threshold was missed."""
    console, thresholds, chosen = Console(width=170), list[Row](), latest(lines)
    makers = {"steady": _steady, "trials": _trials, "parts": _parts, "start": _start}
    for part, make in makers.items():
        if some := [line for line in chosen if line["part"] == part]:
            shown, bars = make(some, lines)
            console.print(*shown)
            thresholds += bars
    summary = Table("what", "measured", "threshold", "", title="thresholds")
    for what, measured, bar, met in thresholds:
        summary.add_row(what, measured, bar, "met" if met else "MISSED")
    if thresholds:
        console.print(summary)
    return not all(met for *_, met in thresholds)


def _steady(some: list[Line], lines: list[Line]) -> tuple[list[Table], list[Row]]:
    shown = Table(
        "task", "contender", "samples/s", "× Trainer", "Trainer there", "first epoch", "loss", "",
        title="samples per second",
    )  # fmt: skip
    ratios: dict[str, dict[str, float | None]] = {}
    for line in some:
        times = ratio(line, lines, "samples_per_second")
        ratios.setdefault(line["task"], {})[line["contender"]] = times
        names = TASKS[line["task"]].title, line["contender"]
        if "failed" in line:
            shown.add_row(*names, "failed", *[""] * 4, line["failed"][:60])
            continue
        shown.add_row(
            *names,
            f"{line['samples_per_second']:.0f}",
            _times(times),
            f"{_of_run(line, lines, 'samples_per_second') or 0:.0f}",
            f"{line['first_epoch']:.1f} s",
            f"{line['loss']:.4f}",
            (line.get("how") or line.get("why_eager") or "")[:60],
        )
    bars = []
    for name, found in ratios.items():
        task = TASKS[name]
        if task.bar is not None and "captured" in found:
            bars.append(at_least(f"{task.title}: captured", found["captured"], task.bar))
        reached = [one for one in found.values() if one is not None]
        if task.best is not None and len(reached) > 1:
            bars.append(at_least(f"{task.title}: best of all", max(reached), task.best))
    return [shown], bars


def _trials(some: list[Line], lines: list[Line]) -> tuple[list[Table], list[Row]]:
    shown = Table(
        "task", "contender", "s a trial", "× Trainer", "Trainer there", "× baseline",
        "first after", "trials", f"{MANY} trials", "metric", "best", "cells", "",
        title="whole trials, from the start of the process",
        caption="metric: median of the trials that all contenders ran; best: of all its own",
    )  # fmt: skip
    bars = []
    by_task = Table(
        "task", "Trainer: s a trial", "one cell", "×", f"Trainer: {MANY} trials", "one cell", "×",
        title="whole trials by task, without and with start-up",
        caption=f"{MANY} trials: from the start of the process, extrapolated from the trials run",
    )  # fmt: skip
    for task in dict.fromkeys(line["task"] for line in some):
        here = [line for line in some if line["task"] == task]
        same, title = _tried_by_all(here), TASKS[task].title
        reached: dict[str, list[float]] = {over: [] for over in _OVER}
        for line in here:
            times = {over: ratio(line, lines, "per_trial", over) for over in _OVER}
            if cells_of(line["contender"]) is not None:
                for over, found in times.items():
                    reached[over] += [found] if found is not None else []
            there = _of_run(line, lines, "per_trial")
            cells = _trial_cells(line, times, there, _metric(line, same))
            shown.add_row(title, line["contender"], *cells)
        if TASKS[task].trial_bar is not None:
            bars += _one_cell(here, lines, by_task)
        bars += [
            at_least(f"{title}, trials: best over {name}", max(reached[over]), bar)
            for over, (name, bar) in _OVER.items()
            if reached[over] and TASKS[task].best is not None
        ]
    return [shown, *([by_task] if by_task.row_count else [])], bars


def _one_cell(here: list[Line], lines: list[Line], by_task: Table) -> list[Row]:
    """Add one cell and Trainer, in the same run, to the table; return the threshold."""
    ours = next((line for line in here if line["contender"] == "1 cell"), None)
    if ours is None:
        return []
    task = TASKS[ours["task"]]
    times = ratio(ours, lines, "per_trial")
    there = _line_of_run(ours, lines)
    if times is not None and there is not None:
        steady, whole = zip(*((x["per_trial"], _many(x)) for x in (there, ours)), strict=True)
        by_task.add_row(
            task.title, *(f"{x:.2f}" for x in steady), _times(times),
            *(f"{x:.0f} s" for x in whole), _times(whole[0] / whole[1]),
        )  # fmt: skip
    assert task.trial_bar is not None
    return [at_least(f"{task.title}: a trial in one cell", times, task.trial_bar)]


def _many(line: Line) -> float:
    """Return seconds of MANY trials, from the start of the process."""
    rest: float = (MANY - line.get("together", 1)) * line["per_trial"]
    return float(line["before_first"]) + rest


def _tried_by_all(some: list[Line]) -> set[tuple[float, ...]]:
    """Return the learning rates and dropouts that every contender has a metric for."""
    each = [{tuple(tried) for *tried, _ in line["reached"]} for line in some if "reached" in line]
    return set.intersection(*each) if each else set()


def _metric(line: Line, same: set[tuple[float, ...]]) -> float | None:
    """Return the median metric of these trials; of all its own if there are none."""
    reached = [value for *tried, value in line.get("reached", []) if tuple(tried) in same]
    return statistics.median(reached) if reached else line.get("metric")


def _trial_cells(
    line: Line, times: dict[str, float | None], there: float | None, metric: float | None
) -> list[str]:
    if "failed" in line:
        return ["failed", *[""] * 9, line["failed"][:50]]
    faults = ", ".join(f"{count} {kind}" for kind, count in line.get("faults", {}).items())
    extrapolated = "extrapolated" if line.get("reckoned") else ""
    return [
        f"{line['per_trial']:.2f}",
        _times(times[REFERENCE]),
        f"{there:.2f}" if there is not None else "",
        _times(times[BASELINE]),
        f"{line['before_first']:.1f} s",
        f"{line['trials']} in {line['whole']:.0f} s",
        f"{line['whole']:.0f} s" if line["trials"] == MANY else f"≈ {_many(line):.0f} s",
        f"{metric:.3f}" if metric is not None else "",
        f"{line['best']:.3f}" if "best" in line else "",
        str(line.get("cells", "")),
        " ".join(filter(None, [*line.get("steps", []), faults, extrapolated]))[:50],
    ]


def _parts(some: list[Line], lines: list[Line]) -> tuple[list[Table], list[Row]]:
    return [_parts_of(line) for line in some], []


def _parts_of(line: Line) -> Table:
    title = f"one step of {TASKS[line['task']].title}, {line['contender']}"
    if "failed" in line:
        return Table("failed", line["failed"][:100], title=title)
    shown = Table("part", "ms", "floor ms", title=title)
    for row in line["rows"]:
        floor = row["floor_ms"]
        shown.add_row(row["part"], f"{row['ms']:.3f}", "" if floor is None else f"{floor:.3f}")
    shown.add_section()
    shown.add_row("whole step", f"{line['step_ms']:.3f}", "")
    shown.caption = (
        f"{line['kernels']:.0f} kernels. Of {line['matrix_rate'] / 1e12:.0f} TFLOP/s and "
        f"{line['bandwidth'] / 1e12:.2f} TB/s, measured: {line['share_done']:.1%} done, "
        f"{line['share_useful']:.1%} without padding."
    )
    return shown


def _start(some: list[Line], lines: list[Line]) -> tuple[list[Table], list[Row]]:
    shown = Table("task", "what", "", title="start-up and overhead of trials")
    bars = []
    for line in some:
        title = TASKS[line["task"]].title
        shown.add_row(title, line["contender"], _start_summary(line))
        if "failed" in line:
            continue
        if line["contender"] == "warm":
            seconds = line["first_step"]
            step = f"{title}: warm first step", f"{seconds:.2f} s", f"≤ {WARM:g} s"
            bars.append((*step, seconds <= WARM))
        if line["contender"] == "growth":
            bars += _growth_bars(line, title)
    return [shown], bars


def _growth_bars(line: Line, title: str) -> list[Row]:
    kinds = {
        "seconds": line.get("over_beside", line["seconds"]),  # earlier ones have none
        "device memory": line["device_memory"],
        "host memory": line["host_memory"],
    }
    return [
        (
            f"{title}: growth of {kind} over {line['trials']} trials",
            f"{found['growth']:.1%}",
            f"≤ {GROWTH:.0%}",
            found["growth"] <= GROWTH,
        )
        for kind, found in kinds.items()
    ]


def _start_summary(line: Line) -> str:
    if "failed" in line:
        return f"failed: {line['failed'][:80]}"
    if line["contender"] == "growth":
        device, host = (line[kind] for kind in ("device_memory", "host_memory"))
        few, over = line.get("beside"), line.get("over_beside")
        beside = f" (reference cell {few['early']:.3f} and {few['late']:.3f})" if few else ""
        beside += f": {over['growth']:+.1%} ± {over['error']:.1%}" if over else ""
        return (
            f"{line['seconds']['early']:.3f} s a trial early, {line['seconds']['late']:.3f} late"
            f"{beside}; "
            f"device {device['early'] / 2**20:.0f} and {device['late'] / 2**20:.0f} MiB; "
            f"host {host['early'] / 2**20:.0f} and {host['late'] / 2**20:.0f} MiB"
        )
    words = ("imported", "prepared", "first_step", "slowest", "trial", "steps", "overhead")
    shown = [(word, line[word]) for word in words if word in line]
    return ", ".join(f"{word.replace('_', ' ')} {seconds:.2f} s" for word, seconds in shown)


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}×"
