"""Messages of a cell about its attempt: reply to requests, store reports, detect the end.

MessageHandler.handle ──▶ None: the attempt goes on
                          Ended, Unusable, FinishedElsewhere: the coordinator acts on it
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import Study

from supermax.engine import events
from supermax.engine.jobs.job import Attempt
from supermax.engine.processes.executor import Executor
from supermax.engine.processes.protocol import (
    PAUSE,
    Finished,
    Message,
    Note,
    Reply,
    Report,
    ShouldPrune,
    StopStudy,
)
from supermax.engine.run.claimed import ClaimedTrials
from supermax.engine.run.requests import RequestHandler
from supermax.engine.storage.leases import LeaseLost
from supermax.engine.storage.patient import StudyDeleted
from supermax.engine.trial.notes import readable
from supermax.engine.trial.outcome import INTERRUPTED, Outcome
from supermax.errors import EnvironmentFault


@dataclass(frozen=True)
class Ended:
    """End of an attempt that its cell reports. `unclean`: why the cell takes no other trial."""

    outcome: Outcome
    unclean: str | None


@dataclass(frozen=True)
class Unusable:
    """Message that cannot be understood or stored."""

    error: Exception


@dataclass(frozen=True)
class FinishedElsewhere:
    """Trial that another program has finished."""


class MessageHandler:
    """Handles the messages of all cells. Does not end attempts."""

    def __init__(
        self,
        study: Study,
        processes: Executor,
        requests: RequestHandler,
        trials: ClaimedTrials,
        emit: events.Listener,
    ) -> None:
        self._study, self._processes = study, processes
        self._requests, self._trials, self._emit = requests, trials, emit

    def handle(
        self, attempt: Attempt, message: Message
    ) -> Ended | Unusable | FinishedElsewhere | None:
        """Act on a message; return why the attempt is over, if it is."""
        attempt.last_message = time.monotonic()
        match message:
            case Finished(fields, unclean, written):
                try:
                    outcome = Outcome.from_json(fields)
                except Exception as error:
                    return Unusable(error)
                if not written and outcome.state != INTERRUPTED:
                    attempt.job.folder.write_outcome(outcome)
                if outcome.state != INTERRUPTED:
                    self._requests.store_late_reports(attempt)
                return Ended(outcome, unclean)
            case StopStudy():
                self._study._stop_flag = True
            case Report(step, value, written):
                if not written:
                    attempt.job.folder.append_report(attempt.job.attempt, step, value)
                return self._store_report(attempt, step, value)
            case Note(facts):
                self._emit(events.TrialNoted(attempt.job.number, readable(facts)))
            case _:
                self._processes.send(attempt.cell, self._reply(attempt, message))
                attempt.last_message = time.monotonic()  # waiting for a reply is not silence
        return None

    def _reply(self, attempt: Attempt, message: Message) -> Reply:
        if isinstance(message, ShouldPrune) and self._trials.paused.enabled:
            attempt.pausing = self._trials.pauses(attempt.job)
            return Reply(PAUSE if attempt.pausing else False)
        return self._requests.handle(attempt, message)

    def _store_report(
        self, attempt: Attempt, step: int, value: float
    ) -> Unusable | FinishedElsewhere | None:
        try:
            self._requests.store_report(attempt, step, value)
        except (EnvironmentFault, LeaseLost, StudyDeleted):
            raise
        except UpdateFinishedTrialError:
            return FinishedElsewhere()
        except Exception as error:  # a step the database has no room for, say
            return Unusable(error)
        self._emit(events.TrialReported(attempt.job.number, step, value))
        return None
