"""Plot the regret of searches against the epochs that they have spent, one figure per family.

    python benchmarks/search/plot.py RESULTS.jsonl … --into docs/images

Lines are medians over tasks and seeds, bands the quartiles. A panel shows the searches (task and
seed) that all its contenders have; their number is in its title. A contender with fewer than half
of the tasks is left out. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import matplotlib
import numpy as np
from measure import Run, curve
from results import add_results, family_of, read_results, shared_runs

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Style(NamedTuple):
    """Appearance of a contender, the same in all figures."""

    label: str
    color: str
    line: str = "-"


STYLES = {
    "supermax": Style("Supermax", "#0072B2"),
    "supermax-no-portfolio": Style("Supermax, nothing known", "#56B4E9"),
    "supermax-defaults": Style("Supermax, hand-chosen defaults", "#0072B2", "--"),
    "supermax-no-promotion": Style("without Promotion", "#D55E00"),
    "supermax-gp": Style("Supermax with GPSampler", "#009E73"),
    "supermax-gp-defaults": Style("GPSampler, hand-chosen defaults", "#009E73", "--"),
    "optuna": Style("Optuna: TPE, MedianPruner", "#000000"),
    "optuna-no-pruning": Style("Optuna: TPE, no pruning", "#777777", "--"),
    "optuna-hyperband": Style("Optuna: TPE, Hyperband", "#CC79A7"),
    "syne-tune-asha": Style("Syne Tune: ASHA", "#E69F00"),
    "syne-tune-mobster": Style("Syne Tune: MOBSTER", "#E69F00", "--"),
    "syne-tune-cqr": Style("Syne Tune: ASHA with CQR", "#E69F00", ":"),
    "neps-priorband": Style("NePS: PriorBand", "#009E73"),
    "smac-hyperband": Style("SMAC: multi-fidelity", "#CC79A7"),
    "auto-sampler": Style("OptunaHub: AutoSampler", "#D55E00"),
}
REFERENCES = ("supermax-no-portfolio", "supermax-defaults", "optuna")
PANELS: Mapping[str, Sequence[str]] = {
    "Supermax and Optuna": (
        "supermax",
        "supermax-no-portfolio",
        "optuna",
        "optuna-no-pruning",
        "optuna-hyperband",
    ),
    "Parts of Supermax": (
        "supermax",
        "supermax-defaults",
        "supermax-no-portfolio",
        "supermax-no-promotion",
    ),
    "Other projects": (
        *REFERENCES,
        "syne-tune-asha",
        "syne-tune-mobster",
        "syne-tune-cqr",
        "neps-priorband",
        "smac-hyperband",
        "auto-sampler",
    ),
    "TPE and GPSampler": ("supermax-gp", "supermax", "supermax-gp-defaults", "supermax-defaults"),
}
TITLES = {"taskset": "TaskSet", "lcbench": "LCBench", "tweeteval": "TweetEval"}
_LINEAR = 0.01  # below this regret, the axis is linear: regrets can be negative
_TICKS = (-0.1, -0.01, 0, 0.01, 0.05, 0.1, 0.5, 1, 5)
_POINTS = 150  # of a line


def contenders_of(runs: Sequence[Run], panel: Sequence[str]) -> list[str]:
    """Return the contenders of a panel that have at least half of the tasks; none, if only the
    references are left, or not the first one of the panel."""
    tasks = {name: {run.task for run in runs if run.contender == name} for name in STYLES}
    every = set().union(*tasks.values())
    found = [name for name in panel if 2 * len(tasks[name]) >= len(every)]
    shown = panel[0] in REFERENCES or panel[0] in found
    return found if shown and set(found) - {*REFERENCES} else []


def draw_panel(axes: Axes, title: str, by_contender: Mapping[str, Sequence[Run]]) -> None:
    """Draw a line with a band for each contender."""
    for name, runs in by_contender.items():
        budget, style = runs[0].budget, STYLES[name]
        epochs = np.geomspace(1, budget, _POINTS)
        low, middle, high = curve(runs, list(epochs / budget))
        axes.plot(epochs, middle, style.line, color=style.color, label=style.label, linewidth=1.8)
        axes.fill_between(epochs, low, high, color=style.color, alpha=0.12, linewidth=0)
    searches = max(map(len, by_contender.values()), default=0)
    axes.set_title(f"{title} ({searches} searches each)", fontsize=11)
    axes.legend(loc="lower left", fontsize=9, frameon=False)


def draw(runs: Sequence[Run], title: str, file: Path) -> None:
    """Draw the figure of one family."""
    figure, grid = pyplot.subplots(2, 2, figsize=(9, 7.4), sharex=True, sharey=True)
    shown = [run for run in runs if run.contender in STYLES]
    budget, lowest = max(run.budget for run in shown), min(run.final for run in shown)
    for axes, (name, contenders) in zip(grid.flat, PANELS.items(), strict=True):
        by_contender = shared_runs(shown, contenders_of(shown, contenders))
        if not any(by_contender.values()):
            axes.set_axis_off()
            continue
        draw_panel(axes, name, by_contender)
        axes.set_xscale("log")
        axes.set_yscale("symlog", linthresh=_LINEAR, linscale=0.5)
        axes.set_yticks([tick for tick in _TICKS if tick >= min(lowest, 0)])
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set_xlim(1, budget)
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.set_xlabel("epochs of all workers")
        axes.tick_params(labelbottom=True)  # sharex hides it above the last row
    for axes in grid[:, 0]:
        axes.set_ylabel("regret")
    figure.suptitle(title, fontsize=12)
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_results(parser)
    parser.add_argument("--into", type=Path, required=True, metavar="FOLDER")
    options = parser.parse_args(arguments)
    runs = read_results(options)
    for family in dict.fromkeys(map(family_of, runs)):
        file = options.into / f"search-{family}.png"
        draw([run for run in runs if family_of(run) == family], TITLES.get(family, family), file)
        print(f"{file}: {file.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
