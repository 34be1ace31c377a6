"""Plotly figures of a StudyRecord, one function per figure; None without data to show.

The functions are pure: the same record gives the same figure.
"""

from __future__ import annotations

from supermax.results.report.figures.history import curves, history
from supermax.results.report.figures.parameters import (
    importance,
    importances,
    parallel,
    slice_plot,
    slices,
)
from supermax.results.report.figures.results import encoders, pareto
from supermax.results.report.figures.running import durations, memory, speed, throughput
from supermax.results.report.figures.timeline import timeline

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
