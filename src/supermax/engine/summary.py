"""Result of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from supermax._util.text import counted, took
from supermax.engine.gain import Gain

NO_GAIN = "no gain"
"""Reason for the end of a run that ends by itself."""


@dataclass(frozen=True)
class Summary:
    """Trials of the study after a run, and statistics of the run.

    ``trials`` counts the whole study by state; everything else counts this run alone.
    """

    trials: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    retries: int = 0
    told: int = 0
    cells: int = 0
    seconds: float = 0.0
    stopped_by: str | None = None
    """"timeout", "interrupt", "study.stop()" or "no gain"; None: the target was reached."""
    gain: Gain | None = None
    """Expected gain of further trials; None: it was not estimated."""
    run_dir: Path = Path()

    @property
    def complete(self) -> bool:
        """Return whether the search is at its end: at its target, or by itself."""
        return self.stopped_by in (None, NO_GAIN)

    @property
    def finished(self) -> int:
        """Number of finished trials of the study."""
        return sum(self.trials.get(state, 0) for state in ("COMPLETE", "PRUNED", "FAIL"))

    def __str__(self) -> str:
        done = [f"{n} {s}" for s in ("COMPLETE", "PRUNED", "FAIL") if (n := self.trials.get(s))]
        states = f" ({', '.join(done)})" if done else ""
        faults = ", ".join(f"{count} {kind}" for kind, count in self.faults.items()) or "none"
        unfinished = self.trials.get("RUNNING", 0)
        paused = "" if self.complete else f" Stopped by {self.stopped_by}."
        if self.stopped_by == NO_GAIN:
            paused = f" Ended by itself, since no further gain is expected ({self.gain})."
        left = f" {counted(unfinished, 'trial')} not finished." if unfinished else ""
        again = " Run again to go on." if self.stopped_by in ("interrupt", "timeout") else ""
        return (
            f"{counted(self.finished, 'finished trial')} in the study{states}. This run: "
            f"{self.told} in {took(self.seconds)}, {counted(self.retries, 'retry', 'retries')}, "
            f"{counted(self.cells, 'cell')}, faults: {faults}.{paused}{left}{again} "
            f"Files in {self.run_dir}."
        )
