"""Facts of a report's texts and tables, collected from a StudyRecord as data without HTML."""

from __future__ import annotations

import contextlib
import json
import platform
import shlex
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from supermax._util.attributes import SETTINGS
from supermax._util.text import metric_title
from supermax.engine.storage.locations import find_location
from supermax.results.machines import machine_text, run_names
from supermax.results.race import RaceRecord
from supermax.results.records import FaultRecord, StudyRecord, TrialRecord
from supermax.results.report.choosing import value_of
from supermax.results.report.noted import (
    Baselines,
    DataNote,
    PredictionCounts,
    RefitNote,
    counts_note_of,
    data_note_of,
    refit_of,
    validation_baselines,
)
from supermax.results.report.text import clean_text, real
from supermax.results.selection import selection_in
from supermax.search.settings.writing import reproducing
from supermax.space import Space, flatten, nest, space_of
from supermax.space.migration.versions import base_name

LIBRARIES = (
    "supermax",
    "optuna",
    "torch",
    "transformers",
    "tokenizers",
    "scikit-learn",
    "numpy",
    "plotly",
)
MOST_GROUPS = 40
MOST_EXAMPLES = 8
TOP = 10


@dataclass(frozen=True)
class FaultGroup:
    """Faults of the same kind, culprit and signature, with the last of them as evidence."""

    kind: str
    culprit: str
    count: int
    trials: list[int]
    """Numbers of the first few trials."""
    more: int
    """Trials beyond those."""
    decisions: list[str]
    example: FaultRecord
    params: dict[str, object]
    """Parameters of the example's trial."""
    log: str


@dataclass(frozen=True)
class Machine:
    """Run of a study that several runs share."""

    name: str
    state: str
    seen: float
    """Seconds since its last sign of life."""
    workers: int
    finished: int
    running: tuple[int, ...]
    """Numbers of its unfinished trials, paused ones included."""
    paused: int
    lost: tuple[int, ...]
    """Numbers of trials that other runs have taken over from it."""


@dataclass(frozen=True)
class ReportFacts:
    """Texts and tables of a report, as data."""

    name: str
    objectives: list[tuple[str, str]]
    """Name and direction of each objective."""
    states: dict[str, int]
    carried: int
    started: float | None
    ended: float | None
    busy: float
    """Seconds of all attempts, summed over the cells."""
    rate: float | None
    """Finished trials per hour, from the first start to the last end; None if unknown."""
    retries: int
    faults: int
    groups: list[FaultGroup]
    groups_left_out: int
    top: list[TrialRecord]
    front: list[TrialRecord]
    race: RaceRecord | None
    """Race of the best configurations over fresh seeds; None: there was none."""
    selection: list[str]
    """Sentences on the selection of the best value on noise; []: its noise is unknown."""
    improvement: tuple[TrialRecord, float] | None
    """First trial with a value, and that value, for comparison with the best."""
    space: Space | None
    notices: list[str]
    """Sentences about the data."""
    data: DataNote | None
    columns: list[str]
    """Objectives as table headers, which name the split of a metric."""
    metric: str
    """Plain name of the first objective if it is a metric of the validation split, else ""."""
    baselines: Baselines
    """Baselines on the validation split."""
    refit: RefitNote | None
    counts: PredictionCounts
    """Counts of the best trial's predictions on the validation split."""
    labels: list[str]
    about: list[tuple[str, str]]
    commands: list[str]
    settings: str
    """YAML file that reproduces the search; "" if unknown."""
    config: str
    """Best configuration as JSON, nested as the objective gets it."""
    versions: list[tuple[str, str]]
    machines: list[Machine]
    """Runs of the study, if there are several; [] otherwise."""
    machine_of: dict[int, str]
    """Number of a trial of the tables → its machine; {}: there is one run only."""

    @property
    def finished(self) -> int:
        return sum(self.states.get(state, 0) for state in ("COMPLETE", "PRUNED", "FAIL"))

    def title(self, metric: str) -> str:
        """Return the display name of a metric."""
        return metric_title(metric, self.labels)


def collect(record: StudyRecord, storage: str | None = None) -> ReportFacts:
    """Return the facts of a study. `storage` is its displayed address, without a password."""
    own = [trial for trial in record.trials if trial.origin is None]
    started = min((t.started for t in own if t.started is not None), default=None)
    ended = max((t.ended for t in own if t.ended is not None), default=None)
    span = (ended - started) if started is not None and ended is not None else 0.0
    done = sum(t.trial.state.is_finished() for t in own)
    faults = record.faults()
    groups = fault_groups(record, faults)
    ranking, front = record.best_first(), record.front()
    place = clean_text(storage or _address(record))
    first = next(((t, v) for t in record.trials if (v := value_of(t)) is not None), None)
    return ReportFacts(
        name=record.name,
        objectives=list(zip(record.titles, record.directions, strict=True)),
        states=dict(Counter(trial.shown_state for trial in record.trials)),
        carried=len(record.trials) - len(own),
        started=started,
        ended=ended,
        busy=_busy(own),
        rate=done / span * 3600 if span > 0 and done > 1 else None,
        retries=sum(map(_retries, own)),
        faults=len(faults),
        groups=groups[:MOST_GROUPS],
        groups_left_out=max(0, len(groups) - MOST_GROUPS),
        top=ranking[:TOP],
        front=front,
        race=record.race,
        selection=_selection(record),
        improvement=first,
        space=_space(record),
        notices=[clean_text(line) for line in record.notices],
        data=data_note_of(record),
        columns=[
            name + " (validation)" * record.on_validation(i)
            for i, name in enumerate(record.titles)
        ],
        metric=record.objectives[0] if record.on_validation() else "",
        baselines=validation_baselines(record),
        refit=refit_of(record),
        counts=counts_note_of(record, ranking[0]) if ranking else PredictionCounts(),
        labels=next((trial.labels for trial in record.trials if trial.labels), []),
        about=_about(record, place, ranking[:1]),
        commands=_commands(record.name, place),
        settings=_settings(record),
        config=_config(ranking[0]) if ranking else "",
        versions=_versions(),
        machines=_machines(record),
        machine_of={
            trial.number: text
            for trial in ranking[:TOP]
            if (text := machine_text(record, trial)) is not None
        },
    )


def _selection(record: StudyRecord) -> list[str]:
    found = selection_in(record)
    name = record.titles[0]
    return [] if found is None else found.lines(name, raced=record.race is not None)


def _machines(record: StudyRecord) -> list[Machine]:
    if len(record.runs) < 2:
        return []
    names = run_names(record.runs)
    return [
        Machine(
            name=names[run.info.run],
            state=f"{run.state}: {clean_text(run.info.note)}" if run.info.note else run.state,
            seen=max(0.0, run.info.now - run.info.seen_at),
            workers=run.info.workers,
            finished=run.finished,
            running=run.running,
            paused=run.paused,
            lost=run.lost,
        )
        for run in record.runs
    ]


def fault_groups(record: StudyRecord, faults: list[FaultRecord]) -> list[FaultGroup]:
    """Return the faults grouped by kind, culprit and signature, most frequent first."""
    by_signature: dict[tuple[str, str, str], list[FaultRecord]] = {}
    for fault in faults:
        signature = fault.signature or fault.message
        by_signature.setdefault((fault.kind, fault.culprit, signature), []).append(fault)
    by_number = {trial.number: trial for trial in record.trials}
    groups = [_group(by_number, found) for found in by_signature.values()]
    return sorted(groups, key=lambda group: (-group.count, group.trials[0]))


def _group(by_number: dict[int, TrialRecord], faults: list[FaultRecord]) -> FaultGroup:
    example = faults[-1]
    numbers = list(dict.fromkeys(fault.trial for fault in faults))
    trial = by_number[example.trial]
    return FaultGroup(
        kind=example.kind,
        culprit=example.culprit,
        count=len(faults),
        trials=numbers[:MOST_EXAMPLES],
        more=max(0, len(numbers) - MOST_EXAMPLES),
        decisions=[d for d, _ in Counter(f.decision for f in faults if f.decision).most_common(3)],
        example=example,
        params=trial.params,
        log=example.log_tail or trial.log,
    )


def _attempts(trial: TrialRecord) -> int:
    noted = trial.notes.get("attempts")
    return noted if isinstance(noted, int) else len(trial.attempts)


def _retries(trial: TrialRecord) -> int:
    """Return the number of attempts after a fault. Resuming a paused attempt is not a retry."""
    return sum(fault.attempt < _attempts(trial) for fault in trial.faults)


def _busy(trials: list[TrialRecord]) -> float:
    """Return the seconds of all attempts; without a ledger, those of the last one."""
    total = 0.0
    for trial in trials:
        known = [a.ended - a.started for a in trial.attempts if a.ended is not None]
        single = real(trial.seconds) or 0.0
        total += sum(max(0.0, part) for part in known) if known else single
    return total


def _space(record: StudyRecord) -> Space | None:
    with contextlib.suppress(Exception):  # such as a space of a newer version: left out
        return space_of(record.study)
    return None


def _address(record: StudyRecord) -> str:
    return find_location(record.study).address.split("?")[0]


def _about(record: StudyRecord, place: str, best: list[TrialRecord]) -> list[tuple[str, str]]:
    experiment = record.experiment
    seed = experiment.get("seed")
    if seed is None and best:
        seed = best[0].params.get("train.seed", 1 if "agent" in experiment else None)
    rows = [
        ("study", record.name),
        ("storage", place),
        (
            "objectives",
            ", ".join(f"{n} ({d})" for n, d in zip(record.titles, record.directions, strict=True)),
        ),
        *(
            (key, _as_text(experiment[key]))
            for key in ("agent", "data", "limits")
            if key in experiment
        ),
        ("seed", "not recorded" if seed is None else str(seed)),
    ]
    return [(key, clean_text(value)) for key, value in rows]


def _as_text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {inner}" for key, inner in value.items())
    return str(value)


def _commands(name: str, place: str) -> list[str]:
    # A storage without a URL or file, such as one in memory, cannot be opened by a command.
    where = f" --storage {shlex.quote(place)}" if " " not in place and place != "memory" else ""
    named = shlex.quote(clean_text(name))
    return [
        f"supermax study show {named}{where}",
        f"supermax report {named} -o report.html{where}",
    ]


def _settings(record: StudyRecord) -> str:
    space = _space(record)
    kept = record.note(SETTINGS)
    if space is None or not kept:
        return ""
    return clean_text(reproducing(kept, base_name(record.name), space.data()))


def _config(trial: TrialRecord) -> str:
    nested = trial.params
    # Names cannot be nested where one is a prefix of another: "a", "a.b".
    with contextlib.suppress(AttributeError, TypeError):
        if set(flatten(nest(trial.params))) == set(trial.params):
            nested = nest(trial.params)
    return clean_text(json.dumps(nested, indent=1, ensure_ascii=False, default=str))


def _versions() -> list[tuple[str, str]]:
    found = [("python", platform.python_version())]
    for name in LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            found.append((name, version(name)))
    return found
