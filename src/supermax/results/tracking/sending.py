"""Synchronisation of a trial with its run at a tracker: found or created, updated and ended,
exactly once.

A run is searched by its key before one is created, and sending twice is idempotent (see
content.py). A trial that starts over gets another run, because trackers cannot remove steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from supermax.results.records import TrialRecord
from supermax.results.tracking.backend import (
    PREFIX,
    Backend,
    MetricPoint,
    NewRun,
    RequestRefused,
    Unreachable,
)
from supermax.results.tracking.content import (
    About,
    Content,
    content,
    curve_key,
    curve_of,
    is_superseded,
    started,
    trial_key,
)
from supermax.results.tracking.names import stored_text
from supermax.results.tracking.record import Record

_MOST_FILE_TRIES = 3


@dataclass
class Live:
    """Run of an unfinished trial, and the part of it that the tracker has."""

    run: str
    ended: bool = False
    curve: dict[int, float] = field(default_factory=dict)
    params: dict[str, object] = field(default_factory=dict)


class Sender:
    """Sender of trials to a tracker, one at a time. After a failure, call it again."""

    def __init__(self, server: Backend, record: Record, about: About) -> None:
        self.server = server
        self.record = record
        self.about = about
        self.notices: dict[str, None] = {}
        self._live: dict[int, Live] = {}
        self._file_tries: dict[int, int] = {}
        self._is_open = False

    def open(self, start: int) -> None:
        """Find or create the experiment and the run of the study, with its start in milliseconds.
        Raises Unreachable, RequestRefused."""
        if self._is_open:
            return
        self.server.connect()
        record = self.record
        if record.parent is not None and self.server.get(record.parent) is None:
            record.reset()
        if record.parent is None:
            experiment = self.server.experiment(stored_text(self.about.name) or "study")
            found = self.server.find(experiment, self.about.key)
            parent = found[0].id if found else self._make_parent(experiment, start)
            record.note_parent(experiment, parent)
        self._is_open = True

    def _make_parent(self, experiment: str, start: int) -> str:
        name = stored_text(self.about.name, 250)
        new = NewRun(self.about.key, name, start, name, self._study_tags, parent=None)
        return self.server.create(experiment, new).id

    @property
    def _study_tags(self) -> dict[str, str]:
        objectives = stored_text(", ".join(self.about.objectives))
        return {
            f"{PREFIX}study": stored_text(self.about.name),
            f"{PREFIX}objectives": objectives,
        }

    def forget_state(self) -> None:
        """Query the tracker about everything again, because it has lost a run."""
        self._live.clear()
        self._is_open = False

    def is_current(self, trial: TrialRecord) -> bool:
        """Return whether the tracker has all of a running trial already."""
        live = self._live.get(trial.number)
        return (
            live is not None
            and not trial.trial.state.is_finished()
            and len(live.params) == len(trial.params)
            and live.curve == curve_of(trial)
        )

    def send(self, trial: TrialRecord) -> None:
        """Bring the run of a trial up to date. Raises Unreachable, RequestRefused."""
        try:
            self._send(trial)
        except (Unreachable, RequestRefused):
            # How much arrived is unknown: the tracker is queried the next time.
            self._live.pop(trial.number, None)
            raise

    def _send(self, trial: TrialRecord) -> None:
        wanted = content(self.about, trial)
        live = self._live.get(trial.number) or self._find(trial)
        if live is not None and is_superseded(live.curve, wanted.curve):
            self.server.delete(live.run)
            live = None
        if live is None:
            live = self._create(trial, wanted)
        self._live[trial.number] = live
        if live.ended and wanted.ended:  # a run is ended last, so it is complete
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

    def _curve(self, steps: dict[int, float], wanted: Content) -> Iterator[MetricPoint]:
        name = curve_key(self.about)
        for step, value in steps.items():
            yield MetricPoint(name, value, wanted.start, step)

    def _find(self, trial: TrialRecord) -> Live | None:
        """Return the run of a trial with the curve that the tracker has; None if there is none."""
        known = self.record.runs.get(trial.number)
        run = self.server.get(known) if known is not None else None
        if run is None:
            found = self.server.find(self._experiment, trial_key(self.about, trial))
            if not found:
                return None
            run = found[0]
            self.record.note_found(trial.number, run.id)
        return Live(run.id, run.ended, self.server.history(run.id, curve_key(self.about)))

    def _create(self, trial: TrialRecord, wanted: Content) -> Live:
        new = NewRun(
            trial_key(self.about, trial),
            wanted.name,
            wanted.start,
            stored_text(self.about.name, 250),
            started(self.about, trial),
            parent=str(self.record.parent),
        )
        self.record.note_requested(trial.number)
        run = self.server.create(self._experiment, new)
        self.record.note_created(trial.number, run.id)
        return Live(run.id)

    def _end(self, trial: TrialRecord, wanted: Content, live: Live) -> None:
        for name, whole in wanted.files.items():
            self._upload(trial.number, live.run, name, whole)
        self.server.end(live.run, wanted.status, wanted.end)
        self._note_done(trial)

    def _note_done(self, trial: TrialRecord) -> None:
        if self.record.unconfirmed[trial.number] > 0:
            self._delete_duplicates(trial_key(self.about, trial), self._live[trial.number].run)
        self.record.note_done(trial.number)
        del self._live[trial.number]

    def _delete_duplicates(self, key: str, kept: str) -> None:
        """Delete other runs with this key: requests to create them got no answer in time."""
        for run in self.server.find(self._experiment, key):
            if run.id != kept:
                self.server.delete(run.id)

    def _upload(self, number: int, run: str, name: str, whole: str) -> None:
        """Upload a file. The artifact store may be down or forbidden on its own; after some tries
        the run is kept without files."""
        try:
            self.server.upload(run, name, whole)
        except (Unreachable, RequestRefused) as error:
            tries = self._file_tries[number] = self._file_tries.get(number, 0) + 1
            if isinstance(error, Unreachable) and tries < _MOST_FILE_TRIES:
                raise
            self.notices[f"The files of the trials were refused: {error}"] = None

    def end_study(self, tags: Mapping[str, str], status: str) -> None:
        """Update and end the run of the study, once all trials are sent."""
        parent = str(self.record.parent)
        self._delete_duplicates(self.about.key, parent)
        self.server.log(parent, {}, [], {**self._study_tags, **tags})
        self.server.end(parent, status, None)

    def resume_study(self) -> None:
        """Set the run of the study to running."""
        self.server.resume(str(self.record.parent))

    @property
    def _experiment(self) -> str:
        return str(self.record.experiment)
