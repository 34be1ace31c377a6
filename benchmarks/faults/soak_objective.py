"""Objective of the soak: that of an agent, with a fault in some trials, and evidence of ends."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from optuna.trial import BaseTrial
from work import TRANSIENT, claim, note, provoke

from supermax.engine.processes.remote_trial import RemoteTrial
from supermax.tasks.objective import AgentObjective, TrialReporter

FOLDER = "SUPERMAX_SOAK"
"""Environment variable: the folder of the plan and of the evidence."""


@dataclass
class FaultyReporter(TrialReporter):
    """Reporter in whose first report the fault of the trial happens."""

    def report(self, value: float, epoch: int) -> None:
        super().report(value, epoch)
        folder = Path(os.environ[FOLDER])
        faults = json.loads((folder / "plan.json").read_text(encoding="utf-8"))["faults"]
        number = self.trial.number
        fault = faults[number] if number < len(faults) else "clean"
        if fault == "clean":
            return
        is_first = claim(folder, f"attempt-{number}") == 0
        if is_first or fault not in TRANSIENT:
            provoke(fault, value)


class FaultyObjective(AgentObjective):
    """Objective with faults; notes each trial that has run to its end."""

    def reporter(self, trial: BaseTrial) -> TrialReporter:
        return FaultyReporter(trial)

    def __call__(self, trial: RemoteTrial) -> float | tuple[float, ...]:
        value = super().__call__(trial)
        assert isinstance(value, float)
        note(Path(os.environ[FOLDER]), trial.number, value)
        return value
