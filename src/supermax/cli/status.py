"""`supermax status`: how searches stand, from any terminal, without touching them."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from optuna.storages import BaseStorage
from optuna.study import Study
from rich.table import Table
from rich.text import Text

from supermax.cli.completing import studies
from supermax.cli.opening import STUDY, AsJson, Storage, find_study, front_size
from supermax.cli.printing import console, front_text
from supermax.display import status as file
from supermax.display import text
from supermax.display.state import RunState
from supermax.display.view import draw
from supermax.engine.home import find_home
from supermax.engine.locks import holder
from supermax.errors import UserError
from supermax.naming import STORAGE, evaluated_on, metric_names
from supermax.ranking import best_of
from supermax.study import all_studies, existing, locks_of, without_password
from supermax.words import clock, one_line

PAUSE = 1.0  # seconds between two looks
ALIVE = (file.RUNNING, file.ELSEWHERE)
NEVER = "no run known"


def status(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar=STUDY,
            help="The study's name. Default: all of the storage.",
            autocompletion=studies,
        ),
    ] = None,
    storage: Storage = STORAGE,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on looking until the run ends.")
    ] = False,
    as_json: AsJson = False,
    run_dir: Annotated[
        Path | None, typer.Option(help="The run folder, if the run was given one.")
    ] = None,
) -> None:
    """Show how searches stand: progress, running trials, faults, and whether they are alive.

    It only looks; a run does not notice. Without STUDY: a line for each study of the storage.

    \b
    Examples:
      supermax status
      supermax status criteria --watch
      supermax status criteria --json
    """
    backend = existing(storage)
    if name is None and watch:
        name = _only_one(backend, storage)
    if name is None:
        if run_dir is not None:
            raise UserError("--run-dir goes with a study. Name it.")
        _list([look(study) for study in all_studies(backend)], storage, as_json)
        return
    study = find_study(backend, name)
    if not watch:
        _show(look(study, run_dir), as_json)
        return
    try:
        if not as_json and sys.stdout.isatty():
            _watch(study, run_dir)
        else:
            for seen in _looks(study, run_dir):
                print(json.dumps(seen.data()) if as_json else seen.line(), flush=True)
    except KeyboardInterrupt:
        raise typer.Exit from None  # the run goes on; only the looking ends


@dataclass(frozen=True)
class Seen:
    """A study as it is now: from its run's status file, or else from the study itself."""

    state: RunState
    standing: str
    fields: dict[str, Any] | None
    front: int | None = None  # trials on it, where there are several objectives

    @property
    def alive(self) -> bool:
        return self.standing in ALIVE

    def data(self) -> dict[str, Any]:
        known = self.fields or file.snapshot(self.state)
        if self.fields is None:  # nobody's run: what belongs to one is not known
            kept = ("study", "directions", "finished", "best", "metrics", "evaluated_on")
            known = {key: known[key] for key in kept}
            known["trials"] = dict(self.state.states)
        return {"alive": self.alive, "standing": self.standing, **known}

    def line(self) -> str:
        state = self.state
        parts = [text.finished_of(state)]
        if state.best is not None:
            parts.append(f"best {text.best_so_far(state)}")
        elif self.front:
            parts.append(front_text(self.front))
        if (eta := state.eta()) is not None:
            parts.append(f"about {clock(eta)} left")
        return f"{one_line(state.study_name)}: {self.words()}; {', '.join(parts)}"

    def words(self) -> str:
        if self.alive:
            going = "stopping" if self.state.stopping else "running"
            if self.fields is None:
                return going
            where = f" on {self.fields['host']}" if self.standing == file.ELSEWHERE else ""
            return f"{going}{where}, {clock(self.state.elapsed())}"
        if self.standing == file.ENDED:
            return one_line(self.state.ending or "ended early")
        return self.standing


def look(study: Study, run_dir: Path | None = None) -> Seen:
    home, front = find_home(study), front_size(study)
    locks = locks_of(study)
    fields, stands = file.look(run_dir or home.run_dir, *locks)
    at_work = stands not in ALIVE and holder(*locks) is not None  # and has written nothing here
    if fields is None or at_work or fields["study"] != study.study_name:
        return Seen(_from_study(study), file.RUNNING if at_work else NEVER, None, front)
    try:
        seen = Seen(file.restore(fields, stands), stands, fields, front)
        seen.line()
        draw(seen.state, 24).lines(80)
    except Exception:  # a file that is not what a run writes
        return Seen(_from_study(study), NEVER, None, front)
    return seen


def _from_study(study: Study) -> RunState:
    trials = study.get_trials(deepcopy=False)
    state = RunState(
        study_name=study.study_name,
        directions=tuple(direction.name.lower() for direction in study.directions),
        finished=sum(trial.state.is_finished() for trial in trials),
    )
    state.states.update(trial.state.name for trial in trials)
    if (best := best_of(trials, study.directions)) is not None:
        state.best = (best.number, best.values[0])
    state.metrics, state.evaluated_on = metric_names(study), evaluated_on(study)
    return state


def _only_one(storage: BaseStorage, where: str) -> str:
    """The study that runs, or the only one there is."""
    studies = all_studies(storage)
    running = [study for study in studies if look(study).alive] or studies
    if len(running) != 1:
        shown = without_password(where)
        if not running:
            raise UserError(f"There is no study in {shown} to watch yet.")
        names = ", ".join(one_line(study.study_name) for study in running)
        raise UserError(f"--watch is for one study of {names}. Name one with --study.")
    return str(running[0].study_name)


def _list(rows: list[Seen], storage: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps([seen.data() for seen in rows], indent=1))
        return
    if not rows:
        print(f"No study in {without_password(storage)}.")
        return
    table = Table("", "study", "stands", "finished", "best", "left", box=None, pad_edge=False)
    for seen in rows:
        state, eta = seen.state, seen.state.eta()
        of = "" if state.target is None else f"/{state.target}"
        table.add_row(
            Text("*" if seen.alive else " ", style="green"),
            Text(one_line(state.study_name)),
            Text(seen.words(), style="green" if seen.alive else ""),
            f"{state.finished}{of}",
            _best(seen),
            "" if eta is None else clock(eta),
        )
    console().print(table)


def _best(seen: Seen) -> str:
    if seen.state.best is None:
        return front_text(seen.front) if seen.front else ""
    trial, value = seen.state.best
    return f"{text.named(seen.state, [value])} (trial {trial})"


def _show(seen: Seen, as_json: bool) -> None:
    if as_json:
        print(json.dumps(seen.data(), indent=1))
    elif seen.fields is None:
        print(_in_words(seen))
    else:
        height = shutil.get_terminal_size().lines if sys.stdout.isatty() else 1000
        console().print(draw(seen.state, height))


def _in_words(seen: Seen) -> str:
    """For a study without a status file."""
    state = seen.state
    counts = ", ".join(f"{count} {name.lower()}" for name, count in state.states.items())
    lines = [f"{one_line(state.study_name)}: {counts or 'no trials'}"]
    if state.best is not None:
        lines.append(f"best: {text.best_so_far(state)}")
    elif seen.front:
        lines.append(f"best: {front_text(seen.front)}")
    lines.append(
        "A run is at work on it that has written nothing here: it is starting, or it was given "
        "a folder of its own. Name that with --run-dir."
        if seen.alive
        else "No run is at work on it on this machine, and none has left a status."
    )
    return "\n".join(lines)


def _looks(study: Study, run_dir: Path | None) -> Iterator[Seen]:
    """Again and again, until the run is over."""
    while True:
        seen = look(study, run_dir)
        yield seen
        if not seen.alive:
            return
        time.sleep(PAUSE)


def _watch(study: Study, run_dir: Path | None) -> None:
    """The picture that the run itself shows, drawn anew as its file changes."""
    from supermax.display.live import live_on

    looks = _looks(study, run_dir)
    seen = next(looks)
    if seen.fields is None:
        _show(seen, as_json=False)
        return
    with live_on(sys.stdout, lambda console: draw(seen.state, console.height)):
        for newer in looks:
            seen = newer
