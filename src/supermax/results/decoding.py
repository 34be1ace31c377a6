"""Decoding settings of a trial, as text."""

from __future__ import annotations

from supermax.results.records import TrialRecord

_PARAMETERS = {
    "n_best": "decode.n_best",
    "max_answer": "decode.max_answer",
    "policy": "no_answer.policy",
}


def decoding_text(trial: TrialRecord) -> str | None:
    """Return the settings that decoded the spans of the best epoch and are no parameters of the
    trial; None: there are none."""
    found = trial.result.get("decoding", {})
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
