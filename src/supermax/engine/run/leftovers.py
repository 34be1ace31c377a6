"""Find RUNNING trials of earlier runs."""

from __future__ import annotations

from collections.abc import Container

import optuna
from optuna.study import Study
from optuna.trial import FrozenTrial

from supermax._util.attributes import CLAIM
from supermax._util.text import counted
from supermax.engine.jobs.job import Job
from supermax.engine.storage.run_folder import StudyFolder


def find_leftovers(
    study: Study,
    running: list[FrozenTrial],
    claim: str,
    folder: StudyFolder,
    leased: Container[int] = (),
) -> tuple[list[Job], list[int]]:
    """Return the trials that earlier runs in this folder have claimed, and the numbers of those
    that other programs run. Not among the latter: those in `leased`, which other runs own; they
    are taken over when their lease expires."""
    own, foreign = [], []
    for frozen in running:
        if frozen.system_attrs.get(CLAIM) == claim:
            job = Job(optuna.trial.Trial(study, frozen._trial_id), folder.trial(frozen.number))
            job.reload()
            own.append(job)
        elif frozen.number not in leased:  # those are other runs' business
            foreign.append(frozen.number)
    return own, foreign


def foreign_notice(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:10])) + (", …" if len(numbers) > 10 else "")
    return (
        f"Not touched: {counted(len(numbers), 'RUNNING trial')} that this run did not start "
        f"({shown}). If no other program runs them any more, end each with "
        f"study.tell(NUMBER, state=optuna.trial.TrialState.FAIL)."
    )
