"""StudyRecord → Plotly figure, one function a figure; None where there is nothing to show.

The functions are pure: the same record gives the same figure.
"""

from __future__ import annotations

from supermax.report.figures.history import curves, history
from supermax.report.figures.parameters import (
    importance,
    importances,
    parallel,
    slice_plot,
    slices,
)
from supermax.report.figures.results import encoders, pareto
from supermax.report.figures.running import durations, memory, speed, throughput
from supermax.report.figures.timeline import timeline

__all__ = [
    "curves",
    "durations",
    "encoders",
    "history",
    "importance",
    "importances",
    "memory",
    "parallel",
    "pareto",
    "slice_plot",
    "slices",
    "speed",
    "throughput",
    "timeline",
]
