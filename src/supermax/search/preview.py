"""Describe a search before its first trial, as `supermax tune` prints it.

Search ──describe_plan()──▶ lines of text: data, encoders, space, disk, time, origin of settings
"""

from __future__ import annotations

import contextlib
import shutil
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median

from optuna.study import Study

from supermax._util import system
from supermax._util.text import counted, is_url, size_text, took
from supermax.agents import agent_of
from supermax.engine.gain import FEWEST
from supermax.engine.processes import mps
from supermax.engine.run.no_gain import WHEN_NO_GAIN
from supermax.engine.storage.locations import data_folder, find_location
from supermax.engine.storage.servers import NothingStored
from supermax.memory import planner
from supermax.memory.devices import named_gpus
from supermax.memory.sharing import AUTO
from supermax.results.notifying import check_targets
from supermax.results.records import TrialRecord, finished, read_record
from supermax.results.tracking.kinds import shown_tracker
from supermax.search.earlier import planned
from supermax.search.race import race_size, race_text
from supermax.search.search import Search
from supermax.search.settings import Resolved, Settings
from supermax.search.settings.resolving import GUESSES, THE_COMMAND
from supermax.space import find_versions, nest
from supermax.space.feasible import varying
from supermax.studies import existing, file_of, without_password
from supermax.tasks.data_notices import weaknesses
from supermax.tasks.data_summary import shown_labels
from supermax.tasks.fits import fits
from supermax.tasks.measures import check_objectives
from supermax.tasks.objective import configured
from supermax.tasks.space_fitting import Fitted
from supermax.tasks.specs import spec_of
from supermax.tasks.truncation import truncation, truncation_notices
from supermax.training.data.examples import Corpus

REFUSED = "supermax:infeasible"
"""Constraint violated by a trial that does not fit into memory in any split."""
_HEAD = 12  # columns of a line's heading
_MAX_CLASSES = 12  # whose numbers of rows are shown


def describe_plan(search: Search, verbose: bool = False) -> list[str]:
    """Return the lines of the plan; `verbose`: with each setting and its source."""
    resolved, splits = search.resolved, search.all_splits
    assert resolved is not None
    settings, fit, cuda = resolved.settings, search.fit, search.resources.has_cuda
    # The run prints the notice.
    allowed, _ = search.allowance(_run_dir(settings), search.run_options())
    workers = allowed.workers
    untrained = [name for name, source in fit.sources.items() if not source.trained]
    encoders = ", ".join(f"{n} (not pretrained)" if n in untrained else n for n in fit.sources)
    device = _on_gpus(settings, workers) if cuda else "on the CPU"
    if search.cluster is not None:
        device = f"on {search.cluster}"
    lines = [
        f"Search      {agent_of(settings.agent).usual_name} into the study '{settings.study}' in "
        f"{without_password(str(search.storage))}",
        f"How far     trials: {settings.trials}, epochs: up to {settings.epochs}, "
        f"{'up to ' * (settings.workers == AUTO)}{workers} at a time, {device}",
        *_aligned("Data", describe_data(search)),
        f"Encoders    {encoders}",
        *(f"            {notice}" for notice in fit.notices if notice != fit.untrained_notice),
        f"Space       {counted(varying(fit.space), 'parameter')} to search, "
        f"sampler {settings.sampler}, pruner {settings.pruner}",
        f"Disk        up to {size_text(allowed.total)} of weights and states",
    ]
    trials = _trials(settings)
    lines += _aligned("Warm start", _warm_start(search, settings, len(trials)))
    cuts = truncation(settings.agent, splits, fit.space, fit.sources.values(), search.cache)
    lines += _aligned("Truncation", truncation_notices(cuts))
    lines += _aligned("Race", _race(search, settings))
    lines += _aligned("Stop", _stop(settings))
    lines += _aligned("Time", _remaining_time(settings, workers, trials))
    lines += _aligned("Memory", _memory_fit(search, settings, trials))
    warnings = [
        *unfit_preset(settings, fit),
        *too_few_cores(settings, workers, system.cores()),
        *weaknesses(splits),
    ]
    lines += _aligned("Beware", warnings)
    return [*lines, *origins(resolved, verbose)]


def _warm_start(search: Search, settings: Settings, trials: int) -> list[str]:
    """Return what the search takes from earlier studies."""
    classes = len(search.corpus.label_names) or 2
    names, _ = check_objectives(settings.agent, settings.objectives, classes)
    before = trials or int(search.fit.space.defaults() is not None)
    return planned(search.earlier, search.fit.space, names, before, settings.trials)


def _race(search: Search, settings: Settings) -> list[str]:
    """Return what the race at the end of the search will do, if it has one."""
    size = race_size(search.race, search.preset, settings.trials, search.folds)
    if size and len(settings.objectives) > 1:
        return ["none: configurations race by one objective, and this search has several"]
    return [f"{race_text(size, settings.trials, search.folds)}, at the end"] if size else []


def _stop(settings: Settings) -> list[str]:
    """Return when the search may end by itself, if it may."""
    if settings.stop != WHEN_NO_GAIN:
        return []
    if settings.trials <= FEWEST:
        return [
            f"{WHEN_NO_GAIN} has no effect: it needs {FEWEST} finished trials, and --trials is "
            f"{settings.trials}"
        ]
    return [f"once no further gain is expected, after {FEWEST} finished trials at the earliest"]


def folded(lines: list[str], width: int) -> list[str]:
    """Wrap the lines at `width` columns, with continuation lines indented below the text."""
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
    count = len(named_gpus(settings.gpus))
    them, it = (f"{count} GPUs", "them") if count > 1 else ("the GPU", "it")
    if workers <= max(1, count) or shutil.which(mps.CONTROL) is None:
        return f"on {them}"
    return f"sharing {them}" if settings.mps else f"taking turns on {them} (--mps: sharing {it})"


def unfit_preset(settings: Settings, fit: Fitted) -> list[str]:
    """Return a warning where the demo preset, made for tiny encoders, has a pretrained encoder."""
    trained = [name for name, source in fit.sources.items() if source.trained]
    if settings.preset != "demo" or settings.space is not None or not trained:
        return []
    return [
        f"The preset demo is made for tiny encoders, and its learning rates are too high for "
        f"{', '.join(trained)}: leave `preset` out, or set it to standard"
    ]


def too_few_cores(settings: Settings, workers: int, cores: int) -> list[str]:
    """Return a warning where more trials run in parallel than there are cores; a trial on a GPU
    keeps a core busy too."""
    parallel = min(workers, settings.trials)
    if parallel <= cores:
        return []
    return [
        f"{parallel} parallel trials share {counted(cores, 'core')} and slow each other down: "
        f"lower --workers"
    ]


def _study(settings: Settings) -> Study | None:
    """Return the newest version of the study; None where there is none yet."""
    try:
        versions = find_versions(existing(settings.storage_address), settings.study)
    except NothingStored:
        return None
    return versions[-1] if versions else None


def _trials(settings: Settings) -> list[TrialRecord]:
    """Return the trials of the study so far."""
    study = _study(settings)
    return read_record(study).trials if study is not None else []


def _run_dir(settings: Settings) -> Path:
    """Return the run folder, or the one that holds it where it does not exist yet."""
    if (study := _study(settings)) is not None:
        return find_location(study).run_dir
    file = file_of(settings.storage_address)
    return file.parent if file is not None else data_folder()


def _remaining_time(settings: Settings, workers: int, trials: Sequence[TrialRecord]) -> list[str]:
    """Return the median time of the finished trials, and the time that the remaining ones take."""
    seconds = [trial.seconds for trial in trials if trial.seconds and trial.state == "COMPLETE"]
    left = settings.trials - finished(trials)
    if not seconds or left <= 0:
        return []
    typical = median(seconds)
    rest = took(typical * left / workers)
    return [f"{typical:.3g} s a trial so far: about {rest} for the remaining {left}"]


def _memory_fit(search: Search, settings: Settings, trials: Sequence[TrialRecord]) -> list[str]:
    """Return the share of the space that fits the device, and the encoders that never fit."""
    cuda, fit = search.resources.has_cuda, search.fit
    budget = search.resources.budget().whole
    if not budget:
        install = "pip install nvidia-ml-py, or " * cuda
        return [f"cannot be read, and is not planned: {install}set --gpu-memory"]
    shares = fits(fit.space, fit.sources, settings.agent, budget, search.resources.foreseen())
    total = sum(share.all for share in shares.values())
    whole, split = (sum(getattr(s, k) for s in shares.values()) for k in ("whole", "split"))
    whose = "the GPU" if cuda else "this machine's memory"
    if search.cluster is not None:
        whose = "each GPU" if cuda else "memory"
    in_parts = f", {split / total:.0%} in micro-batches" if split else ""
    lines = [
        f"{size_text(budget)} of {whose} for trials: {whole / total:.0%} of batches, lengths "
        f"and optimizers fit whole{in_parts}"
    ]
    for name, share in shares.items():
        if share.never == share.all:
            lines.append(f"{name} never fits: it needs at least {size_text(share.smallest)}")
    return [*lines, *_refused_that_fit(search, settings, budget, trials)]


def _refused_that_fit(
    search: Search, settings: Settings, budget: int, trials: Sequence[TrialRecord]
) -> list[str]:
    """Return a line on the trials that were refused as too large and fit into `budget` bytes."""
    log, execution = search.resources.measurement_log(), search.resources.foreseen()
    repeated = {trial.notes.get("repeats") for trial in trials}
    count = 0
    for trial in trials:
        if REFUSED not in trial.broken or trial.notes.get("attempts") or trial.number in repeated:
            continue
        with contextlib.suppress(Exception):  # of another space, or of an encoder that is gone
            config = configured(settings.agent, nest(trial.params), settings.limits)
            names = [config.encoder.name]
            if agent_of(settings.agent).encoders == 2:
                names.append((config.evidence_encoder or config.encoder).name)
            spec = spec_of(config, [search.fit.sources[name] for name in names], execution)
            found = planner.plan(spec, budget, correction=log.known(spec).correction)
            count += isinstance(found, planner.Plan)
    if not count:
        return []
    return [
        f"{counted(count, 'trial')} refused as too large would fit now: `supermax study retry "
        f"{settings.study} --state pruned` runs all that were pruned again"
    ]


def _aligned(head: str, lines: list[str]) -> list[str]:
    return [f"{head if i == 0 else '':<{_HEAD}}{line}" for i, line in enumerate(lines)]


def origins(resolved: Resolved, verbose: bool = False) -> list[str]:
    """Return the number of settings by layer or, if `verbose`, each with its source. Defaults are
    left out."""
    rows = [row for row in resolved.origins() if resolved.layers[row[0]] != THE_COMMAND]
    described = {key: f"{key} = {_shown(key, value)} ({source})" for key, value, source in rows}
    if verbose:
        return _aligned("Settings", list(described.values()))
    # Guesses are always shown, so that a wrong one is noticed.
    guessed = [key for key in described if resolved.layers[key] == GUESSES]
    counts = Counter(resolved.layers[key] for key in described if key not in guessed).most_common()
    summary = ", ".join(f"{count} from {layer}" for layer, count in counts)
    lines = [f"{summary} (-v shows each)"] if counts else []
    return _aligned("Settings", [*lines, *(described[key] for key in guessed)])


def _shown(key: str, value: object) -> str:
    if key == "storage":
        return without_password(str(value))
    if key == "notify" and isinstance(value, list):
        return ", ".join(target.shown for target in check_targets(value))
    if key == "track" and isinstance(value, list):
        return ", ".join(map(shown_tracker, value))
    if key == "warm_start" and isinstance(value, list):
        return ", ".join(without_password(name) if is_url(name) else name for name in value)
    if key in ("gpu_memory", "keep") and isinstance(value, int):
        return size_text(value)
    return str(value) if not isinstance(value, Mapping) else ", ".join(map(str, value))


def _described_sets(corpus: Corpus) -> str:
    """Return the numbers of texts with each label, and of those without any."""
    sets = [example.labels or () for example in corpus.label_sets]
    counts = Counter(label for own in sets for label in own)
    names = shown_labels(corpus)[:_MAX_CLASSES]
    shares = [f"{name} {counts[i]} ({counts[i] / len(sets):.0%})" for i, name in enumerate(names)]
    if more := len(corpus.label_names) - len(names):
        shares.append(f"and {counted(more, 'more label', 'more labels')}")
    return (
        f"{len(sets):,} texts with {sum(counts.values()) / len(sets):.2g} labels on average, "
        f"{sum(not own for own in sets):,} without any: {', '.join(shares)}"
    )


def _described_entities(corpus: Corpus) -> str:
    """Return the numbers of texts and of entities of each type."""
    types = Counter(e.type for example in corpus.entities for e in example.entities or ())
    names = shown_labels(corpus)[:_MAX_CLASSES]
    found = [f"{name} {types[i]:,}" for i, name in enumerate(names)]
    if more := len(corpus.label_names) - len(names):
        found.append(f"and {counted(more, 'more type')}")
    return f"{len(corpus.entities):,} texts with {types.total():,} entities: {', '.join(found)}"


def describe_data(search: Search) -> list[str]:
    """Return the sizes of the data and its splits. Quotes none of its text."""
    corpus, splits, agent = search.corpus, search.all_splits, agent_of(search.agent)
    lines = []
    if corpus.classes and agent.classes:
        counts = Counter(example.label for example in corpus.classes)
        total = len(corpus.classes)
        names = shown_labels(corpus)[:_MAX_CLASSES]
        balance = [f"{name} {counts[i]} ({counts[i] / total:.0%})" for i, name in enumerate(names)]
        if more := len(corpus.label_names) - len(names):
            balance.append(f"and {counted(more, 'more class', 'more classes')}")
        lines.append(f"{total:,} texts to classify: {', '.join(balance)}")
    if corpus.numbers and agent.numbers:
        values = [example.value for example in corpus.numbers if example.value is not None]
        lines.append(
            f"{len(values):,} texts with a number, from {min(values):g} to {max(values):g}, mean "
            f"{fmean(values):.4g}"
        )
    if corpus.label_sets and agent.label_sets:
        lines.append(_described_sets(corpus))
    if corpus.entities and agent.entities:
        lines.append(_described_entities(corpus))
    if corpus.spans and agent.spans:
        answers = sum(bool(example.spans) for example in corpus.spans)
        lines.append(f"{len(corpus.spans):,} texts to find answers in, {answers:,} with one")
    train, validation, test = (part.count(search.agent) for part in splits.parts)
    lines.append(
        f"split into {train:,} for training, {validation:,} for validation, {test:,} for the test "
        f"of a refit"
    )
    if splits.drawn:
        lines.append("the data has no validation rows: they were drawn from train")
    if splits.joined:
        groups = counted(splits.joined, "group shares", "groups share")
        lines.append(f"{groups} a text with another group, and are kept in one split with it")
    if corpus.skipped:
        lines.append(f"{corpus.skipped} bad rows were skipped")
    return [f"{corpus.name}: {lines[0]}", *lines[1:]]
