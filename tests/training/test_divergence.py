"""Epochs without a finite value: none is the best if another epoch has a value."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from supermax.training.checkpoint import Saver
from supermax.training.loop import Result, train
from supermax.training.prepare import Prepared
from tests.training.corpora import Quiet, Stopped, config, ready

NAN = math.nan


def scripted(monkeypatch: pytest.MonkeyPatch, values: list[float], seen: list[Any]) -> None:
    """Patch evaluations to return these values; `seen` collects the weights they evaluated."""
    real = Prepared.evaluate
    script = iter(values)

    def scored(prepared: Any) -> Any:
        result = real(prepared)
        seen.append({k: v.clone() for k, v in prepared.model.state_dict().items()})
        value = next(script, values[-1])
        return type(result)({**result.metrics, "macro_f1": value}, {}, {})

    monkeypatch.setattr(Prepared, "evaluate", scored)


def trained(
    folder: Path, monkeypatch: pytest.MonkeyPatch, values: list[float], **limits: Any
) -> tuple[Result, list[Any]]:
    seen: list[Any] = []
    with monkeypatch.context() as patch:
        scripted(patch, values, seen)
        wanted = config(train={"epochs": len(values), **limits})
        return train(ready(folder, wanted, n=8), Quiet()), seen


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("values", "best"),
    [([NAN, 0.5, 0.4], 2), ([NAN, NAN, 0.1], 3), ([0.5, NAN, 0.4], 1), ([NAN, -0.5, NAN], 2)],
)
def test_the_best_epoch_has_a_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: list[float], best: int
) -> None:
    result, seen = trained(tmp_path, monkeypatch, values)
    assert result.best_epoch == best
    assert result.value == values[best - 1]
    assert equal(result.weights, seen[best - 1])


def test_without_any_value_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, seen = trained(tmp_path, monkeypatch, [NAN] * 3)
    assert math.isnan(result.value)  # which the engine calls diverged
    assert (result.best_epoch, result.epochs) == (0, 3)
    assert equal(result.weights, seen[2])


@pytest.mark.parametrize(
    ("values", "patience", "epochs"),
    [
        ([NAN, 0.5, 0.4, 0.9], 1, 3),  # the first epoch is not worse than any
        ([0.5, NAN, NAN, 0.9], 2, 3),
        ([NAN, NAN, NAN, 0.9], 2, 3),  # what never has a value does not go on for ever
        ([0.5, NAN, 0.6, NAN, 0.7], 2, 5),
    ],
)
def test_an_epoch_without_a_value_takes_patience(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    values: list[float],
    patience: int,
    epochs: int,
) -> None:
    assert trained(tmp_path, monkeypatch, values, patience=patience)[0].epochs == epochs


VALUES = [NAN, NAN, 0.5, 0.4]


def stopped_after_two(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Saver:
    """Return the checkpoint of a training whose first two epochs had no finite value."""

    class Stopping(Quiet):
        stop_requested = False

        def report(self, value: float, epoch: int) -> None:
            if epoch == 2:
                self.stop_requested = True
                raise Stopped

    with monkeypatch.context() as patch:
        scripted(patch, VALUES, [])
        with pytest.raises(Stopped):
            train(ready(folder, config(train={"epochs": 4}), n=8), Stopping(), folder)
    return Saver(folder)


@pytest.mark.parametrize("old", [False, True])
def test_a_resumed_training_forgets_a_best_epoch_without_a_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bool
) -> None:
    whole, _ = trained(tmp_path, monkeypatch, VALUES)
    saver = stopped_after_two(tmp_path, monkeypatch)
    if old:  # as earlier versions wrote it: the first epoch is the best whatever its value
        state = saver.load()
        assert state is not None
        state["loop"] |= {"best": NAN, "best_epoch": 0, "worse": 1}
        state["best"] = {k: torch.full_like(v, 3) for k, v in state["model"].items()}
        saver.save(state)
        saver.wait()
    with monkeypatch.context() as patch:
        scripted(patch, VALUES[2:], [])
        rest = train(ready(tmp_path, config(train={"epochs": 4}), n=8), Quiet(), tmp_path)
    assert (rest.best_epoch, rest.value) == (3, 0.5)
    assert equal(rest.weights, whole.weights)


def test_a_training_resumed_after_its_last_epoch_still_has_no_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = stopped_after_two(tmp_path, monkeypatch)
    state = saver.load()
    assert state is not None
    state["loop"]["epoch"] = 4
    saver.save(state)
    saver.wait()
    with monkeypatch.context() as patch:
        scripted(patch, [NAN], [])
        result = train(ready(tmp_path, config(train={"epochs": 4}), n=8), Quiet(), tmp_path)
    assert math.isnan(result.value)
    assert equal(result.weights, state["model"])


@pytest.mark.parametrize("agent", ["criteria", "evidence", "share"])
def test_weights_that_are_no_numbers_have_no_value(tmp_path: Path, agent: str) -> None:
    """A real divergence: the learning rate makes all weights NaN."""
    objective = {"evidence": "token_f1"}.get(agent, "macro_f1")
    prepared = ready(tmp_path, config(agent, optim={"lr": 1e38}, train={"clip": None}), n=12)
    result = train(prepared, Quiet())
    assert any(not weight.isfinite().all() for weight in result.weights.values())
    assert math.isnan(result.metrics[objective])
    assert all(math.isnan(value) for value in result.metrics.values())
    assert result.best_epoch == 0
