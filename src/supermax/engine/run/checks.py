"""Validation of the arguments of supermax.optimize: all errors at once, before anything is
changed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from numbers import Integral, Real

from optuna.pruners import BasePruner
from optuna.study import Study

from supermax._util import system
from supermax.engine.processes.checkpoints import check_place
from supermax.engine.processes.fork_server import LOADING
from supermax.engine.processes.ray_cluster import RayExecutor
from supermax.engine.processes.remote_trial import RemoteStudy
from supermax.engine.run.no_gain import WhenNoGain
from supermax.engine.run.options import RunOptions
from supermax.errors import UserError


def check_arguments(study: Study, objective: object, options: RunOptions) -> None:
    """Raise UserError that lists all invalid arguments, or names a call that cannot work."""
    _refuse(
        ("study", study, _is_study, "an optuna.Study"),
        ("objective", objective, callable, "a function that takes a trial"),
        *_rows(options),
    )
    _check_places(options)
    _check_executor(options)
    check_stop(options, len(study.directions))
    if options.executor is None:
        _check_gpus(options.devices)
    if isinstance(study, RemoteStudy):
        raise UserError(
            "supermax.optimize cannot run on a study from inside one of that study's own trials."
        )
    if os.environ.get(LOADING):
        raise UserError(
            "supermax.optimize was called while the objective was being loaded in another "
            "process: a module that the objective needs calls it when it is imported. Put that "
            "call under `if __name__ == '__main__':`."
        )
    if study._thread_local.in_optimize_loop:
        raise UserError(
            "This study is being optimized already. Wait for that call to return, then call again."
        )


def check_stop(options: RunOptions, objectives: int) -> None:
    """Raise UserError if a run with several objectives is to end by itself."""
    if options.stop is not None and objectives > 1:
        raise UserError(
            f"A run ends by itself only with one objective, and this study has {objectives}. "
            f"Leave it out (stop=None, --stop never)."
        )


def check_pruner(study: object, pruner: object) -> None:
    """Raise UserError unless the pruner can replace that of the study."""
    _refuse(
        ("study", study, _is_study, "an optuna.Study"),
        ("pruner", pruner, _is_pruner, "a pruner, such as supermax.Promotion()"),
    )


def check_options(options: RunOptions) -> None:
    """Raise UserError that lists all invalid options."""
    _refuse(*_rows(options))
    _check_places(options)


def _check_places(options: RunOptions) -> None:
    if options.checkpoints is not None:
        check_place(os.fspath(options.checkpoints))


def _check_executor(options: RunOptions) -> None:
    if options.executor is not None and options.devices:
        raise UserError(
            "devices are GPUs of this machine. On a Ray cluster, Ray chooses the GPUs: leave "
            "devices out, and give workers GPUs with supermax.RayExecutor(num_gpus=1)."
        )


_Row = tuple[str, object, Callable[[object], bool], str]
"""Name and value of an argument, its check, and what it must be."""


def _refuse(*rows: _Row) -> None:
    wrong = [
        f"{name} must be {wanted}, but is {_shown(value)}"
        for name, value, fits, wanted in rows
        if not fits(value)
    ]
    if wrong:
        raise UserError(f"{'; '.join(wrong)}.")


def _rows(options: RunOptions) -> list[_Row]:
    return [
        ("n_trials", options.n_trials, _or_none(_integer_from(0)), "an integer >= 0"),
        ("workers", options.workers, _integer_from(1), "an integer >= 1"),
        ("retries", options.retries, _integer_from(0), "an integer >= 0"),
        ("timeout", options.timeout, _or_none(_seconds), _SECONDS),
        ("deadline", options.deadline, _or_none(_moment), "a moment of time.monotonic()"),
        ("trial_timeout", options.trial_timeout, _or_none(_seconds), _SECONDS),
        ("stall_timeout", options.stall_timeout, _or_none(_seconds), _SECONDS),
        ("devices", options.devices, _are_devices, "a list of indices or names of GPUs"),
        ("callbacks", options.callbacks, _are_functions, "a list of functions"),
        ("planner", options.planner, _or_none(_is_planner), _PLANNER),
        ("configure", options.configure, _or_none(callable), "a function"),
        ("paused_space", options.paused_space, _or_none(_integer_from(0)), "a number of bytes"),
        ("stop", options.stop, _or_none(_is_rule), _RULE),
        ("lease", options.lease, _seconds, _SECONDS),
        ("checkpoints", options.checkpoints, _or_none(_is_path), "a folder or a URL"),
        ("run_dir", options.run_dir, _or_none(_is_path), "the path of a folder"),
        *_executor_rows(options.executor),
    ]


def _executor_rows(executor: RayExecutor | None) -> list[_Row]:
    if executor is None:
        return []
    return [
        ("num_cpus", executor.num_cpus, _number_from(0), "a number >= 0"),
        ("num_gpus", executor.num_gpus, _number_from(0), "a number >= 0"),
        ("memory", executor.memory, _or_none(_integer_from(1)), "a number of bytes"),
        ("trials", executor.trials, _integer_from(1), "an integer >= 1"),
    ]


def _check_gpus(devices: Sequence[int | str]) -> None:
    """Raise UserError for a GPU that does not exist: a cell there would silently use the CPU."""
    gpus = system.count_gpus()
    if gpus is None:
        return
    if missing := [d for d in devices if isinstance(d, int) and not 0 <= d < gpus]:
        raise UserError(
            f"devices names {', '.join(map(str, missing))}, but this machine has {gpus} GPU(s), "
            f"counted from 0."
        )


_SECONDS = "a number of seconds above 0"
_RULE = "'when_no_gain', or a supermax.WhenNoGain with a noise above 0, a function or None"
_PLANNER = "an object with the methods provide and room"


def _is_study(value: object) -> bool:
    return isinstance(value, Study)


def _is_pruner(value: object) -> bool:
    return isinstance(value, BasePruner)


def _integer_from(least: int) -> Callable[[object], bool]:
    return lambda value: isinstance(value, Integral) and _number(value) >= least


def _number_from(least: float) -> Callable[[object], bool]:
    return lambda value: math.inf > _number(value) >= least


def _seconds(value: object) -> bool:
    return _number(value) > 0


def _moment(value: object) -> bool:
    return not math.isnan(_number(value))


def _number(value: object) -> float:
    """Return the value as a float; NaN, which no comparison accepts, for a bool or no number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    return int(value) if isinstance(value, Integral) else float(value)


def _are_devices(value: object) -> bool:
    return isinstance(value, (list, tuple, range)) and all(
        type(device) is int or (isinstance(device, str) and device) for device in value
    )


def _are_functions(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(map(callable, value))


def _is_rule(value: object) -> bool:
    if not isinstance(value, WhenNoGain):
        return False
    return value.noise is None or callable(value.noise) or _seconds(value.noise)


def _is_planner(value: object) -> bool:
    methods = (getattr(value, name, None) for name in ("provide", "room"))
    return not isinstance(value, type) and all(map(callable, methods))


def _is_path(value: object) -> bool:
    return isinstance(value, (str, os.PathLike)) and bool(os.fspath(value))


def _or_none(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or fits(value)


def _shown(value: object) -> str:
    return "None" if value is None else f"{value!r:.80}"
