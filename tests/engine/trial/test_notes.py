"""Notes of a trial: delivered, limited in rate, and safe whatever their content."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

import supermax
from supermax.engine import events as ev
from supermax.engine.processes.protocol import Note, decode_message, encode_message
from supermax.engine.trial.notes import INTERVAL, LONGEST_TEXT, MOST_FACTS, Notes, readable

pytestmark = pytest.mark.usefixtures("quick")


class Liar(float):
    """Number type whose conversion fails."""

    def __float__(self) -> float:
        raise RuntimeError("no")


def noted(study: optuna.Study, objective: Any, n_trials: int = 1) -> list[ev.Event]:
    seen: list[ev.Event] = []
    supermax.optimize(study, objective, n_trials, progress=seen.append)
    return seen


@given(
    st.dictionaries(
        st.text(),
        st.none()
        | st.floats()
        | st.integers()
        | st.text(st.characters(categories=None))
        | st.lists(st.integers())
        | st.binary(),
    )
)
def test_readable_facts_are_finite_json(facts: dict[str, Any]) -> None:
    found = readable(facts)
    assert len(found) <= MOST_FACTS
    assert decode_message(encode_message(Note(found))) == Note(found)
    json.loads(json.dumps(found, allow_nan=False))
    assert readable(found) == found


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (3, 3),
        (2.5, 2.5),
        (True, 1),
        ("x" * 10_000_000, "x" * LONGEST_TEXT),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (math.nan, None),
        (math.inf, None),
        (10**5000, None),
        (Liar(1.0), None),
        (object(), None),
        (np.zeros(3), None),
        ({"a": 1}, None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_conversion_of_facts(given: Any, kept: Any) -> None:
    assert readable({"x": given}) == {"x": kept}
    assert type(readable({"x": given})["x"]) is type(kept)


def test_rate_limited_notes_keep_the_latest_value() -> None:
    times: Iterator[float] = iter([0.0, 0.0, 0.01, 0.02, INTERVAL + 0.03, 1.0])
    notes = Notes(lambda: next(times))
    assert notes.add({"epoch": 1, "encoder": "tiny"})
    assert notes.take() == {"epoch": 1, "encoder": "tiny"}
    assert not notes.add({"epoch": 2})
    assert not notes.add({"epoch": 3, "loss": 0.5})
    assert notes.add({"loss": 0.25})
    assert notes.take() == {"epoch": 3, "loss": 0.25}


def test_number_of_waiting_names_is_limited() -> None:
    notes = Notes()
    for i in range(1000):
        notes.add({f"fact {i}": i})
    assert len(notes.take()) == MOST_FACTS


def test_notes_reach_the_listeners_at_a_limited_rate(study: optuna.Study) -> None:
    def objective(trial: Any) -> float:
        for i in range(5000):
            trial.note(epoch=i, encoder="tiny")
        trial.report(0.5, 1)
        return 1.0

    seen = noted(study, objective)
    notes = [event for event in seen if isinstance(event, ev.TrialNoted)]
    assert 2 <= len(notes) <= 20
    assert notes[0] == ev.TrialNoted(0, {"epoch": 0, "encoder": "tiny"})
    # The last one before a report is not lost, and comes before it.
    assert notes[-1].facts["epoch"] == 4999
    assert seen.index(notes[-1]) < seen.index(ev.TrialReported(0, 1, 0.5))
    assert study.trials[0].user_attrs.keys() == {"supermax"}
    assert "tiny" not in json.dumps(study.trials[0].user_attrs)


def test_invalid_notes_affect_neither_trial_nor_run(study: optuna.Study) -> None:
    def objective(trial: Any) -> float:
        garbage = [math.nan, 10**5000, "x" * 50_000_000, object(), b"\xff", [[]], "\ud800\x1b[2J"]
        for thing in garbage:
            trial.note(**{"fact": thing, "\x1b[31m": thing, "": thing})
            time.sleep(INTERVAL / len(garbage))
        trial.note()
        return 1.0

    seen = noted(study, objective, 2)
    assert [trial.value for trial in study.trials] == [1.0, 1.0]
    assert not [event for event in seen if isinstance(event, ev.FaultSeen)]


def test_note_after_the_end_is_ignored(study: optuna.Study) -> None:
    kept: list[Any] = []

    def objective(trial: Any) -> float:
        for old in kept:
            old.note(epoch=1)
        kept.append(trial)
        return 1.0

    supermax.optimize(study, objective, 3, reuse_cells=True, progress=False)
    assert [trial.value for trial in study.trials] == [1.0] * 3


def test_note_does_not_block_on_a_busy_coordinator(study: optuna.Study) -> None:
    """While the coordinator does not read, the trial continues and no report is lost."""

    def objective(trial: Any) -> float:
        from supermax.engine.trial import notes

        notes.INTERVAL = 0.0  # more of them than the socket has room for
        longest = 0.0
        trial.note(begun=1)
        for _ in range(600):
            before = time.monotonic()
            trial.note(**{f"fact {i}": "x" * 100 for i in range(MOST_FACTS)})
            longest = max(longest, time.monotonic() - before)
            time.sleep(0.001)
        trial.set_user_attr("longest", longest)
        return 1.0

    def slow(event: ev.Event) -> None:
        if isinstance(event, ev.TrialNoted) and "begun" in event.facts:
            time.sleep(1.0)

    supermax.optimize(study, objective, 1, progress=slow)
    assert study.trials[0].user_attrs["longest"] < 0.5
