"""Optional arguments of hyperparameter_search."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler

from supermax.engine.events import Listener
from supermax.engine.run.no_gain import WhenNoGain


class OptunaOptions(TypedDict, total=False):
    """Arguments of optuna.create_study and Study.optimize."""

    storage: Any
    study_name: str | None
    sampler: BaseSampler | None
    pruner: BasePruner | None
    load_if_exists: bool
    n_jobs: int
    gc_after_trial: bool
    catch: Any


class RunArguments(TypedDict, total=False):
    """Arguments of supermax.optimize that it gets as they are."""

    timeout: float | None
    deadline: float | None
    reuse_cells: bool
    trial_timeout: float | None
    stall_timeout: float | None
    retries: int
    devices: Sequence[int | str] | None
    lease: float
    callbacks: Any
    progress: bool | Listener | None
    reuse_results: bool
    paused_space: int | None
    stop: Literal["when_no_gain"] | WhenNoGain | None
    track: str | Sequence[str] | None
    notify: str | Sequence[str] | None


class SearchOptions(OptunaOptions, RunArguments, total=False):
    """Arguments of hyperparameter_search that Trainer.hyperparameter_search passes on to its
    backend, and those of supermax.optimize."""

    workers: int
    run_dir: str | os.PathLike[str] | None


NAMES = frozenset(SearchOptions.__optional_keys__)


def passed_on(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for supermax.optimize."""
    known = {*RunArguments.__optional_keys__, "pruner"}
    return {name: value for name, value in options.items() if name in known}
