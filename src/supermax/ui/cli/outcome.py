"""Lines that `supermax tune` prints last: the best trial, and the commands to use next."""

from __future__ import annotations

import math
import os
import shlex
from typing import TYPE_CHECKING

from supermax._util.text import took
from supermax.engine.summary import NO_GAIN
from supermax.search.settings.model import Settings
from supermax.studies import file_of, without_password

if TYPE_CHECKING:
    from supermax.search.tuned import Baseline, Tuned

VARIABLE = "SUPERMAX_STORAGE"


def outcome(settings: Settings, tuned: Tuned) -> list[str]:
    """Return lines about the best trial, and the commands to use next."""
    from supermax.search.race import CROSS_VALIDATION
    from supermax.search.search import titles_of

    study, where = shlex.quote(settings.study), _where(settings)
    rows = tuned.best(1)
    running = tuned.summary.trials.get("RUNNING")
    checkpoints = " Interrupted trials continue from their last checkpoint." if running else ""
    paused = "" if tuned.summary.complete else f"Paused: the same command resumes.{checkpoints}"
    if not rows:
        why = paused or f"`supermax faults {study}{where}` shows why."
        if tuned.summary.stopped_by == "timeout":
            why = (
                f"The timeout of {took(settings.timeout)} starts with the command, includes "
                f"loading, and has passed. Run the same command again with a longer --timeout."
            )
        asked = [] if paused else _name_storage(settings)
        return [f"No trial of '{settings.study}' has a value yet. {why}", *asked]
    best = rows[0]
    titles = titles_of(tuned.objectives, tuned.splits.train.label_names)
    values = ", ".join(
        f"{name} {value:.4f}" for name, value in zip(titles, best["values"], strict=True)
    )
    value, which, baseline_of = best["values"][0], "Best so far", ""
    split, rows_used = "validation", tuned.splits.validation
    if (raced := best["race"]) is not None and raced.mean is not None:
        value, which, values = raced.mean, "Winner of the race", f"{titles[0]} {raced}"
        if raced.unit == "fold":
            split, rows_used = CROSS_VALIDATION, tuned.splits.seen
            baseline_of = " on the validation split alone"
    return [
        *([paused] if paused else []),
        *_ended_by_itself(settings, tuned),
        f"{which}: trial {best['trial']} ({best['encoder']}), {values} "
        f"({split}, n={rows_used.count(tuned.agent)}).",
        *_baseline_warning(tuned, titles[0], tuned.unbeaten_baseline(value), baseline_of),
        *_name_storage(settings),
        f"Show it: supermax best {study}{where}",
        f"Train and export it: supermax refit {study}{where}",
    ]


def _ended_by_itself(settings: Settings, tuned: Tuned) -> list[str]:
    """Return why the search has fewer trials than wanted, and how to go on."""
    summary = tuned.summary
    reached = summary.finished >= settings.trials
    if summary.stopped_by != NO_GAIN or summary.gain is None or reached:
        return []
    return [
        f"The search ended by itself after {summary.finished} of {settings.trials} trials, since "
        f"no further gain is expected ({summary.gain}). To go on, add --stop never."
    ]


def _baseline_warning(
    tuned: Tuned, metric: str, baseline: Baseline | None, split: str
) -> list[str]:
    """Return a sentence on a baseline that is no worse. `split` names the split of the baseline
    where it differs from that of the value."""
    if baseline is None:
        return []
    from supermax.training.eval.metrics import METRICS

    perfect = 1.0 if METRICS[tuned.objectives[0]].higher else 0.0
    advice = "Try more epochs, other learning rates or more data."
    if math.isclose(baseline.value, perfect, abs_tol=1e-9):
        advice = (
            "No model can do better on these rows: use harder ones, or another of `objectives`."
        )
    elif baseline.fitted:
        advice = "Try a pretrained encoder, more epochs, other learning rates or more data."
    kind = "fitted" if baseline.fitted else "trivial"
    return [
        f"That is no better than the {kind} baseline ({baseline.name}), which has {metric} "
        f"{baseline.value:.4f}{split}. {advice}"
    ]


def _where(settings: Settings) -> str:
    """Return the --storage option to paste into a command. Empty for the default storage, for that
    of the environment, and for one that `_name_storage` has the user name."""
    default = settings.storage is None and settings.outdir == "."
    where = settings.storage_address
    if default or where == os.environ.get(VARIABLE) or _has_password(where):
        return ""
    return f" --storage {shlex.quote(where)}"


def _name_storage(settings: Settings) -> list[str]:
    """Return how to name a storage for other commands if its URL has a password, which is not
    printed, and if the environment does not name it."""
    where = settings.storage_address
    if where == os.environ.get(VARIABLE) or not _has_password(where):
        return []
    return [
        f"The URL of the storage has a password. Type it after this command, for those that "
        f"follow: read -rs {VARIABLE} && export {VARIABLE}"
    ]


def _has_password(storage: str) -> bool:
    return file_of(storage) is None and without_password(storage) != storage
