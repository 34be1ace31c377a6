"""Decoding settings of a trial, as text."""

from __future__ import annotations

from supermax._util.text import one_line
from supermax.results.records import TrialRecord

_PARAMETERS = {
    "n_best": "decode.n_best",
    "max_answer": "decode.max_answer",
    "policy": "no_answer.policy",
}


_MOST = 8  # labels whose thresholds are shown


def _thresholds(thresholds: list[float], trial: TrialRecord) -> str:
    named = [
        f"{one_line(name, 40)} {value:.2g}"
        for name, value in zip(trial.labels, thresholds, strict=False)
    ]
    more = len(named) - _MOST
    return "thresholds " + ", ".join([*named[:_MOST], *([f"and {more} more"] if more > 0 else [])])


def decoded(trial: TrialRecord) -> str:
    """Return the noun of what a trial decodes."""
    return "Labels" if "thresholds" in trial.result.get("decoding", {}) else "Spans"


def decoding_text(trial: TrialRecord) -> str | None:
    """Return the settings that decoded the spans or the labels of the best epoch and are no
    parameters of the trial; None: there are none."""
    found = trial.result.get("decoding", {})
    if thresholds := found.get("thresholds"):
        return None if "labels.threshold" in trial.params else _thresholds(thresholds, trial)
    shown = []
    for key in ("n_best", "max_answer", "threshold", "policy"):
        value = found.get(key)
        if value is None or value == "calibrated" or _PARAMETERS.get(key) in trial.params:
            continue
        name = "no-answer policy" if key == "policy" else key
        shown.append(
            f"{name} {value:.4g}" if isinstance(value, int | float) else f"{name} {value}"
        )
    return ", ".join(shown) or None
