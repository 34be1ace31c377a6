"""Results of speed.py as tables: every threshold met or MISSED.

lines ──latest()──▶ one per part, task and contender ──▶ tables, thresholds
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table
from speed_tasks import EAGER, REFERENCE, TASKS, Line, cells_of
from speed_trials import BASELINE, NO_CUDNN

BEST_TRIALS, BEST_OVER_BASELINE = 10.0, 20.0
WARM, GROWTH = 1.0, 0.05
NOISE = 2.5
"""Standard errors within which a difference of metrics counts as chance."""
MANY = 24
"""Number of trials whose total time is shown."""

_OVER = {
    REFERENCE: ("Trainer's search", BEST_TRIALS),
    NO_CUDNN: ("Trainer's search without cuDNN", BEST_TRIALS),
    BASELINE: ("the fp32 baseline", BEST_OVER_BASELINE),
}
"""Contenders that our trials are compared with, and the required speed-up."""
_RENAMED = {"old way": BASELINE, "one by one": EAGER}
"""Contenders in results from before 2026-11-18, and their names now."""


@dataclass
class Bars:
    """Thresholds, and whether they were met."""

    rows: list[tuple[str, str, str, bool]] = field(default_factory=list)

    def at_least(self, what: str, measured: float | None, bar: float) -> None:
        """Add a lower bound. `measured` None: it failed, or has no reference in the same run."""
        met = measured is not None and measured >= bar
        self.rows.append((what, _times(measured) or "no figure", f"≥ {bar:g}×", met))

    def at_most(self, what: str, measured: float, bar: float, unit: str) -> None:
        share = unit == "%"
        shown = f"{measured:.1%}" if share else f"{measured:.2f} {unit}"
        limit = f"≤ {bar:.0%}" if share else f"≤ {bar:g} {unit}"
        self.rows.append((what, shown, limit, measured <= bar))

    @property
    def missed(self) -> bool:
        return not all(met for *_, met in self.rows)


def renamed(line: Line) -> Line:
    """Return the line with the current name of its contender."""
    return {**line, "contender": _RENAMED.get(line["contender"], line["contender"])}


def latest(lines: Iterable[Line]) -> list[Line]:
    """Return the latest run per part, task and contender, in the order of tasks.

    (Earlier results say "1 cells".)
    """
    found: dict[tuple[str, str, str], Line] = {}
    for line in lines:
        cells = cells_of(line["contender"])
        name = cells.name if cells is not None else line["contender"]
        key = line["part"], line["task"], name
        if key not in found or float(line["run"]) >= float(found[key]["run"]):
            found[key] = {**line, "contender": name}
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
    for one in lines:
        same = all(one[k] == line[k] for k in ("part", "run", "task"))
        if same and one["contender"] == over and key in one:
            return float(one[key])
    return None


def tables(lines: list[Line]) -> bool:
    """Print all tables. Return True if a threshold was missed."""
    console, bars, chosen = Console(width=170), Bars(), latest(lines)
    makers = {
        "steady": _steady, "trials": _trials, "parts": _parts, "attention": _attention,
        "start": _start, "same": _same,
    }  # fmt: skip
    for part, make in makers.items():
        if some := [line for line in chosen if line["part"] == part]:
            for shown in make(some, lines, bars):
                console.print(shown)
    shown = Table("what", "measured", "threshold", "", title="thresholds")
    for what, measured, bar, met in bars.rows:
        shown.add_row(what, measured, bar, "met" if met else "MISSED")
    if bars.rows:
        console.print(shown)
    return bars.missed


def _steady(some: list[Line], lines: list[Line], bars: Bars) -> list[Table]:
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
    for name, found in ratios.items():
        task = TASKS[name]
        if task.bar is not None and "captured" in found:
            bars.at_least(f"{task.title}: captured", found["captured"], task.bar)
        reached = [one for one in found.values() if one is not None]
        if task.best is not None and len(reached) > 1:
            bars.at_least(f"{task.title}: best of all", max(reached), task.best)
    return [shown]


def _trials(some: list[Line], lines: list[Line], bars: Bars) -> list[Table]:
    shown = Table(
        "task", "contender", "s a trial", "× Trainer", "Trainer there", "× baseline",
        "first after", "trials", f"{MANY} trials", "metric", "best", "cells", "",
        title="whole trials, from the start of the process",
        caption="metric: median of the trials that all contenders ran; best: of all its own",
    )  # fmt: skip
    for task in dict.fromkeys(line["task"] for line in some):
        here = [line for line in some if line["task"] == task]
        same = _tried_by_all(here)
        reached: dict[str, list[float]] = {over: [] for over in _OVER}
        for line in here:
            times = {over: ratio(line, lines, "per_trial", over) for over in _OVER}
            if cells_of(line["contender"]) is not None:
                for over, found in times.items():
                    reached[over] += [found] if found is not None else []
            there = _of_run(line, lines, "per_trial")
            cells = _trial_cells(line, times, there, _metric(line, same))
            shown.add_row(TASKS[task].title, line["contender"], *cells)
        for over, (name, bar) in _OVER.items():
            if reached[over] and TASKS[task].best is not None:
                title = f"{TASKS[task].title}, trials: best over"
                bars.at_least(f"{title} {name}", max(reached[over]), bar)
    return [shown]


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
    many = line["before_first"] + (MANY - line.get("together", 1)) * line["per_trial"]
    faults = ", ".join(f"{count} {kind}" for kind, count in line.get("faults", {}).items())
    extrapolated = "extrapolated" if line.get("reckoned") else ""
    return [
        f"{line['per_trial']:.2f}",
        _times(times[REFERENCE]),
        f"{there:.2f}" if there is not None else "",
        _times(times[BASELINE]),
        f"{line['before_first']:.1f} s",
        f"{line['trials']} in {line['whole']:.0f} s",
        f"{line['whole']:.0f} s" if line["trials"] == MANY else f"≈ {many:.0f} s",
        f"{metric:.3f}" if metric is not None else "",
        f"{line['best']:.3f}" if "best" in line else "",
        str(line.get("cells", "")),
        " ".join(filter(None, [*line.get("steps", []), faults, extrapolated]))[:50],
    ]


def _parts(some: list[Line], lines: list[Line], bars: Bars) -> list[Table]:
    return [_parts_of(line) for line in some]


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


def _attention(some: list[Line], lines: list[Line], bars: Bars) -> list[Table]:
    shown = Table("task", "kernels", "cells", "first call with a dropout", "second call",
                  "host memory kept", "device memory kept", "ms replayed, by length",
                  title="attention")  # fmt: skip
    for line in some:
        names = TASKS[line["task"]].title, line["contender"]
        if "failed" in line:
            shown.add_row(*names, "", "failed", *[""] * 3, line["failed"][:60])
            continue
        by_length = ", ".join(f"{w}: {ms:.2f}" for w, ms in line["replayed_ms"].items())
        for cells in (key.removeprefix("of ") for key in line if key.startswith("of ")):
            found = line[f"of {cells}"]
            kept = [f"{found[key] / 1e6:.1f} MB" for key in ("host_bytes", "device_bytes")]
            times = [f"{found[key]:.1f} ms" for key in ("new_ms", "again_ms")]
            shown.add_row(*names, cells, *times, *kept, by_length)
            names, by_length = ("", ""), ""
    return [shown]


def _start(some: list[Line], lines: list[Line], bars: Bars) -> list[Table]:
    shown = Table("task", "what", "", title="start-up and overhead of trials")
    for line in some:
        title = TASKS[line["task"]].title
        shown.add_row(title, line["contender"], _start_summary(line))
        if "failed" in line:
            continue
        if line["contender"] == "warm":
            bars.at_most(f"{title}: warm first step", line["first_step"], WARM, "s")
        if line["contender"] == "growth":
            kinds = {
                "seconds": line.get("over_beside", line["seconds"]),  # earlier ones have none
                "device memory": line["device_memory"],
                "host memory": line["host_memory"],
            }
            for kind, found in kinds.items():
                what = f"{title}: growth of {kind} over {line['trials']} trials"
                bars.at_most(what, found["growth"], GROWTH, "%")
    return [shown]


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


def _same(some: list[Line], lines: list[Line], bars: Bars) -> list[Table]:
    """Compare each executor with eager steps in the same run."""
    shown = Table("task", "steps", "seeds", "mean", "deviation", "difference to eager", "loss", "",
                  title="the metric reached, over seeds")  # fmt: skip
    for line in some:
        title = TASKS[line["task"]].title
        if "failed" in line:
            shown.add_row(title, line["contender"], *[""] * 5, line["failed"][:60])
            continue
        found = [
            one for one in some
            if one["contender"] == EAGER and one["task"] == line["task"]
            and one["run"] == line["run"] and "failed" not in one
        ]  # fmt: skip
        words = ""
        if found and line["contender"] != EAGER:
            errors = _standard_errors(line["values"], found[0]["values"])
            words = f"{line['mean'] - found[0]['mean']:+.4f}, {errors:.1f} standard errors"
            what = f"{title}: difference of the metric, {line['contender']} and eager"
            bars.at_most(what, errors, NOISE, "standard errors")
        shown.add_row(
            title, line["contender"], str(len(line["values"])), f"{line['mean']:.4f}",
            f"{line['deviation']:.4f}", words, f"{line['loss']:.4f}", line["how"][:40],
        )  # fmt: skip
    return [shown]


def _standard_errors(here: list[float], there: list[float]) -> float:
    """Return the difference of the means in standard errors of the difference."""
    spread = statistics.variance(here) / len(here) + statistics.variance(there) / len(there)
    apart = abs(statistics.mean(here) - statistics.mean(there))
    return apart / math.sqrt(spread) if spread else math.inf if apart else 0.0


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}×"
