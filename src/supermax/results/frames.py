"""Study as a pandas DataFrame with one row per trial."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supermax.errors import UserError
from supermax.results.records import StudyRecord, TrialRecord

if TYPE_CHECKING:
    import pandas


def frame(record: StudyRecord) -> pandas.DataFrame:
    """Return a DataFrame indexed by trial number. Raises UserError if pandas is not installed."""
    try:
        import pandas
    except ImportError:
        raise UserError(
            "A DataFrame needs pandas, which is not installed: pip install 'supermax[report]'."
        ) from None
    rows = [row(record, trial) for trial in record.trials]
    table = pandas.DataFrame(rows, columns=columns(record, rows))
    table["started"] = pandas.to_datetime(table["started"], unit="s", utc=True)
    return table.set_index("trial")


def row(record: StudyRecord, trial: TrialRecord) -> dict[str, object]:
    values = dict(zip(record.objectives, trial.values or (), strict=False))
    return {
        "trial": trial.number,
        "state": trial.state,
        **values,
        "seconds": trial.seconds,
        "attempts": trial.notes.get("attempts"),
        "faults": len(trial.notes.get("faults", ())),
        "peak_rss": trial.notes.get("peak_rss"),
        "device_reserved": trial.notes.get("device_reserved"),
        "started": trial.started,
        "best_epoch": trial.result.get("best_epoch"),
        "steps": trial.result.get("steps"),
        **{f"params.{name}": value for name, value in trial.params.items()},
        **{f"metrics.{name}": v for name, v in trial.result.get("metrics", {}).items()},
    }


def columns(record: StudyRecord, rows: list[dict[str, object]]) -> list[str]:
    """Return the columns in an order that does not depend on the trials."""
    first = ["trial", "state", *record.objectives, "seconds", "attempts", "faults"]
    first += ["peak_rss", "device_reserved", "started", "best_epoch", "steps"]
    return list(dict.fromkeys([*first, *(name for each in rows for name in each)]))
