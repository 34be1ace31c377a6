"""Throughput and progress of training, as they are displayed."""

from __future__ import annotations

from pathlib import Path

from supermax.tasks.objective import encoder_title
from supermax.training.loop import train
from supermax.training.steps.throughput import Throughput
from tests.training.corpora import Quiet, config, ready


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_throughput_is_reported_once_a_second_and_counts_training_only() -> None:
    clock, quiet = Clock(), Quiet()
    pace = Throughput(quiet.note, clock)
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


def test_a_rate_over_a_short_time_is_not_reported() -> None:
    clock, quiet = Clock(), Quiet()
    pace = Throughput(quiet.note, clock)
    pace.begin()
    pace.step(1000, 1.0)
    pace.end(1.0)
    assert quiet.notes == [(1.0, None)]


def test_every_epoch_ends_in_a_note(tmp_path: Path) -> None:
    quiet = Quiet()
    train(ready(tmp_path, config(train={"epochs": 3}), n=8), quiet)
    assert {1, 2, 3} <= {epoch for epoch, _ in quiet.notes}


def test_encoders_by_name() -> None:
    assert encoder_title(config(encoder={"name": "/data/models/mine"})) == "mine"
    two = config("joint", encoder={"name": "a/b"}, evidence_encoder={"name": "tiny"})
    assert encoder_title(two) == "a/b + tiny"
