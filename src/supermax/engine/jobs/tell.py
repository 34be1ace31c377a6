"""Write the end of a trial to the study. No other module does."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import Study
from optuna.study._tell import _tell_with_warning
from optuna.trial import FrozenTrial, TrialState

from supermax._util.attributes import RECORD
from supermax.engine.jobs.job import Job
from supermax.engine.storage.leases import LeaseLost
from supermax.engine.storage.patient import PatientStorage
from supermax.engine.trial.faults import Evidence, Fault
from supermax.engine.trial.outcome import Raised
from supermax.errors import EnvironmentFault

FORMAT = 1
_MOST_MESSAGE = 500


@dataclass(frozen=True)
class ToldTrial:
    """State of the trial in the study. `sampler_error`: exception that the sampler raised in
    `study.tell`; the trial is finished all the same."""

    state: TrialState
    values: Sequence[float] | None
    sampler_error: Exception | None = None


def tell(
    study: Study,
    storage: PatientStorage,
    job: Job,
    state: TrialState,
    evidence: Evidence,
    constraint: tuple[str, float] | None = None,
) -> ToldTrial:
    """Finish the trial. A trial that is finished already stays as it is."""
    trial_id = job.trial._trial_id
    outcome = evidence.outcome
    complete = state is TrialState.COMPLETE and outcome is not None
    values = list(outcome.values or ()) if complete and outcome else None
    try:
        if constraint is not None:
            name, value = constraint
            storage.set_trial_system_attr(trial_id, f"constraints:{name}", value)
        storage.set_trial_user_attr(trial_id, RECORD, record(job, evidence))
        # What study.tell does, without reading the trial back from storage once more.
        state, told, _ = _tell_with_warning(study, job.trial, values, state, skip_if_finished=True)
        return ToldTrial(state, told)
    except (EnvironmentFault, LeaseLost):  # reading the trial would wait for the storage again
        raise
    except Exception as error:
        finished = storage.get_trial(trial_id)
        if not finished.state.is_finished():
            raise
        sampler_error = None if isinstance(error, UpdateFinishedTrialError) else error
        return ToldTrial(finished.state, finished.values, sampler_error)


def succeeded(trial: FrozenTrial) -> bool:
    """Return whether the objective itself ended the trial: it completed, or was pruned without a
    fault."""
    if trial.state is TrialState.PRUNED:
        return not any(key.startswith("constraints:supermax:") for key in trial.system_attrs)
    return trial.state is TrialState.COMPLETE


def record(job: Job, evidence: Evidence) -> dict[str, object]:
    """Return the record of a trial's attempts that the study keeps, as JSON."""
    outcome = evidence.outcome
    kept: dict[str, object] = {
        "format": FORMAT,
        "attempts": job.attempt,
        "seconds": round(evidence.lasted, 3),
        "ended": round(time.time(), 3),
        "peak_rss": outcome.peak_rss if outcome else evidence.peak_rss,
    }
    if job.spent:
        kept["spent"] = round(job.spent + evidence.lasted, 3)
    if job.provision is not None and job.provision.reserve:
        kept["reserved"] = {job.provision.where: job.provision.reserve}
    if (repeats := repeated_by(job.trial.user_attrs)) is not None:
        kept["repeats"] = repeats
    if job.result_of is not None:
        kept["result_of"] = job.result_of
    if outcome is not None:
        if outcome.device_allocated is not None:
            kept["device_allocated"] = outcome.device_allocated
            kept["device_reserved"] = outcome.device_reserved
        if outcome.raised is not None:
            kept["traceback"] = outcome.raised.traceback
    if job.faults:
        kept["faults"] = [_short(fault) for fault in job.faults]
    return kept


def repeated_by(user_attrs: Mapping[str, object]) -> int | None:
    """Return the number of the trial that one with these attributes repeats, if any."""
    record = user_attrs.get(RECORD)
    return record.get("repeats") if isinstance(record, dict) else None


def _short(fault: Fault) -> dict[str, str]:
    return {
        "kind": fault.name,
        "culprit": str(fault.culprit),
        "message": fault.message[:_MOST_MESSAGE],
        "advice": fault.advice,
    }


def halt_message(fault: Fault, raised: Raised | None, trials: int) -> str:
    """Return the message for a run whose first trials all failed in the same way. `raised`:
    exception of the last one, if any."""
    after = (
        "Fix it, then call again; n_trials += len(supermax.retry(study)) runs the failed trials "
        "once more."
    )
    if raised is None or raised.unsendable:
        what = raised.message if raised is not None else f"{fault.message} {fault.advice}"
        return f"{what} That happened in all of the first {trials} trials. {after}"
    return (
        f"The first {trials} trials all failed with the same exception from the same line "
        f"({raised.where}), and none has ever succeeded. {after}\n\n{raised.traceback}"
    )
