"""A trial's way into MLflow: found or made, brought up to date, ended; once, whatever happens.

A run is looked for by its key before one is made. What is sent twice is there once (see
content.py). A trial that begins anew gets another run: MLflow keeps every step it was told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from supermax.records import TrialRecord
from supermax.tracking.content import (
    KEY,
    PREFIX,
    About,
    Content,
    Point,
    content,
    curve_key,
    curve_of,
    started,
    taken_back,
    trial_key,
)
from supermax.tracking.names import text
from supermax.tracking.record import Record
from supermax.tracking.server import Refused, Server, Unreachable

_PARENT = "mlflow.parentRunId"
_MOST_FILE_TRIES = 3


@dataclass
class Live:
    """A run of a trial that is not finished, and what MLflow knows of it."""

    run: str
    ended: bool = False
    curve: dict[int, float] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)


class Sender:
    """Brings trials into MLflow, one at a time. After a failure, call again."""

    def __init__(self, server: Server, record: Record, about: About) -> None:
        self.server = server
        self.record = record
        self.about = about
        self.notices: dict[str, None] = {}
        self._live: dict[int, Live] = {}
        self._file_tries: dict[int, int] = {}
        self._is_open = False

    def open(self, start: int) -> None:
        """The experiment and the study's own run, found or made; it began at `start`. Raises
        Unreachable, Refused."""
        if self._is_open:
            return
        self.server.connect()
        record = self.record
        if record.parent is not None and self.server.get(record.parent) is None:
            record.begin_anew()
        if record.parent is None:
            experiment = self.server.experiment(text(self.about.name) or "study")
            found = self.server.find(experiment, self.about.key)
            parent = found[0].id if found else self._make_parent(experiment, start)
            record.note_parent(experiment, parent)
        self._is_open = True

    def _make_parent(self, experiment: str, start: int) -> str:
        tags = {KEY: self.about.key, f"{PREFIX}study": text(self.about.name)}
        tags[f"{PREFIX}objectives"] = text(", ".join(self.about.objectives))
        return self.server.create(experiment, text(self.about.name, 250), start, tags).id

    def look_again(self) -> None:
        """MLflow does not know a run that it has made: ask it about everything."""
        self._live.clear()
        self._is_open = False

    def idle(self, trial: TrialRecord) -> bool:
        """True when MLflow knows all of a running trial already."""
        live = self._live.get(trial.number)
        return (
            live is not None
            and not trial.trial.state.is_finished()
            and len(live.params) == len(trial.params)
            and live.curve == curve_of(trial)
        )

    def send(self, trial: TrialRecord) -> None:
        """All there is to say of it now. Raises Unreachable, Refused."""
        try:
            self._send(trial)
        except (Unreachable, Refused):
            # Who knows how far it got: MLflow is asked the next time.
            self._live.pop(trial.number, None)
            raise

    def _send(self, trial: TrialRecord) -> None:
        wanted = content(self.about, trial)
        live = self._live.get(trial.number) or self._found(trial)
        if live is not None and taken_back(live.curve, wanted.curve):
            self.server.delete(live.run)
            live = None
        if live is None:
            live = self._made(trial, wanted)
        self._live[trial.number] = live
        if live.ended and wanted.ended:  # that comes last: all of it is there
            self._note_done(trial)
            return
        new = {name: v for name, v in wanted.params.items() if name not in live.params}
        steps = {step: v for step, v in wanted.curve.items() if step not in live.curve}
        points = [*self._curve(steps, wanted), *wanted.points]
        self.server.log(live.run, new, points, wanted.tags)
        live.params |= new
        live.curve |= steps
        if wanted.ended:
            self._end(trial, wanted, live)

    def _curve(self, steps: dict[int, float], wanted: Content) -> Iterator[Point]:
        name = curve_key(self.about)
        for step, value in steps.items():
            yield Point(name, value, wanted.start, step)

    def _found(self, trial: TrialRecord) -> Live | None:
        """The trial's run with what MLflow knows of its curve."""
        known = self.record.runs.get(trial.number)
        run = self.server.get(known) if known is not None else None
        if run is None:
            found = self.server.find(self._experiment, trial_key(self.about, trial))
            if not found:
                return None
            run = found[0]
            self.record.note_found(trial.number, run.id)
        return Live(run.id, run.ended, self.server.history(run.id, curve_key(self.about)))

    def _made(self, trial: TrialRecord, wanted: Content) -> Live:
        tags = {**started(self.about, trial), _PARENT: str(self.record.parent)}
        self.record.note_asking(trial.number)
        run = self.server.create(self._experiment, wanted.name, wanted.start, tags)
        self.record.note_made(trial.number, run.id)
        return Live(run.id)

    def _end(self, trial: TrialRecord, wanted: Content, live: Live) -> None:
        for name, whole in wanted.files.items():
            self._upload(trial.number, live.run, name, whole)
        self.server.end(live.run, wanted.status, wanted.end)
        self._note_done(trial)

    def _note_done(self, trial: TrialRecord) -> None:
        if self.record.unanswered[trial.number] > 0:
            self._keep_one(trial_key(self.about, trial), self._live[trial.number].run)
        self.record.note_done(trial.number)
        del self._live[trial.number]

    def _keep_one(self, key: str, kept: str) -> None:
        """Without runs that were asked for and whose answer never came, or came too late."""
        for run in self.server.find(self._experiment, key):
            if run.id != kept:
                self.server.delete(run.id)

    def _upload(self, number: int, run: str, name: str, whole: str) -> None:
        """Files go to another place than numbers, which may be down, or closed to us, for itself:
        then the numbers are kept without them."""
        try:
            self.server.upload(run, name, whole)
        except (Unreachable, Refused) as error:
            tries = self._file_tries[number] = self._file_tries.get(number, 0) + 1
            if isinstance(error, Unreachable) and tries < _MOST_FILE_TRIES:
                raise
            self.notices[f"MLflow took no files: {error}"] = None

    def end_study(self, tags: dict[str, str], status: str) -> None:
        """How the study stands; once nothing is left to send."""
        parent = str(self.record.parent)
        self._keep_one(self.about.key, parent)
        self.server.log(parent, {}, [], tags)
        self.server.end(parent, status, None)

    def begin_study(self) -> None:
        self.server.go_on(str(self.record.parent))

    @property
    def _experiment(self) -> str:
        return str(self.record.experiment)
