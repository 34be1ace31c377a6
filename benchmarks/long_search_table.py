"""Tables and dated JSON of a long search. Needs neither a GPU nor torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from long_search_files import Line, LongSearchFolder
from long_search_summary import BASELINE, summary
from rich.console import Console
from rich.table import Table

MOST_SHORT = 0.01
LEAST_BUSY = 0.85


def table(folder: Path, into: Path) -> int:
    """Print the tables and write the JSON. Return 1 if a threshold is missed, else 0."""
    files = LongSearchFolder(folder)
    found = summary(files)
    console = Console(width=140)
    for title, part in (("encoder", "by_encoder"), ("agent", "by_agent")):
        console.print(_endings(title, found[part] + found["all"]))
    reasons = Table("state", "reason", "trials")
    for line in found["by_reason"]:
        reasons.add_row(line["state"], line["reason"], str(line["trials"]))
    console.print(reasons)
    if found["shortages"]["each"]:
        console.print(_each(found["shortages"]["each"]))
    rows = thresholds(found)
    shown = Table("what", "measured", "threshold", "")
    for name, measured, threshold, met in rows:
        shown.add_row(name, measured, threshold, {True: "met", False: "MISSED", None: ""}[met])
    console.print(shown)
    console.print(f"Baseline: {BASELINE['source']}.", soft_wrap=True)
    into.parent.mkdir(parents=True, exist_ok=True)
    into.write_text(json.dumps({**found, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 1 if any(met is False for *_, met in rows) else 0


def thresholds(found: Line) -> list[tuple[str, str, str, bool | None]]:
    """Return rows of name, measured value, threshold, and whether it is met; None: it has none."""
    short, gpu, rate = found["shortages"], found["gpu"], found["rates"]
    alone = found["all"][0] if found["all"] else {"by_themselves": 0, "finished": 0, "share": None}
    busy, share = gpu["from_first_step_of_turn"], short["share"]
    by_hour = [f"{name} {line['per_hour']:.0f}" for name, line in rate["by_agent"].items()]
    at_once = [f"{name} {line['at_once']}" for name, line in rate["by_agent"].items()]
    low, high = short["interval"]
    return [
        (
            "trials that ended by themselves",
            f"{alone['by_themselves']} of {alone['finished']}, {_share(alone['share'])}",
            "baseline 85-90 %",
            None,
        ),
        (
            "attempts short of memory",
            f"{short['short']} of {short['attempts']}, {_share(share)} ({low:.2%} to {high:.2%})",
            "< 1 %",
            None if share is None else share < MOST_SHORT,
        ),
        ("of them attempted again", str(short["attempted_again"]), "", None),
        ("attempts interrupted by the end of a piece", str(short["interrupted"]), "", None),
        (
            "GPU busy, from the first training step of each turn on",
            _share(busy),
            ">= 85 %",
            None if busy is None else busy >= LEAST_BUSY,
        ),
        (
            "the same, until the pause was requested",
            _share(gpu["until_pause_requested"]),
            "",
            None,
        ),
        (
            "the same, from the first step of each piece on",
            _share(gpu["from_first_step_of_piece"]),
            "",
            None,
        ),
        ("the same, all of the time", _share(gpu["pieces"]), "", None),
        (
            "seconds from the start of a turn to its first step",
            _range(gpu["start_up_seconds"]),
            "",
            None,
        ),
        (
            "trials an hour, all of the time",
            _number(rate["per_hour"]),
            "",
            None,
        ),
        ("baseline, at most (all bert-base)", _bounds(rate["baseline_at_most"]), "", None),
        (
            "baseline, extrapolated to larger encoders",
            _bounds(rate["baseline_extrapolated"]),
            "",
            None,
        ),
        ("trials an hour, without start-up", _number(rate["per_hour_without_start_up"]), "", None),
        ("by agent, in its turns", ", ".join(by_hour), "", None),
        ("most trials at the same time", ", ".join(at_once), "", None),
    ]


def _share(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.0f}"


def _bounds(bounds: tuple[float, float] | None) -> str:
    return f"{bounds[0]:.0f} to {bounds[1]:.0f} an hour" if bounds else "unknown"


def _range(values: Sequence[float]) -> str:
    return f"{min(values)} to {max(values)}" if values else "no trial completed"


def _endings(title: str, rows: list[Line]) -> Table:
    shown = Table(
        title,
        "finished",
        "by themselves",
        "share",
        "95 % interval",
        "interrupted",
        "short of memory",
    )
    for line in rows:
        low, high = line["interval"]
        shown.add_row(
            line["name"],
            str(line["finished"]),
            str(line["by_themselves"]),
            _share(line["share"]),
            f"{low:.1%} to {high:.1%}",
            str(line["interrupted"]),
            f"{line['short']} of {line['attempts']} attempts",
        )
    return shown


def _each(each: list[Line]) -> Table:
    shown = Table("agent", "trial", "encoder", "batch", "length", "estimate", "peak", "cause", "")
    for short in each:
        shown.add_row(
            short["agent"],
            f"{short['trial']}.{short['attempt']}",
            short["encoder"],
            f"{short['micro_batch']} of {short['effective_batch']}",
            str(short["length"]),
            _gib(short["estimate"]),
            _gib(short["peak"]),
            short["cause"],
            short["decision"],
        )
    return shown


def _gib(size: int | None) -> str:
    return "?" if size is None else f"{size / 2**30:.2f} GiB"
