"""Recorded fine-tuning curves as tables: the surrogate, and the split by task."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks import toy  # noqa: F401, sets the path

import families  # isort: skip
import trainings  # isort: skip
import tweeteval  # isort: skip
from measure import half_of, tasks_of  # isort: skip
from surrogates import GaussianProcess, NearestNeighbour  # isort: skip
from trainings import EPOCHS, RECORDING, SPACE, Item, Line, configurations, read_lines  # isort: skip


def test_configurations_are_those_of_the_recording() -> None:
    found = configurations()
    assert len(found) == trainings.CONFIGURATIONS
    assert found[1]["optim.lr"] == pytest.approx(2.786859e-4, rel=1e-5)
    assert found[239]["optim.layer_decay"] == pytest.approx(0.8780807, rel=1e-5)
    assert found[239]["head.pooling"] == "mean"
    points = tweeteval.points_of(found)
    assert points.shape == (240, len(SPACE))
    assert points.min() >= 0
    assert points.max() <= 1


def test_the_recording_has_all_trainings_of_nine_epochs() -> None:
    lines = read_lines(RECORDING)
    assert len(lines) == 4694
    assert {item.task for item in lines} == set(trainings.TASKS)
    for name in tweeteval.names():
        data = tweeteval.recorded(lines, name)
        assert data.losses.shape == (240 + 2 * trainings.WITH_SEEDS, EPOCHS)
        assert set(data.configurations) == set(range(240))


def test_a_half_holds_both_encoders_of_a_task() -> None:
    names = families.names(families.Sources(tweeteval=RECORDING))
    tuning = set(tasks_of("tuning", names, reason=None, log=Path()))
    assert 0 < len(tuning) < len(names) == 12
    for name in names:
        other = name.replace("whole", "half") if "whole" in name else name.replace("half", "whole")
        assert half_of(name) == half_of(other)
        assert (name in tuning) == (other in tuning)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Return a recording whose loss grows with the distance of the learning rate from the middle
    of its range. The best configuration has two more seeds; the highest rate diverged."""
    points, rng = tweeteval.points_of(configurations()[:80]), np.random.default_rng(0)
    best, highest = int(np.abs(points[:, 0] - 0.5).argmin()), int(points[:, 0].argmax())
    trained = [(i, 1) for i in range(len(points))] + [(best, 2), (best, 3)]
    lines = []
    for number, seed in trained:
        final = 0.8 - 2 * (points[number, 0] - 0.5) ** 2 + rng.normal(0, 0.005)
        scores = (final * (1 - 0.5 ** np.arange(1, 10))).tolist()
        lines.append(Line(Item("irony", "half", number, EPOCHS, seed), scores, scores, 1.0))
    lines[highest].validation[-1] = float("nan")
    file = tmp_path / "curves.jsonl.gz"
    text = "".join(json.dumps(asdict(line)) + "\n" for line in lines)
    file.write_bytes(gzip.compress(text.encode()))
    return file


def test_table_of_a_recording(recording: Path) -> None:
    table = families.read("tweeteval-irony-half", families.Sources(tweeteval=recording))
    middle = {**table.defaults, "optim.lr": (1e-5 * 5e-4) ** 0.5}
    curve = table.curve(middle)
    assert curve.shape == (EPOCHS,)
    assert curve[-1] == pytest.approx(0.2, abs=0.02)
    assert table.regret(float(curve.min())) == pytest.approx(0, abs=0.1)
    end = table.curve({**table.defaults, "optim.lr": 1e-5})
    assert end.min() == pytest.approx(0.7, abs=0.05)
    assert table.regret(float(end.min())) > 1.5
    assert table.median == pytest.approx(0.2 + 2 * 0.25**2, abs=0.03)
    data = tweeteval.recorded(read_lines(recording), "irony-half")
    assert data.losses[data.points[:, 0].argmax(), -1] == data.losses.max() == 1


def test_predictions_of_left_out_configurations(recording: Path) -> None:
    """The closed form equals a process with the same length scales without the configuration."""
    data = tweeteval.recorded(read_lines(recording), "irony-half")
    points, losses = data.points[:40], data.losses[:40]
    points, losses = np.vstack([points, points[:1]]), np.vstack([losses, losses[:1] + 0.01])
    process = GaussianProcess(points, losses)
    rest = np.arange(1, 40)
    kernel = process._process.kernel_
    cross = kernel(points[:1], points[rest])
    expected = cross @ np.linalg.solve(kernel(points[rest]), process._warped[rest])
    expected = process._ranks.inverse_transform(expected)
    assert np.allclose(process.left_out()[0], expected, atol=1e-4)
    assert np.allclose(process.left_out()[40], expected, atol=1e-4)
    nearest = NearestNeighbour(points, losses)
    distances = ((points[1:40] - points[0]) ** 2).sum(1)
    assert np.allclose(nearest.left_out()[0], losses[1 + distances.argmin()])
    assert np.allclose(nearest.predict(points[:1])[0], losses[[0, 40]].mean(0))
