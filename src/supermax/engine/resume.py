"""What becomes of trials found RUNNING when a run starts."""

from __future__ import annotations

import optuna
from optuna.study import Study
from optuna.trial import FrozenTrial

from supermax.engine.folder import StudyFolder
from supermax.engine.job import Job
from supermax.engine.outcome import Outcome
from supermax.naming import CLAIM


def find_leftovers(
    study: Study, running: list[FrozenTrial], claim: str, folder: StudyFolder
) -> tuple[list[Job], list[int]]:
    """The trials this run's earlier incarnations had claimed, and the numbers of those that
    belong to somebody else and are left alone."""
    own, foreign = [], []
    for frozen in running:
        if frozen.system_attrs.get(CLAIM) == claim:
            job = Job(optuna.trial.Trial(study, frozen._trial_id), folder.trial(frozen.number))
            job.recall()
            own.append(job)
        else:
            foreign.append(frozen.number)
    return own, foreign


def standing_outcome(job: Job) -> Outcome | None:
    """The outcome the last attempt wrote before anything else happened to it; None where it was
    decided already to try again."""
    outcome = job.folder.outcome()
    if outcome is None or outcome.attempt != job.attempt or job.attempt == job.dealt_with:
        return None
    return outcome


def foreign_notice(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:10])) + (", …" if len(numbers) > 10 else "")
    return (
        f"{len(numbers)} trial(s) are RUNNING that this run did not start ({shown}). They are "
        f"left alone. If nobody works on them any more, clear each with "
        f"study.tell(NUMBER, state=optuna.trial.TrialState.FAIL)."
    )
