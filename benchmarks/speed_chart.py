"""Results of speed.py as one chart: a panel per task, and one for whole trials."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.layout_engine import ConstrainedLayoutEngine
from speed_tables import latest, ratio
from speed_tasks import REFERENCE, TASKS, Line, cells_of
from speed_trials import SHORT

OURS, THEIRS = "#2a6f97", "#a9b4bd"
_WIDTH, _BAR_HEIGHT, _MARGIN = 8.0, 0.27, 0.4  # inches
_CAPTION = "Blue: Supermax. ×: speed-up over Trainer in the same run."
_PEERS = ("bare loop", *SHORT.values())


@dataclass(frozen=True)
class Bar:
    name: str
    value: float
    times: float | None
    ours: bool


@dataclass(frozen=True)
class Panel:
    title: str
    bars: list[Bar]
    shown: str
    """Format of a value."""


def chart(lines: list[Line], path: Path) -> None:
    panels = _panels(lines)
    if not panels:
        raise SystemExit("There are no results to draw yet: run `steady` or `trials` first.")
    heights = [len(panel.bars) for panel in panels]
    figure, places = pyplot.subplots(
        len(panels),
        1,
        figsize=(_WIDTH, _BAR_HEIGHT * sum(heights) + _MARGIN * (len(panels) + 1)),
        gridspec_kw={"height_ratios": heights},
        squeeze=False,
        layout=ConstrainedLayoutEngine(hspace=0.06),
    )
    for place, panel in zip(places[:, 0], panels, strict=True):
        _draw(place, panel)
    figure.supxlabel(_CAPTION, fontsize=8, color="#555555")
    figure.savefig(path, dpi=160)
    pyplot.close(figure)


def _panels(lines: list[Line]) -> list[Panel]:
    some = [line for line in latest(lines) if "failed" not in line]
    found = []
    for part, key, words, shown in (
        ("steady", "samples_per_second", "samples per second", ",.0f"),
        ("trials", "per_trial", "seconds per trial, lower is better", ".3g"),
    ):
        for task in dict.fromkeys(line["task"] for line in some if line["part"] == part):
            here = [line for line in some if (line["part"], line["task"]) == (part, task)]
            bars = [
                Bar(line["contender"], line[key], ratio(line, lines, key), _is_ours(line))
                for line in sorted(here, key=_place)
            ]
            found.append(Panel(f"{_title(task)}: {words}", bars, shown))
    return found


def _place(line: Line) -> tuple[int, bool, bool, int]:
    """Return the sort key: peers, ours in one process, then cells by MPS and compilation."""
    name = line["contender"]
    if name in _PEERS:
        return _PEERS.index(name), False, False, 0
    cells = cells_of(name)
    if cells is None:
        return len(_PEERS), name != "eager", name == "compiled", 0
    return len(_PEERS) + 1, cells.mps, cells.compiled, cells.count


def _title(task: str) -> str:
    name, _, batch = TASKS[task].title.rpartition(" ")
    return f"{name}, batch {batch}"


def _is_ours(line: Line) -> bool:
    return line["contender"] not in _PEERS


def _draw(place: Any, panel: Panel) -> None:
    heights = range(len(panel.bars))
    values = [bar.value for bar in panel.bars]
    colours = [OURS if bar.ours else THEIRS for bar in panel.bars]
    place.barh(heights, values, height=0.72, color=colours)
    place.set_yticks(heights, [bar.name for bar in panel.bars], fontsize=9)
    place.set_ylim(len(panel.bars) - 0.4, -0.6)
    place.set_xlim(0, 1.18 * max(values))
    place.set_title(panel.title, loc="left", fontsize=10, fontweight="bold")
    for height, bar in zip(heights, panel.bars, strict=True):
        known = bar.times is not None and bar.name != REFERENCE
        times = f"  {bar.times:.1f}×" if known else ""
        words = f" {bar.value:{panel.shown}}{times}"
        place.text(bar.value, height, words, va="center", fontsize=9)
    place.xaxis.set_visible(False)
    place.tick_params(axis="y", length=0)
    for side in ("top", "right", "bottom"):
        place.spines[side].set_visible(False)
    place.spines["left"].set_color("#888888")
