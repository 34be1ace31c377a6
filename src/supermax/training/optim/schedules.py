"""Learning-rate schedules as pure functions from the update's number to a factor.

They have no state, so a resumed trial has nothing to restore.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from supermax.training.config import ScheduleConfig

_ONE_CYCLE_FROM = 1 / 25  # the defaults of torch.optim.lr_scheduler.OneCycleLR
_ONE_CYCLE_TO = _ONE_CYCLE_FROM / 1e4


def make_schedule(config: ScheduleConfig, updates: int) -> Callable[[int], float]:
    """Return the factor of the base learning rate as a function of the update 0, 1, ..."""
    updates = max(updates, 1)
    if config.name == "one_cycle":
        return _one_cycle(config.warmup, updates)
    # At least one update comes after the warm-up, whose first update has a rate of 0.
    warmup = min(round(config.warmup * updates), updates - 1)
    decay = _decay(config)

    def factor(update: int) -> float:
        if update < warmup:
            return update / warmup
        progress = (update - warmup) / max(updates - warmup, 1)
        return decay(progress) if progress < 1 else 0.0

    return factor


def set_learning_rates(
    optimizer: torch.optim.Optimizer, base_lrs: Sequence[float], factor: float
) -> None:
    """Set the learning rate of every group to its base times the factor."""
    for group, base in zip(optimizer.param_groups, base_lrs, strict=True):
        group["lr"] = base * factor


def _decay(config: ScheduleConfig) -> Callable[[float], float]:
    """Return the factor as a function of the progress after warm-up, from 0 to 1."""
    if config.name == "cosine":
        return lambda progress: _cosine(1.0, 0.0, progress)
    if config.name == "cosine_restarts":
        return lambda progress: _cosine(1.0, 0.0, config.cycles * progress % 1.0)
    if config.name == "polynomial":
        return lambda progress: float((1 - progress) ** config.power)
    return lambda progress: 1 - progress


def _one_cycle(warmup: float, updates: int) -> Callable[[int], float]:
    last = updates - 1
    # At least one update leads up to the peak, where there is room for it.
    peak = max(warmup * updates - 1, 1.0 if updates > 2 else 0.0)

    def factor(update: int) -> float:
        if update < peak:
            return _cosine(_ONE_CYCLE_FROM, 1.0, update / peak)
        if last <= peak:
            return 1.0
        return _cosine(1.0, _ONE_CYCLE_TO, min((update - peak) / (last - peak), 1.0))

    return factor


def _cosine(start: float, end: float, progress: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2
