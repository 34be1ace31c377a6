"""Families of tasks: where their files are, and which tasks they have."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import NamedTuple

import lcbench
import taskset
import tweeteval
from tables import Table
from trainings import RECORDING


class Sources(NamedTuple):
    """Files of the families; None: the family is left out."""

    taskset: Path | None = None
    lcbench: Path | None = None
    tweeteval: Path | None = None


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the files."""
    parser.add_argument("--taskset", type=Path, metavar="DIR", help="files of TaskSet")
    parser.add_argument("--lcbench", type=Path, metavar="DIR", help="the surrogate of LCBench")
    parser.add_argument(
        "--tweeteval",
        type=Path,
        nargs="?",
        const=RECORDING,
        metavar="FILE",
        help=f"recorded fine-tuning trainings; without FILE: {RECORDING.name}",
    )


def sources_of(options: argparse.Namespace) -> Sources:
    return Sources(options.taskset, options.lcbench, options.tweeteval)


def names(sources: Sources) -> list[str]:
    """Return the names of all tasks of these families, without reading their curves."""
    found = []
    if sources.taskset:
        found += [f"taskset-{task}" for task in taskset.names(sources.taskset)]
    if sources.lcbench:
        found += [f"lcbench-{task}" for task in lcbench.names(sources.lcbench)]
    if sources.tweeteval:
        found += [f"tweeteval-{task}" for task in tweeteval.names()]
    return found


@functools.cache
def read(name: str, sources: Sources) -> Table:
    """Return the table of a task."""
    family, task = name.split("-", 1)
    if family == "taskset" and sources.taskset:
        return taskset.read(sources.taskset, task)
    if family == "lcbench" and sources.lcbench:
        return lcbench.read(sources.lcbench, task)
    if family == "tweeteval" and sources.tweeteval:
        return tweeteval.read(sources.tweeteval, task)
    raise ValueError(f"No files were given for the task {name}.")
