"""Processes of a run, found by a mark in their environment, whatever their parent is now."""

from __future__ import annotations

import psutil

TAG = "SUPERMAX_FAULT_SUITE"
"""Environment variable that all processes of a run inherit."""


def tagged(tag: str) -> list[psutil.Process]:
    """Return the living processes with this value of `TAG`."""
    return [process for process in psutil.process_iter() if _tag(process) == tag]


def resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _tag(process: psutil.Process) -> str | None:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return process.environ().get(TAG)
    except psutil.Error:
        return None
