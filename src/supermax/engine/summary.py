"""What a run returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Summary:
    """The study after a run, and what this run did.

    ``trials`` counts the whole study by state; everything else counts this run alone.
    """

    trials: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    retries: int = 0
    told: int = 0
    cells: int = 0
    seconds: float = 0.0
    stopped_by: str | None = None  # "timeout", "interrupt", "study.stop()"; None: target reached
    run_dir: Path = Path()

    @property
    def finished(self) -> int:
        """How many finished trials the study holds."""
        return sum(self.trials.get(state, 0) for state in ("COMPLETE", "PRUNED", "FAIL"))

    def __str__(self) -> str:
        states = ", ".join(f"{count} {state}" for state, count in self.trials.items() if count)
        faults = ", ".join(f"{count} {kind}" for kind, count in self.faults.items()) or "none"
        ended = f"; stopped by {self.stopped_by}" if self.stopped_by else ""
        return (
            f"{self.finished} finished trials in the study ({states}). This run: {self.told} in "
            f"{self.seconds:.1f} s, {self.retries} retries, {self.cells} cells, "
            f"faults: {faults}{ended}."
        )
