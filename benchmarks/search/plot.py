"""Plot the regret of searches against the epochs that they have spent, one figure per family.

    python benchmarks/search/plot.py RESULTS.jsonl … --into docs/images

Reads the results of run.py; of a search that is in several files, the last one counts. Lines are
medians over tasks and seeds, bands the quartiles. A panel shows the searches (task and seed) that
all its contenders have; their number is in its title. Needs matplotlib.
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
from run import read_runs

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
    "supermax-no-promotion": Style("without Promotion", "#D55E00"),
    "supermax-no-view": Style("without comparing at one rung", "#009E73"),
    "optuna": Style("Optuna: TPE, MedianPruner", "#000000"),
    "optuna-no-pruning": Style("Optuna: TPE, no pruning", "#777777", "--"),
    "optuna-hyperband": Style("Optuna: TPE, Hyperband", "#CC79A7"),
    "syne-tune-asha": Style("Syne Tune: ASHA", "#E69F00"),
    "syne-tune-mobster": Style("Syne Tune: MOBSTER", "#009E73"),
    "syne-tune-cqr": Style("Syne Tune: ASHA with CQR", "#D55E00"),
    "neps-priorband": Style("NePS: PriorBand", "#009E73"),
    "smac-hyperband": Style("SMAC: multi-fidelity", "#CC79A7"),
    "auto-sampler": Style("OptunaHub: AutoSampler", "#D55E00"),
}
REFERENCES = ("supermax-no-portfolio", "optuna")
PANELS: Mapping[str, Sequence[str]] = {
    "Supermax and Optuna": ("supermax", *REFERENCES, "optuna-no-pruning", "optuna-hyperband"),
    "Parts of Supermax": (
        "supermax",
        "supermax-no-portfolio",
        "supermax-no-promotion",
        "supermax-no-view",
    ),
    "Syne Tune": (*REFERENCES, "syne-tune-asha", "syne-tune-mobster", "syne-tune-cqr"),
    "Other projects": (*REFERENCES, "neps-priorband", "smac-hyperband", "auto-sampler"),
}
_LINEAR = 0.01  # below this regret, the axis is linear: regrets can be negative
_TICKS = (-0.1, -0.01, 0, 0.01, 0.05, 0.1, 0.5, 1, 5)
_POINTS = 150  # of a line


def shared_runs(runs: Sequence[Run], contenders: Sequence[str]) -> dict[str, list[Run]]:
    """Return the runs of the tasks and seeds that all these contenders have. A contender without
    any run is left out."""
    by_contender = {name: [run for run in runs if run.contender == name] for name in contenders}
    present = {name: found for name, found in by_contender.items() if found}
    keys = [{(run.task, run.seed) for run in found} for found in present.values()]
    shared = set.intersection(*keys) if keys else set()
    return {
        name: [run for run in found if (run.task, run.seed) in shared]
        for name, found in present.items()
    }


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
    budget, lowest = max(run.budget for run in runs), min(run.final for run in runs)
    for axes, (name, contenders) in zip(grid.flat, PANELS.items(), strict=True):
        by_contender = shared_runs(runs, contenders)
        if any(by_contender.values()):
            draw_panel(axes, name, by_contender)
        axes.set_xscale("log")
        axes.set_yscale("symlog", linthresh=_LINEAR, linscale=0.5)
        axes.set_yticks([tick for tick in _TICKS if tick >= min(lowest, 0)])
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set_xlim(1, budget)
        axes.grid(color="#dddddd", linewidth=0.6)
    for axes in grid[1]:
        axes.set_xlabel("epochs of all workers")
    for axes in grid[:, 0]:
        axes.set_ylabel("regret")
    figure.suptitle(title, fontsize=12)
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def families_of(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs of each family. The last of several runs of one search counts."""
    last = {(r.contender, r.task, r.seed, r.workers, r.trainings): r for r in runs}
    found: dict[str, list[Run]] = {}
    for run in last.values():
        found.setdefault(run.task.split("-")[0], []).append(run)
    return found


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--into", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--budget", type=int, default=30, help="full trainings of a search")
    options = parser.parse_args(arguments)
    runs = [run for file in options.results for run in read_runs(file)]
    setting = (options.workers, options.budget)
    runs = [r for r in runs if (r.workers, r.trainings) == setting and r.contender in STYLES]
    titles = {"taskset": "TaskSet", "lcbench": "LCBench", "tweeteval": "TweetEval"}
    for family, own in families_of(runs).items():
        file = options.into / f"search-{family}.png"
        draw(own, titles.get(family, family), file)
        print(f"{file}: {file.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
