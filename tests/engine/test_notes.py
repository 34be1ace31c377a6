"""Notes of a trial: they arrive, they are few, and nothing in them can hurt anybody."""

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
from supermax.engine.notes import INTERVAL, LONGEST_TEXT, MOST_FACTS, Notes, readable
from supermax.engine.protocol import Note, decode, encode

pytestmark = pytest.mark.usefixtures("quick")


class Liar(float):
    """Looks like a number."""

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
def test_what_is_readable_travels_and_is_finite(facts: dict[str, Any]) -> None:
    found = readable(facts)
    assert len(found) <= MOST_FACTS
    assert decode(encode(Note(found))) == Note(found)
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
def test_every_sort_of_fact(given: Any, kept: Any) -> None:
    assert readable({"x": given}) == {"x": kept}
    assert type(readable({"x": given})["x"]) is type(kept)


def test_what_comes_too_soon_waits_and_the_newest_of_it_counts() -> None:
    times: Iterator[float] = iter([0.0, 0.0, 0.01, 0.02, INTERVAL + 0.03, 1.0])
    notes = Notes(lambda: next(times))
    assert notes.add({"epoch": 1, "encoder": "tiny"})
    assert notes.take() == {"epoch": 1, "encoder": "tiny"}
    assert not notes.add({"epoch": 2})
    assert not notes.add({"epoch": 3, "loss": 0.5})
    assert notes.add({"loss": 0.25})
    assert notes.take() == {"epoch": 3, "loss": 0.25}


def test_names_that_change_all_the_time_do_not_pile_up() -> None:
    notes = Notes()
    for i in range(1000):
        notes.add({f"fact {i}": i})
    assert len(notes.take()) == MOST_FACTS


def test_notes_reach_the_listeners_and_are_few(study: optuna.Study) -> None:
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


def test_garbage_hurts_neither_trial_nor_run(study: optuna.Study) -> None:
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


def test_a_note_after_the_end_is_nothing(study: optuna.Study) -> None:
    kept: list[Any] = []

    def objective(trial: Any) -> float:
        for old in kept:
            old.note(epoch=1)
        kept.append(trial)
        return 1.0

    supermax.optimize(study, objective, 3, reuse_cells=True, progress=False)
    assert [trial.value for trial in study.trials] == [1.0] * 3


def test_a_busy_coordinator_does_not_hold_up_a_note(study: optuna.Study) -> None:
    """Nobody reads for a while: the trial goes on, and its reports are all there."""

    def objective(trial: Any) -> float:
        from supermax.engine import notes

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
