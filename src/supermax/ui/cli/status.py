"""`supermax status`: progress of searches, read from any terminal without affecting them."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from optuna.storages import BaseStorage
from optuna.study import Study
from rich.table import Table
from rich.text import Text

from supermax._util.attributes import STORAGE, evaluated_on, is_race, metric_names
from supermax._util.text import clock, one_line
from supermax.engine.ranking import best_of
from supermax.engine.sharing.shared_run import RunOfStudy, runs_of
from supermax.engine.storage.locations import find_location
from supermax.engine.storage.locks import holder
from supermax.engine.storage.servers import NothingStored
from supermax.errors import UserError
from supermax.results.machines import at_work, short_hosts
from supermax.results.race import Contestant, race_of
from supermax.space.migration.versions import find_study
from supermax.studies import all_studies, existing, locks_of, without_password
from supermax.ui.cli.completing import studies
from supermax.ui.cli.opening import STUDY, AsJson, Storage, front_size
from supermax.ui.cli.printing import console, front_text
from supermax.ui.display import status as file
from supermax.ui.display import text
from supermax.ui.display.state import RunState
from supermax.ui.display.view import draw_view

POLL_INTERVAL = 1.0  # seconds between two reads of the status file
ALIVE = (file.RUNNING, file.ELSEWHERE)
NEVER = "no run known"
_MOST_RUNS = 30  # that are shown
_STARTING = "If a run is starting, try again in a minute: it first loads its data."


def status(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar=STUDY,
            help="Name of the study. Default: all studies of the storage.",
            autocompletion=studies,
        ),
    ] = None,
    storage: Storage = STORAGE,
    watch: Annotated[
        bool, typer.Option("--watch", help="Update the output until the run ends.")
    ] = False,
    as_json: AsJson = False,
    run_dir: Annotated[
        Path | None, typer.Option(help="Run folder, if it is not at its default place.")
    ] = None,
) -> None:
    """Show the progress of searches: running trials, faults, and whether the run is alive.

    It only reads and does not affect the run. Without STUDY: one line for each study.

    \b
    Examples:
      supermax status
      supermax status criteria --watch
      supermax status criteria --json
    """
    backend = _existing(storage)
    if name is None and watch:
        name = _only_one(backend, storage)
    if name is None:
        if run_dir is not None:
            raise UserError("--run-dir needs a study. Name one with --study.")
        _print_list(_all_snapshots(backend), storage, as_json)
        return
    study = _find_study(backend, name)
    if not watch:
        _print_one(find_snapshot(study, run_dir), as_json)
        return
    try:
        if not as_json and sys.stdout.isatty():
            _watch(study, run_dir)
        else:
            for snapshot in _snapshots(study, run_dir):
                print(json.dumps(snapshot.data()) if as_json else snapshot.line(), flush=True)
    except KeyboardInterrupt:
        raise typer.Exit from None  # ends the command; the run continues


def _existing(storage: str) -> BaseStorage:
    try:
        return existing(storage)
    except NothingStored as error:
        raise NothingStored(f"{error} {_STARTING}") from None


def _find_study(storage: BaseStorage, name: str) -> Study:
    try:
        return find_study(storage, name)
    except UserError as error:
        if storage.get_all_studies():
            raise
        raise UserError(f"{error} {_STARTING}") from None


@dataclass(frozen=True)
class Snapshot:
    """State of a study at one moment: from the status file of its run, or else from its trials."""

    state: RunState
    standing: str
    """State of its run: alive, ended or killed, as in `display.status`; `NEVER` if unknown."""
    fields: dict[str, Any] | None
    """Contents of the status file; None without one."""
    front: int | None = None
    """Trials on the Pareto front; None for a single objective."""
    runs: tuple[RunOfStudy, ...] = ()
    """Runs on all machines, the latest first; (): the study is not on a database server."""
    winner: Contestant | None = None
    """Winner of the race of the best configurations; None: there is none."""

    @property
    def alive(self) -> bool:
        return self.standing in ALIVE

    def data(self) -> dict[str, object]:
        """Return it as JSON."""
        known: dict[str, object] = self.fields or file.status_json(self.state)
        if self.fields is None:  # without a run, only the fields of the study are known
            kept = ("study", "directions", "finished", "best", "metrics", "evaluated_on")
            known = {key: known[key] for key in kept}
            known["trials"] = dict(self.state.states)
        everywhere: dict[str, object] = {}
        if self.runs:
            everywhere["runs"] = [_run_data(run) for run in self.runs]
        race = {"race": self.winner.data() if self.winner is not None else None}
        return {"alive": self.alive, "standing": self.standing, **known, **race, **everywhere}

    def line(self) -> str:
        """Return one line: run, progress, best value, time left."""
        state = self.state
        parts = [text.finished_of(state)]
        if state.best is not None:
            parts.append(f"best {text.best_so_far(state)}")
        elif self.front:
            parts.append(front_text(self.front))
        if (eta := state.eta()) is not None:
            parts.append(f"about {clock(eta)} left")
        return f"{one_line(state.study_name)}: {self.run_text()}; {', '.join(parts)}"

    def run_text(self) -> str:
        """Return the state of the run, with host and duration or how it ended."""
        if self.alive:
            activity = "stopping" if self.state.stopping else "running"
            if self.fields is None:
                return activity
            where = f" on {self.fields['host']}" if self.standing == file.ELSEWHERE else ""
            return f"{activity}{where}, {clock(self.state.elapsed())}"
        if others := at_work(self.runs):
            return others
        if self.standing == file.ENDED:
            return one_line(self.state.ending or "ended early")
        return self.standing


def find_snapshot(study: Study, run_dir: Path | None = None) -> Snapshot:
    """Return the current state of a study. A missing or damaged status file is not an error."""
    race, found = race_of(study), _snapshot(study, run_dir)
    if race is not None and (winner := race.best) is not None:
        found.state.winner = (winner.trial, str(winner))
        found = replace(found, winner=winner)
    return replace(found, runs=tuple(runs_of(study)))


def _snapshot(study: Study, run_dir: Path | None) -> Snapshot:
    location, front = find_location(study), front_size(study)
    locks = locks_of(study)
    fields, standing = file.find_status(run_dir or location.run_dir, *locks)
    # A run holds the lock, but has written no status file here.
    locked = standing not in ALIVE and holder(*locks) is not None
    if fields is None or locked or fields["study"] != study.study_name:
        return Snapshot(_from_study(study), file.RUNNING if locked else NEVER, None, front)
    try:
        snapshot = Snapshot(file.restore(fields, standing), standing, fields, front)
        snapshot.line()
        draw_view(snapshot.state, 24).lines(80)
    except Exception:  # a damaged file may break anything that reads it
        return Snapshot(_from_study(study), NEVER, None, front)
    return snapshot


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
    """Return the name of the study that is running, or of the only study of the storage.

    Raises UserError where neither is unique.
    """
    found = all_studies(storage, races=True)
    studies = [study for study in found if not is_race(study.study_name)]
    running = [study for study in found if find_snapshot(study).alive] or studies
    if len(running) != 1:
        shown = without_password(where)
        if not running:
            raise UserError(f"There is no study in {shown} to watch yet. {_STARTING}")
        names = ", ".join(one_line(study.study_name) for study in running)
        raise UserError(f"--watch shows one study of {names}. Name one with --study.")
    return str(running[0].study_name)


def _all_snapshots(storage: BaseStorage) -> list[Snapshot]:
    """Return the state of each study, and of races that are running."""
    found = [find_snapshot(study) for study in all_studies(storage, races=True)]
    return [one for one in found if one.alive or not is_race(one.state.study_name)]


def _print_list(snapshots: list[Snapshot], storage: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps([snapshot.data() for snapshot in snapshots], indent=1))
        return
    if not snapshots:
        print(f"No study in {without_password(storage)}. {_STARTING}")
        return
    table = Table("", "study", "run", "finished", "best", "left", box=None, pad_edge=False)
    for snapshot in snapshots:
        state, eta = snapshot.state, snapshot.state.eta()
        of = "" if state.target is None else f"/{state.target}"
        table.add_row(
            Text("*" if snapshot.alive or at_work(snapshot.runs) else " ", style="green"),
            Text(one_line(state.study_name)),
            Text(snapshot.run_text(), style="green" if snapshot.alive else ""),
            f"{state.finished}{of}",
            _best(snapshot),
            "" if eta is None else clock(eta),
        )
    console().print(table)


def _best(snapshot: Snapshot) -> str:
    if (winner := snapshot.winner) is not None:
        return (
            f"{text.objective_names(snapshot.state)[0]} {winner.mean_text} (trial {winner.trial})"
        )
    if snapshot.state.best is None:
        return front_text(snapshot.front) if snapshot.front else ""
    trial, value = snapshot.state.best
    return f"{text.values_text(snapshot.state, [value])} (trial {trial})"


def _print_one(snapshot: Snapshot, as_json: bool) -> None:
    if as_json:
        print(json.dumps(snapshot.data(), indent=1))
    elif snapshot.fields is None:
        print(_without_status_file(snapshot))
    else:
        height = shutil.get_terminal_size().lines if sys.stdout.isatty() else 1000
        console().print(draw_view(snapshot.state, height))
    if snapshot.runs and not as_json:
        console().print(_runs_table(snapshot.runs))
        for note in _run_notes(snapshot.runs):
            print(one_line(note))


def _runs_table(runs: Sequence[RunOfStudy]) -> Table:
    """Return the runs on all machines: who runs what, and who was lost."""
    columns = ["machine", "run", "seen", "finished", "unfinished"]
    with_paused, with_lost = any(run.paused for run in runs), any(run.lost for run in runs)
    further = [*["paused"] * with_paused, *["taken over"] * with_lost]
    table = Table(*columns, *further, box=None, pad_edge=False)
    hosts = short_hosts(run.info.host for run in runs)
    for run in runs[:_MOST_RUNS]:
        info = run.info
        table.add_row(
            Text(one_line(f"{hosts[info.host]} (process {info.pid})")),
            Text(run.state, style="green" if run.state == "running" else ""),
            f"{clock(max(0.0, info.now - info.seen_at))} ago",
            str(run.finished),
            _numbers(run.running),
            *[str(run.paused or "")] * with_paused,
            *[_numbers(run.lost)] * with_lost,
        )
    if len(runs) > _MOST_RUNS:
        table.caption = f"and {len(runs) - _MOST_RUNS} earlier runs"
    return table


def _numbers(trials: Sequence[int]) -> str:
    """Return numbers of trials, at most eight of them."""
    shown = ", ".join(map(str, trials[:8])) + (", …" if len(trials) > 8 else "")
    return f"trial {shown}" if shown else ""


def _run_notes(runs: Sequence[RunOfStudy]) -> list[str]:
    return [f"{r.info.host}: {r.info.note}" for r in runs[:_MOST_RUNS] if r.info.note]


def _run_data(run: RunOfStudy) -> dict[str, object]:
    info = run.info
    return {
        "host": info.host,
        "pid": info.pid,
        "run_dir": info.run_dir,
        "version": info.version,
        "workers": info.workers,
        "state": run.state,
        "note": info.note,
        "seen": round(info.now - info.seen_at, 3),
        "finished": run.finished,
        "running": list(run.running),
        "paused": run.paused,
        "taken_over": list(run.lost),
    }


def _without_status_file(snapshot: Snapshot) -> str:
    """Return what the study alone says, and why no run is shown."""
    state = snapshot.state
    counts = ", ".join(f"{count} {name.lower()}" for name, count in state.states.items())
    lines = [f"{one_line(state.study_name)}: {counts or 'no trials'}"]
    if state.best is not None:
        lines.append(f"best: {text.best_so_far(state)}")
    elif snapshot.front:
        lines.append(f"best: {front_text(snapshot.front)}")
    lines.append(
        "A run is active but has written no status here: it is starting, or it has a run folder "
        "of its own. Name that folder with --run-dir."
        if snapshot.alive
        else "No run is active on this machine, and none has left a status."
        + (f" {_STARTING}" if not state.states else "")
        if not snapshot.runs
        else "The folder of this machine has no status; for a run with its own folder, add "
        "--run-dir. Runs on all machines:"
    )
    return "\n".join(lines)


def _snapshots(study: Study, run_dir: Path | None) -> Iterator[Snapshot]:
    """Yield a snapshot at intervals until the run is over."""
    while True:
        snapshot = find_snapshot(study, run_dir)
        yield snapshot
        if not snapshot.alive:
            return
        time.sleep(POLL_INTERVAL)


def _watch(study: Study, run_dir: Path | None) -> None:
    """Show the live display of the run, redrawn as its status file changes."""
    from supermax.ui.display.live import live_on

    snapshots = _snapshots(study, run_dir)
    current = next(snapshots)
    if current.fields is None:
        _print_one(current, as_json=False)
        return
    with live_on(sys.stdout, lambda console: draw_view(current.state, console.height)):
        for newer in snapshots:
            current = newer
