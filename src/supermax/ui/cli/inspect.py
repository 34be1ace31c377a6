"""`supermax best | show | compare | faults`: results of a study, read only."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import accumulate
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from supermax._util.attributes import RACE, STORAGE
from supermax._util.text import counted, ended, listed, nearest, printable, size_text, took
from supermax.engine.trial.stacks import Frame
from supermax.errors import UserError
from supermax.results.decoding import decoded, decoding_text
from supermax.results.machines import machine_text
from supermax.results.race import Contestant
from supermax.results.records import (
    AttemptRecord,
    FaultRecord,
    StudyRecord,
    TrialRecord,
    read_record,
)
from supermax.results.selection import selection_in
from supermax.ui.cli.arguments import trial_number
from supermax.ui.cli.completing import studies
from supermax.ui.cli.opening import (
    STUDY,
    AsJson,
    Storage,
    Which,
    print_json,
    the_study,
)
from supermax.ui.cli.printing import console, literal
from supermax.ui.display.charts import spark

Study = Annotated[
    str | None,
    typer.Option(
        "--study",
        metavar=STUDY,
        help="Name of the study; may be omitted if the storage has only one.",
        autocompletion=studies,
    ),
]
Trial = Annotated[
    int, typer.Argument(help="Number of the trial.", parser=trial_number, metavar="TRIAL")
]
Top = Annotated[int, typer.Option(min=1, help="Number of trials.")]
_CURVE_WIDTH = 24  # characters
_MOST_TRIALS = 8
_TAIL = 6  # lines of a log or a traceback
_LONGEST_STACK = 40  # lines
_STACK_HEADS = ("Traceback (most recent call last)", "Fatal Python error")


def best(
    study: Which = None, top: Top = 5, storage: Storage = STORAGE, as_json: AsJson = False
) -> None:
    """Show the best trials with their values, and the parameters of the first one.

    \b
    Examples:
      supermax best --top 5
      supermax best criteria --json
    """
    record = read_record(the_study(storage, study))
    ranked = record.front() if len(record.directions) > 1 else record.best_first()
    if as_json:
        print_json([trial_facts(record, trial) for trial in ranked[:top]])
        return
    if not ranked:
        record.best()  # raises UserError
    has_encoders = any(trial.encoder for trial in ranked)
    table = Table(
        "trial",
        *map(printable, record.titles),
        *(["in the race"] if record.race is not None else []),
        *(["encoder", "best epoch"] if has_encoders else []),
        "time",
    )
    for trial in ranked[:top]:
        values = [f"{value:.5g}" for value in trial.values or ()]
        epoch = trial.result.get("best_epoch")
        table.add_row(
            str(trial.number),
            *values,
            *([_in_race(record, trial)] if record.race is not None else []),
            *([printable(trial.encoder or "–"), str(epoch or "–")] if has_encoders else []),
            took(trial.seconds),
        )
    screen = console()
    screen.print(table)
    first = ranked[0]
    if len(record.directions) > 1:
        screen.print("Pareto front: no trial is better than any of these in every objective.")
    for line in (*_race_lines(record), *_selection_lines(record)):
        screen.print(literal(line))
    screen.print(f"Trial {first.number}:")
    _print_params(screen, first)


def _in_race(record: StudyRecord, trial: TrialRecord) -> str:
    """Return the mean of a trial's configuration in the race; a dash if it did not race."""
    found = record.race.of(trial.number) if record.race is not None else None
    return "–" if found is None else found.mean_text + ", stopped" * found.stopped


def _race_lines(record: StudyRecord) -> list[str]:
    """Return both numbers of the winner of the race, or that the race is out of date."""
    if record.race is None:
        stale = bool(record.note(RACE))
        again = "Other trials are the best since the race: the same `supermax tune` refreshes it."
        return [again] if stale else []
    if (best := record.race.best) is None:
        return ["The race has no winner: every configuration failed in some training."]
    maximize = record.directions[0] == "maximize"
    lead = f"Trial {best.trial} won the race: {record.titles[0]} {best}."
    return [lead, record.race.selection(maximize=maximize)]


def _selection_lines(record: StudyRecord) -> list[str]:
    """Return how much of the best value is likely luck, and when more trials hardly helped."""
    found = selection_in(record)
    if found is None:
        return []
    return found.lines(printable(record.titles[0]), raced=record.race is not None)


def show(
    trial: Trial,
    study: Study = None,
    storage: Storage = STORAGE,
    as_json: AsJson = False,
) -> None:
    """Show one trial: parameters, curve, memory, attempts, faults and the tail of its log, which
    holds what the trial printed.

    \b
    Examples:
      supermax show 0
      supermax show 0 --study criteria --json
    """
    record = read_record(the_study(storage, study))
    found = record.trial(trial)
    if as_json:
        print_json(trial_facts(record, found) | {"log": found.log})
        return
    screen = console()
    values = ", ".join(
        f"{name} {value:.6g}"
        for name, value in zip(record.titles, found.values or (), strict=False)
    )
    screen.print(f"Trial {found.number} of '{record.name}': {found.shown_state.lower()} {values}")
    if (machine := machine_text(record, found)) is not None:
        screen.print(f"Machine: {machine}")
    if found.broken:
        broken = ", ".join(f"{name} by {by:.3g}" for name, by in found.broken.items())
        screen.print(f"It violates {broken}.")
    if (original := found.notes.get("result_of")) is not None:
        screen.print(
            f"Trial {original} had its configuration: it has that result and did not run."
        )
    _print_params(screen, found)
    if found.curve:
        curve = spark(list(found.curve.values()), _CURVE_WIDTH)
        screen.print(f"Curve: {curve}  {_first_and_last(found.curve)}")
    raced = record.race.of(found.number) if record.race is not None else None
    if raced is not None:
        screen.print(f"Race: {raced}{_result_of(record, raced)}")
    for line in (*_memory(found), *_steps(found), *_metrics(found), *_attempts(found)):
        screen.print(line)
    _print_faults_and_log(screen, found)


def _result_of(record: StudyRecord, raced: Contestant) -> str:
    """Return how a configuration ended its race."""
    if record.race is not None and record.race.winner == raced.trial:
        return ", winner"
    return ", stopped: clearly worse than the leader" if raced.stopped else ", not clearly worse"


def _print_faults_and_log(screen: Console, trial: TrialRecord) -> None:
    """Print each fault with its part of the log, then the rest of the log."""
    printed = _print_faults(screen, trial.faults)
    if (rest := _unprinted(printed, trial.log)).strip():
        screen.print("Tail of its log:")
        screen.print(_indented(rest))
    elif not printed.strip():
        screen.print("It has no log.")


def _print_faults(screen: Console, found: list[FaultRecord]) -> str:
    """Print each fault of a trial with its part of the log, and return the log up to there. All
    attempts append to one log, so every part is printed once."""
    printed = ""
    for fault in _with_final_culprits(found):
        rest = _unprinted(printed, fault.log_tail)
        _print_fault(screen, replace(fault, log_tail=rest), fault.frame)
        printed += rest
    return printed


def compare(
    trials: Annotated[
        list[int],
        typer.Argument(
            help="Numbers of two or more trials.", parser=trial_number, metavar="TRIALS"
        ),
    ],
    study: Study = None,
    storage: Storage = STORAGE,
    as_json: AsJson = False,
) -> None:
    """Compare trials side by side: parameters that differ, values, curves, time and memory.

    \b
    Examples:
      supermax compare 0 1
      supermax compare 0 1 2 --json
    """
    record = read_record(the_study(storage, study))
    found = [record.trial(number) for number in dict.fromkeys(trials)]
    if not 2 <= len(found) <= _MOST_TRIALS:
        raise UserError(f"Name from two to {_MOST_TRIALS} different trials to compare.")
    if as_json:
        print_json([trial_facts(record, trial) for trial in found])
        return
    table = Table("", *(f"trial {trial.number}" for trial in found))
    table.add_row("state", *(trial.shown_state.lower() for trial in found))
    for i, name in enumerate(record.titles):
        shown = [f"{t.values[i]:.6g}" if t.values else "–" for t in found]
        table.add_row(literal(name), *shown)
    names = dict.fromkeys(name for trial in found for name in trial.params)
    same = []
    for name in names:
        values = [trial.params.get(name, "–") for trial in found]
        if all(value == values[0] for value in values):
            same.append(f"{name} = {_value(values[0])}")
        else:
            table.add_row(literal(name), *(literal(_value(value)) for value in values))
    table.add_row("curve", *(spark(list(trial.curve.values()), _CURVE_WIDTH) for trial in found))
    table.add_row("time", *(took(trial.seconds) for trial in found))
    table.add_row("memory", *(_peak(trial) for trial in found))
    screen = console()
    screen.print(table)
    if same:
        screen.print(literal("The same in all: " + ", ".join(same)))


def faults(
    study: Which = None,
    kind: Annotated[str | None, typer.Option(help="Only faults of this kind.")] = None,
    trial: Annotated[int | None, typer.Option(help="Only faults of this trial.")] = None,
    storage: Storage = STORAGE,
    as_json: AsJson = False,
) -> None:
    """List faults by kind and culprit, with parameters, evidence and advice.

    \b
    Examples:
      supermax faults
      supermax faults criteria --trial 0 --json
    """
    record = read_record(the_study(storage, study))
    found = record.trial(trial).faults if trial is not None else record.faults()
    kinds = Counter(fault.kind for fault in found)
    if kind is not None:
        if kind not in kinds:
            raise UserError(ended(f"There is no fault of the kind {kind!r}{nearest(kind, kinds)}"))
        found = [fault for fault in found if fault.kind == kind]
    if as_json:
        print_json([_fault_facts(record, fault) for fault in found])
        return
    screen = console()
    if not found:
        screen.print(f"'{record.name}' has no fault among {counted(len(record.trials), 'trial')}.")
        return
    groups: dict[tuple[str, str], list[FaultRecord]] = {}
    for fault in _with_final_culprits(found):
        groups.setdefault((fault.kind, fault.culprit), []).append(fault)
    screen.print(_fault_table(record, groups))
    if trial is not None:
        _print_faults(screen, found)
        _print_params(screen, record.trial(trial))
        return
    for group in groups.values():
        last = group[-1]
        _print_fault(screen, last, last.frame, whole=len(groups) == 1)
        _print_params(screen, record.trial(last.trial))


def _with_final_culprits(found: list[FaultRecord]) -> list[FaultRecord]:
    """Return the faults with the culprit that the last attempt with the same fault was ascribed
    to: a first crash may be the machine's, but the same one again is not."""
    final = {(fault.trial, fault.kind): fault.culprit for fault in found}
    return [replace(fault, culprit=final[fault.trial, fault.kind]) for fault in found]


def _fault_table(record: StudyRecord, groups: dict[tuple[str, str], list[FaultRecord]]) -> Table:
    """Return a row for each kind and culprit, the most frequent first."""
    table = Table("fault", "culprit", "times", "trials", "final states")
    for (name, culprit), group in sorted(groups.items(), key=lambda item: -len(item[1])):
        numbers = list(dict.fromkeys(str(fault.trial) for fault in group))
        trials = ", ".join(numbers[:5]) + (" …" if len(numbers) > 5 else "")
        counts = Counter(record.trial(int(n)).state.lower() for n in numbers)
        states = ", ".join(f"{n} {state}" for state, n in counts.items())
        table.add_row(literal(name), culprit, str(len(group)), trials, states)
    return table


def trial_facts(record: StudyRecord, trial: TrialRecord) -> dict[str, object]:
    """Return a trial as JSON, for scripts."""
    raced = record.race.of(trial.number) if record.race is not None else None
    return {
        "study": record.name,
        "trial": trial.number,
        "state": trial.state,
        "values": dict(zip(record.objectives, trial.values or (), strict=False)),
        "params": trial.params,
        "metrics": trial.result.get("metrics", {}),
        "best_epoch": trial.result.get("best_epoch"),
        "decoding": trial.result.get("decoding"),
        "result_of": trial.notes.get("result_of"),
        "seconds": trial.seconds,
        "steps": trial.result.get("steps"),
        "peak_rss": trial.notes.get("peak_rss"),
        "device_allocated": trial.notes.get("device_allocated"),
        "device_reserved": trial.notes.get("device_reserved"),
        "curve": trial.curve,
        "attempts": [vars(a) | {"fault": a.fault and vars(a.fault)} for a in trial.attempts],
        "broken": trial.broken,
        "machine": machine_text(record, trial),
        "race": raced.data() if raced is not None else None,
    }


def _first_and_last(curve: dict[int, float]) -> str:
    steps = list(curve)
    return f"from {curve[steps[0]]:.4g} (step {steps[0]}) to {curve[steps[-1]]:.4g} ({steps[-1]})"


def _print_params(screen: Console, trial: TrialRecord) -> None:
    for name, value in trial.params.items():
        screen.print(literal(f"  {name} = {_value(value)}"))
    if (decoding := decoding_text(trial)) is not None:
        screen.print(literal(f"  {decoded(trial)} are decoded with {decoding}"))


def _value(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _memory(trial: TrialRecord) -> list[str]:
    """Return the peak memory, if known. On a CPU it is that of the whole process, and so may
    exceed what was reserved for the trial."""
    shown = _peak(trial)
    on_host = trial.notes.get("peak_rss") and not trial.notes.get("device_reserved")
    if on_host and any(attempt.reserved for attempt in trial.attempts):
        shown += " (the whole process; reservations of trials do not include its libraries)"
    return [f"Peak memory: {shown}"] if shown != "–" else []


def _peak(trial: TrialRecord) -> str:
    names = {"peak_rss": "host", "device_allocated": "device", "device_reserved": "reserved"}
    found = {word: trial.notes.get(key) for key, word in names.items()}
    parts = [f"{size_text(n)} {word}" for word, n in found.items() if n]
    return ", ".join(parts) or "–"


def _steps(trial: TrialRecord) -> list[str]:
    executor = trial.result.get("steps")
    return [f"Steps: {executor}"] if executor else []


def _metrics(trial: TrialRecord) -> list[str]:
    shown = ", ".join(f"{name} {value:.4g}" for name, value in trial.metrics)
    return [f"Metrics: {shown}"] if shown else []


def _attempts(trial: TrialRecord) -> list[str]:
    return [
        f"Attempt {a.number} in cell {a.cell}: {a.how.lower()}"
        + (f" after {took(a.ended - a.started)}" if a.ended is not None else "")
        + (", then not continued" if a is trial.attempts[-1] and _given_up(trial) else "")
        + _planned(a)
        + (f"; {a.unclean}" if a.unclean else "")
        for a in trial.attempts
    ]


def _given_up(trial: TrialRecord) -> bool:
    """Return whether a trial paused at a rung and was not among the best there in the end."""
    return trial.state == "PRUNED" and trial.attempts[-1].how == "paused"


def _planned(attempt: AttemptRecord) -> str:
    """Return how the attempt's memory was planned; an empty text if it was not."""
    plan = attempt.plan or {}
    if not attempt.reserved or "micro_batch" not in plan:
        return ""
    checkpointing = ", activation checkpointing" if plan.get("checkpoint_activations") else ""
    reserved = size_text(attempt.reserved)
    why = f" ({attempt.why})" if attempt.why else ""
    return f", micro-batches of {plan['micro_batch']}{checkpointing}{why}, {reserved} reserved"


def _fault_facts(record: StudyRecord, fault: FaultRecord) -> dict[str, object]:
    frame = fault.frame and vars(fault.frame)
    return vars(fault) | {"frame": frame, "params": record.trial(fault.trial).params}


def _unprinted(printed: str, log: str) -> str:
    """Return the part of a log's tail that comes after what was printed of it already. Attempts
    may print the same, so the longest beginning that was printed last is cut off."""
    ends = [len(printed), *accumulate(map(len, log.splitlines(True)))]
    ends = sorted({end for end in ends if end <= len(log)})
    return log[next((end for end in reversed(ends) if printed.endswith(log[:end])), 0) :]


def _print_fault(
    screen: Console, fault: FaultRecord, frame: Frame | None, *, whole: bool = True
) -> None:
    points = [fault.message, f"Culprit: {fault.culprit}. Decision: {fault.decision or '–'}."]
    if frame is not None:
        points.insert(0, f"In {frame}" + (f":\n{frame.code}" if frame.code else ""))
    if fault.advice:
        points.append(f"What to do: {fault.advice}")
    head = f"Trial {fault.trial}, attempt {fault.attempt}: {fault.kind}"
    screen.print(literal(listed(head, points)))
    for what, text in (("Traceback", fault.traceback), ("Log", fault.log_tail)):
        if text and text.strip():
            lines = text.strip("\n").splitlines()
            shown = lines if whole else _tail(lines)
            screen.print(f"    {what}{'' if len(shown) == len(lines) else ' (tail)'}:")
            screen.print(_indented("\n".join(shown)))


def _tail(lines: list[str]) -> list[str]:
    """Return the last lines; the last stack from its first line on, unless that is too long."""
    starts = [i for i, line in enumerate(lines) if line.startswith(_STACK_HEADS)]
    stack = len(lines) - starts[-1] if starts else 0
    return lines[-min(max(stack, _TAIL), _LONGEST_STACK) :]


def _indented(text: str) -> Text:
    return literal("\n".join(f"    {line}" for line in text.strip("\n").splitlines()))
