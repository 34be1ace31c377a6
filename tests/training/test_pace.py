"""How fast and how far training is, as people who watch are told."""

from __future__ import annotations

from pathlib import Path

from supermax.agents.objective import encoders
from supermax.training.loop import train
from supermax.training.pace import Pace
from tests.training.corpora import Quiet, config, ready


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_it_is_told_once_a_second_and_counts_training_alone() -> None:
    clock, quiet = Clock(), Quiet()
    pace = Pace(quiet.note, clock)
    for epoch in range(2):
        pace.begin()
        for update in range(10):
            clock.now += 0.25
            pace.step(5, epoch + (update + 1) / 10)
        pace.end(epoch + 1)
        clock.now += 100.0  # evaluation
    assert [epoch for epoch, _ in quiet.notes] == [0.4, 0.8, 1, 1.1, 1.5, 1.9, 2]
    assert {rate for _, rate in quiet.notes} == {20.0}
    assert pace.overall() == 20.0
    assert pace.overall(without=3.0) == 50.0
    assert pace.overall(without=5.0) is None


def test_a_rate_over_next_to_nothing_is_not_told() -> None:
    clock, quiet = Clock(), Quiet()
    pace = Pace(quiet.note, clock)
    pace.begin()
    pace.step(1000, 1.0)
    pace.end(1.0)
    assert quiet.notes == [(1.0, None)]


def test_every_epoch_ends_in_a_note(tmp_path: Path) -> None:
    quiet = Quiet()
    train(ready(tmp_path, config(train={"epochs": 3}), n=8), quiet)
    assert {1, 2, 3} <= {epoch for epoch, _ in quiet.notes}


def test_encoders_by_name() -> None:
    assert encoders(config(encoder={"name": "/data/models/mine"})) == "mine"
    two = config("joint", encoder={"name": "a/b"}, evidence_encoder={"name": "tiny"})
    assert encoders(two) == "a/b + tiny"
