"""What a search is about to do, in words, before its first trial.

Search ──plan()──▶ lines for a person: data, encoders, space, disk, time, where values came from
"""

from __future__ import annotations

import contextlib
import shutil
import textwrap
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from optuna.study import Study

from supermax import mps
from supermax.agents.data_notices import weaknesses
from supermax.agents.data_summary import shown_labels
from supermax.agents.fits import fits
from supermax.agents.fitting import Fitted, fitted
from supermax.agents.objective import configured
from supermax.agents.specs import spec_of
from supermax.agents.truncation import told, truncation
from supermax.engine import kernel
from supermax.engine.home import data_folder, find_home
from supermax.errors import SupermaxError
from supermax.memory import planner
from supermax.memory.budgets import GpuBudget, HostBudget
from supermax.memory.sharing import AUTO
from supermax.records import TrialRecord, finished, read
from supermax.search import Search, limits_of, storage_of
from supermax.settings import Resolved, Settings
from supermax.settings.resolving import GUESSES, THE_COMMAND
from supermax.space import find_versions, nest
from supermax.space.feasible import varying
from supermax.spaces import space_of
from supermax.study import existing, file_of, without_password
from supermax.training.steps import Execution
from supermax.tuning import foreseen, has_cuda
from supermax.words import counted, size_text

REFUSED = "supermax:infeasible"
"""The constraint that a trial breaks which fits in no way."""
_HEAD = 12  # characters for what a line is about
_MOST_CLASSES = 12  # of which the plan says how many rows they have


def plan(search: Search, verbose: bool = False) -> list[str]:
    """Return what a person should know before the first trial; `verbose`: with each setting."""
    settings, tuning = search.settings, search.tuning
    cuda = has_cuda(tuning.execution)
    fit = fitted(tuning.space or space_of(settings), "cuda" if cuda else "cpu")
    assert tuning.splits is not None
    if tuning.fit_length:
        fit = fit.with_length(tuning.splits, tuning.cache)
    allowed, _ = tuning.allowance(fit, _run_dir(settings), search.options)  # the run says it
    workers = allowed.workers
    untrained = [name for name, source in fit.sources.items() if not source.trained]
    encoders = ", ".join(f"{n} (not pretrained)" if n in untrained else n for n in fit.sources)
    device = _on_gpus(settings, workers) if cuda else "on the CPU"
    lines = [
        f"Search      {settings.agent} into the study '{settings.study}' in "
        f"{without_password(str(tuning.storage))}",
        f"How far     trials: {settings.trials}, epochs: up to {settings.epochs}, "
        f"{'up to ' * (settings.workers == AUTO)}{workers} at a time, {device}",
        *_aligned("Data", described(search)),
        f"Encoders    {encoders}",
        *(f"            {notice}" for notice in fit.notices if "not pretrained" not in notice),
        f"Space       {varying(fit.space)} parameters to search, sampler {settings.sampler}, "
        f"pruner {settings.pruner}",
        f"Disk        up to {size_text(allowed.total)} of weights and states",
    ]
    cuts = truncation(settings.agent, tuning.splits, fit.space, fit.sources.values(), tuning.cache)
    lines += _aligned("Truncation", told(cuts))
    lines += _aligned("Time", _pace(settings, workers))
    lines += _aligned("Memory", _fitting(search, fit, cuda))
    crowded = crowd(settings, workers, kernel.cores())
    unfit = unfit_preset(settings, fit)
    lines += _aligned("Beware", [*unfit, *crowded, *weaknesses(tuning.splits)])
    return [*lines, *origins(search.resolved, verbose)]


def folded(lines: list[str], width: int) -> list[str]:
    """The plan on a screen: broken between words, with what is said under what was said."""
    if width < 2 * _HEAD:
        return lines
    fold = partial(
        textwrap.wrap,
        width=width,
        subsequent_indent=" " * _HEAD,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [part for line in lines for part in fold(line)]


def _on_gpus(settings: Settings, workers: int) -> str:
    many = len(settings.gpus)
    them, it = (f"{many} GPUs", "them") if many > 1 else ("the GPU", "it")
    if workers <= max(1, many) or shutil.which(mps.CONTROL) is None:
        return f"on {them}"
    return f"sharing {them}" if settings.mps else f"taking turns on {them} (--mps: sharing {it})"


def unfit_preset(settings: Settings, fit: Fitted) -> list[str]:
    """Warn of the demo's space, made for tiny encoders, where an encoder is pretrained."""
    trained = [name for name, source in fit.sources.items() if source.trained]
    if settings.preset != "demo" or settings.space is not None or not trained:
        return []
    return [
        f"The preset demo is made for tiny encoders, and its learning rates are too high for "
        f"{', '.join(trained)}: leave `preset` out, or set it to standard"
    ]


def crowd(settings: Settings, workers: int, cores: int) -> list[str]:
    """Of more trials than cores: one on a GPU keeps a core busy too."""
    many = min(workers, settings.trials)
    if many <= cores:
        return []
    return [f"{many} trials at a time share {counted(cores, 'core')}, and wait for each other"]


def _study(settings: Settings) -> Study | None:
    try:
        versions = find_versions(existing(storage_of(settings)), settings.study)
    except SupermaxError:  # there is none yet; what is wrong with it is told when it is opened
        return None
    return versions[-1] if versions else None


def _trials(settings: Settings) -> list[TrialRecord]:
    """Those that the study already holds."""
    study = _study(settings)
    return read(study).trials if study is not None else []


def _run_dir(settings: Settings) -> Path:
    """Return the run folder, also where it is not made yet."""
    if (study := _study(settings)) is not None:
        return find_home(study).run_dir
    file = file_of(storage_of(settings))
    return file.parent if file is not None else data_folder()


def _pace(settings: Settings, workers: int) -> list[str]:
    """What the trials so far took, and what that makes of those to come."""
    trials = _trials(settings)
    took = [trial.seconds for trial in trials if trial.seconds and trial.state == "COMPLETE"]
    left = settings.trials - finished(trials)
    if not took or left <= 0:
        return []
    each = median(took)
    hours = each * left / workers / 3600
    return [f"{each:.3g} s a trial so far: some {hours:.1f} h for the {left} to come"]


def _fitting(search: Search, fit: Fitted, cuda: bool) -> list[str]:
    """How much of the space fits the device, and which encoders do not at all."""
    memory, device = search.settings.gpu_memory, "cuda" if cuda else "cpu"
    budget = GpuBudget(memory).whole if cuda else HostBudget(memory).whole
    if not budget:
        install = "pip install nvidia-ml-py, or " * cuda
        return [f"cannot be seen, and is not planned: {install}say --gpu-memory"]
    execution = foreseen(search.tuning.execution, device)
    shares = fits(fit.space, fit.sources, search.settings.agent, budget, execution)
    total = sum(share.all for share in shares.values())
    parts = [sum(getattr(s, kind) for s in shares.values()) for kind in ("whole", "split")]
    whose = "the GPU" if cuda else "this machine's memory"
    split = f", {parts[1] / total:.0%} in micro-batches" if parts[1] else ""
    lines = [
        f"{size_text(budget)} of {whose} for trials: {parts[0] / total:.0%} of batches, lengths "
        f"and optimizers fit whole{split}"
    ]
    for name, share in shares.items():
        if share.never == share.all:
            lines.append(f"{name} does not fit at all: it needs {size_text(share.smallest)}")
    return [*lines, *_fitting_now(search, fit, budget, execution)]


def _fitting_now(search: Search, fit: Fitted, budget: int, execution: Execution) -> list[str]:
    """Trials that were refused as too large, and need not be any more."""
    settings, book = search.settings, search.tuning.book()
    trials = _trials(settings)
    repeated = {trial.notes.get("repeats") for trial in trials}
    count = 0
    for trial in trials:
        if REFUSED not in trial.broken or trial.notes.get("attempts") or trial.number in repeated:
            continue
        with contextlib.suppress(Exception):  # of another space, or with encoders that are gone
            config = configured(settings.agent, nest(trial.params), limits_of(settings))
            parts = (config.encoder, config.evidence_encoder or config.encoder)
            used = parts[: 2 if settings.agent == "joint" else 1]
            spec = spec_of(config, [fit.sources[part.name] for part in used], execution)
            found = planner.plan(spec, budget, correction=book.known(spec).correction)
            count += isinstance(found, planner.Plan)
    again = (
        f"`supermax study retry {settings.study} --state pruned` runs all that were pruned again"
    )
    return [f"{counted(count, 'trial')} refused as too large would fit now: {again}"] * (count > 0)


def _aligned(head: str, lines: list[str]) -> list[str]:
    return [f"{head if i == 0 else '':<{_HEAD}}{line}" for i, line in enumerate(lines)]


def origins(resolved: Resolved, verbose: bool = False) -> list[str]:
    """Number of settings by the layer they come from, or each of them with its source; defaults
    are left out."""
    rows = [row for row in resolved.origins() if resolved.layers[row[0]] != THE_COMMAND]
    said = {key: f"{key} = {_shown(key, value)} ({source})" for key, value, source in rows}
    if verbose:
        return _aligned("Settings", list(said.values()))
    guessed = [key for key in said if resolved.layers[key] == GUESSES]  # to be looked at
    counts = Counter(resolved.layers[key] for key in said if key not in guessed).most_common()
    summary = ", ".join(f"{count} from {layer}" for layer, count in counts)
    lines = [f"{summary} (-v shows each)"] if counts else []
    return _aligned("Settings", [*lines, *(said[key] for key in guessed)])


def _shown(key: str, value: Any) -> str:
    if key in ("storage", "track"):
        return without_password(str(value))
    if key in ("gpu_memory", "keep") and value is not None:
        return size_text(value)
    return str(value) if not isinstance(value, Mapping) else ", ".join(map(str, value))


def described(search: Search) -> list[str]:
    """The data, without a word of it."""
    corpus, splits, agent = search.tuning.corpus, search.tuning.splits, search.settings.agent
    assert splits is not None
    lines = []
    if corpus.classes and agent != "evidence":
        counts = Counter(example.label for example in corpus.classes)
        total = len(corpus.classes)
        names = shown_labels(corpus)[:_MOST_CLASSES]
        balance = [f"{name} {counts[i]} ({counts[i] / total:.0%})" for i, name in enumerate(names)]
        if more := len(corpus.label_names) - len(names):
            balance.append(f"and {counted(more, 'more class', 'more classes')}")
        lines.append(f"{total:,} texts to classify: {', '.join(balance)}")
    if corpus.spans and agent != "criteria":
        answers = sum(bool(example.spans) for example in corpus.spans)
        lines.append(f"{len(corpus.spans):,} texts to find evidence in, {answers:,} with some")
    parts = [part.count(agent) for part in splits.parts]
    lines.append(
        "split into {:,} to learn from, {:,} to judge trials by, {:,} to test a refit on".format(
            *parts
        )
    )
    if splits.drawn:
        lines.append("the file has no validation rows: they were drawn from train")
    if splits.joined:
        many = counted(splits.joined, "group is", "groups are")
        lines.append(
            f"{many} joined to another by a text in common, and stay in one split with it"
        )
    if corpus.skipped:
        lines.append(f"{corpus.skipped} bad rows were skipped")
    return [f"{corpus.name}: {lines[0]}", *lines[1:]]
