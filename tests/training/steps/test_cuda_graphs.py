"""CUDA graph executor with `EagerBackend` in place of graphs: its batches and shapes, and that it
trains as the eager executor does."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from supermax.errors import Infeasible
from supermax.training.data.tokens import NONE
from supermax.training.loop import train
from supermax.training.prepare import Prepared, prepare
from supermax.training.steps.batches import collate, order
from supermax.training.steps.capturable_step import CAPTURABLE_OPTIMIZERS
from supermax.training.steps.cuda_graphs import CudaGraphExecutor
from supermax.training.steps.epoch_schedule import (
    choose_sizes,
    schedule_epoch,
    smallest_fitting,
)
from supermax.training.steps.execution import Execution, why_eager
from supermax.training.steps.executors import EagerExecutor
from supermax.training.steps.gpu_dataset import NO_ROW, GpuDataset
from supermax.training.steps.graph_capture import Work
from supermax.training.steps.step import loss_denominators
from tests.few import a_few, quick_are
from tests.training.corpora import Quiet, Stopped, config, corpus, ready
from tests.training.draws import drawn
from tests.training.eager_backend import EagerBackend

SILENT: dict[str, Any] = {
    "encoder": {"dropout": 0.0, "attention_dropout": 0.0},
    "head": {"dropout": 0.0},
}
AGENTS = [
    "criteria",
    "evidence",
    "share",
    "joint",
    "regression",
    "multilabel",
    "token-classification",
]
OPTIMIZERS = list(CAPTURABLE_OPTIMIZERS)
FEW = (("criteria", 0),)
"""Configurations that are tested: all of them would take a minute."""


def captured_steps(prepared: Prepared, backend: Any = None) -> Prepared:
    eager = EagerExecutor(prepared.step, prepared.train, prepared.pads)
    return replace(prepared, executor=CudaGraphExecutor(eager, backend or EagerBackend()))


@pytest.mark.parametrize("agent", AGENTS)
def test_gpu_batches_equal_collated_batches(tmp_path: Path, agent: str) -> None:
    prepared = ready(tmp_path, config(agent=agent, **SILENT))
    data = prepared.train
    dataset = GpuDataset(data, prepared.pads, "cpu")
    rows = np.array([3, 0, 7, 5])
    theirs = collate(data.views, prepared.pads, rows)
    widths = tuple(one.ids.shape[1] + 3 for one in theirs.inputs)
    ours = dataset.batch(torch.tensor([*rows, NO_ROW]), widths)
    for one, other, length in zip(ours.inputs, theirs.inputs, widths, strict=True):
        assert one.ids.shape == (5, length)
        for mine, its in ((one.ids, other.ids), (one.mask, other.mask), (one.types, other.types)):
            assert torch.equal(mine[:4, :-3], its)
        assert not one.mask[:4, -3:].any()
    for mine, its in ((ours.labels, theirs.labels), (ours.starts, theirs.starts)):
        own = mine[:, :-3] if agent == "token-classification" and mine.ndim == 2 else mine
        assert torch.equal(own[:4], its)
        assert mine[4].isnan().all() if mine.is_floating_point() else (mine[4] == NONE).all()
    assert ours.ends[4] == NONE
    if agent == "token-classification":
        assert ours.labels.shape == (5, widths[0])
        assert (ours.labels[:, -3:] == NONE).all()


@pytest.mark.parametrize("balance", ["none", "weighted"])
@pytest.mark.parametrize("size", [1, 3, 8])
def test_epoch_schedule_covers_every_batch(tmp_path: Path, balance: str, size: int) -> None:
    wanted = config(agent="share", loss={"balance": balance}, train={"effective_batch": 8})
    prepared = ready(tmp_path, wanted, n=29)
    data = prepared.train
    batches = order(data.lengths, 8, 1, 0)
    weights = None if prepared.step.weights is None else prepared.step.weights.numpy()
    table = schedule_epoch(batches, data, size, weights, [32])
    padded = schedule_epoch(batches, data, size, weights, [None])
    assert len(table.first) == len(batches) + 1
    for i, batch in enumerate(batches):
        micros = slice(table.first[i], table.first[i + 1])
        inside = table.rows[micros].ravel()
        assert inside[inside != NO_ROW].tolist() == data.rows(batch).tolist()
        denominators = loss_denominators(*data.targets(batch), prepared.step.weights)
        for row in table.denominators[micros]:
            assert row[0] == pytest.approx(float(denominators.classes), rel=1e-6)
            assert row[1] == pytest.approx(float(denominators.spans), rel=1e-6)
        for rows, needed in zip(padded.rows[micros], padded.needed[micros], strict=True):
            for view, length in zip(data.views, needed, strict=True):
                assert length == max(view.lengths[row] for row in rows if row != NO_ROW)
        for rows, starts, needed in zip(
            table.rows[micros], table.starts[micros, 0], table.needed[micros, 0], strict=True
        ):
            assert ((starts == NO_ROW) == (rows == NO_ROW)).all()
            real = rows != NO_ROW
            ends = starts[real] + data.views[0].lengths[rows[real]]
            assert ends.max() <= 32 * needed
            assert needed <= max(2, size)


needs = st.dictionaries(st.integers(1, 40).map(lambda n: 8 * n), st.integers(0, 200), min_size=1)


@settings(max_examples=60, deadline=None)
@given(needs, st.floats(0, 1e-2), st.floats(0, 1))
def test_chosen_sizes_are_optimal_and_large_enough(
    needed: dict[int, int], each: float, capture: float
) -> None:
    def cost(widths: list[int]) -> float:
        padded = sum(n * each * smallest_fitting(length, widths) for length, n in needed.items())
        return padded + capture * len(widths)

    found = choose_sizes(needed, lambda length: each * length, capture)
    assert found == sorted(set(found))
    assert found[-1] == max(needed)
    others = sorted(needed)[:-1][:6]
    for n in range(len(others) + 1):
        for some in combinations(others, n):
            assert cost(found) <= cost([*some, max(needed)]) + 1e-9


class Kinds(EagerBackend):
    """Backend that remembers the kinds of captures."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: set[str] = set()

    def capture(self, run: Work, warm_up: Work, kind: str) -> Work:
        self.kinds.add(kind)
        return super().capture(run, warm_up, kind)


class Watching(EagerBackend):
    """Backend that calls a function before each capture."""

    def __init__(self, run_inference: Callable[[], None]) -> None:
        super().__init__()
        self._look = run_inference

    def capture(self, run: Work, warm_up: Work, kind: str) -> Work:
        self._look()
        return super().capture(run, warm_up, kind)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("micro_batch", quick_are([3], [None, 3]))
def test_optimizer_state_exists_before_capture(
    tmp_path: Path, optimizer: str, micro_batch: int | None
) -> None:
    """Created during capture, it would be reset in every replay."""
    there: list[set[torch.Tensor]] = []
    wanted = config(**SILENT, optim={"name": optimizer})
    prepared = ready(tmp_path, wanted, micro_batch=micro_batch)
    trained = {p for group in prepared.step.optimizer.param_groups for p in group["params"]}
    run_inference = Watching(lambda: there.append(set(prepared.step.optimizer.state)))
    train(captured_steps(prepared, run_inference), Quiet())
    assert len(there) > (micro_batch is not None)
    assert all(some == trained for some in there)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("micro_batch", quick_are([3], [None, 3]))
@pytest.mark.parametrize("some_had_it", quick_are([True], [False, True]))
def test_creating_optimizer_state_changes_nothing_else(
    tmp_path: Path, optimizer: str, micro_batch: int | None, some_had_it: bool
) -> None:
    wanted = config(**SILENT, optim={"name": optimizer, "weight_decay": 0.1})

    def begun() -> Prepared:
        """With a state for every other parameter, where some had it."""
        prepared = ready(tmp_path, wanted, micro_batch=micro_batch)
        for parameter in list(prepared.model.parameters())[::2] if some_had_it else ():
            parameter.grad = torch.full_like(parameter, 0.01)
        if some_had_it:
            prepared.step.optimizer.step()
            prepared.step.optimizer.zero_grad()
        return prepared

    def groups() -> list[dict[str, Any]]:
        plain = prepared.step.state()["optimizer"]["param_groups"]
        steps = [group.get("step") for group in prepared.step.optimizer.param_groups]
        return [{**group, "step": step} for group, step in zip(plain, steps, strict=True)]

    def run_inference() -> None:
        found = prepared.step.optimizer.state
        if looked:
            return
        assert groups() == groups_before
        for name, parameter in prepared.model.named_parameters():
            assert torch.equal(parameter, weights[name])
            for key, value in found[parameter].items():
                earlier = states.get(parameter, {}).get(key, torch.zeros_like(value))
                assert torch.equal(value, earlier)
        looked.append(True)

    looked: list[bool] = []
    prepared = begun()
    groups_before = groups()
    weights = {name: p.detach().clone() for name, p in prepared.model.named_parameters()}
    states = {
        parameter: {key: value.clone() for key, value in state.items()}
        for parameter, state in prepared.step.optimizer.state.items()
    }
    captured = train(captured_steps(prepared, Watching(run_inference)), Quiet())
    eager = train(begun(), Quiet())
    assert looked
    losses = [[row["train_loss"] for row in result.curve] for result in (eager, captured)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_rare_sizes_are_not_captured() -> None:
    assert choose_sizes(Counter({8: 1, 512: 1}), lambda length: 1e-6 * length, 0.3) == [512]
    assert choose_sizes(Counter({8: 9999, 512: 9}), lambda length: 1e-4 * length, 0.3) == [8, 512]


@pytest.mark.parametrize("agent", quick_are(["criteria", "share", "token-classification"], AGENTS))
@pytest.mark.parametrize("micro_batch", quick_are([3], [None, 3]))
def test_captured_steps_train_as_eager_steps(
    tmp_path: Path, agent: str, micro_batch: int | None
) -> None:
    wanted = config(agent=agent, **SILENT, train={"epochs": 2, "effective_batch": 8, "clip": 1.0})
    eager = train(ready(tmp_path, wanted, micro_batch=micro_batch), Quiet())
    prepared = captured_steps(ready(tmp_path, wanted, micro_batch=micro_batch))
    first = {name: weight.clone() for name, weight in prepared.model.state_dict().items()}
    captured = train(prepared, Quiet())
    assert prepared.executor.why_eager is None
    losses = [[row["train_loss"] for row in result.curve] for result in (eager, captured)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    # Where a gradient is all but 0, its rounding decides which way the optimizer steps.
    apart = distance(captured.weights, eager.weights)
    assert apart < 0.02 * distance(eager.weights, first)


@pytest.mark.parametrize("micro_batch", quick_are([3], [None, 3]))
@pytest.mark.parametrize("evidence_weight", [0.0, 1.0])
def test_parameters_without_gradient_are_not_updated(
    tmp_path: Path, micro_batch: int | None, evidence_weight: float
) -> None:
    """Not even weight decay changes them, eager or captured."""
    wanted = config(
        "share", **SILENT, loss={"evidence_weight": evidence_weight},
        optim={"lr": 1e-2, "weight_decay": 0.5}, train={"epochs": 1},
    )  # fmt: skip
    head = "span_head" if evidence_weight == 0 else "class_head"
    for executor in (lambda prepared: prepared, captured_steps):
        prepared = executor(ready(tmp_path, wanted, micro_batch=micro_batch))
        before = {k: v.clone() for k, v in prepared.model.state_dict().items() if head in k}
        train(prepared, Quiet())
        after = prepared.model.state_dict()
        assert before
        assert all(torch.equal(value, after[name]) for name, value in before.items())


def distance(here: dict[str, torch.Tensor], there: dict[str, torch.Tensor]) -> float:
    """Return the L2 distance of two sets of weights."""
    squares = [((here[name] - there[name]).double() ** 2).sum() for name in here]
    return float(sum(squares)) ** 0.5


@pytest.mark.parametrize(
    ("agent", "seed"),
    [
        pytest.param(agent, seed, marks=[] if (agent, seed) in FEW else [pytest.mark.slow])
        for agent in AGENTS
        for seed in range(9)
    ],
)
def test_sampled_configurations_train_the_same_when_captured(
    tmp_path: Path, agent: str, seed: int
) -> None:
    wanted, micro_batch = drawn(agent, seed), (None, 3)[seed % 2]
    eager = train(ready(tmp_path, wanted, micro_batch=micro_batch), Quiet())
    prepared = captured_steps(ready(tmp_path, wanted, micro_batch=micro_batch))
    captured = train(prepared, Quiet())
    assert prepared.executor.why_eager is None
    losses = [[row["train_loss"] for row in result.curve] for result in (eager, captured)]
    # Rounding grows: eager steps with one thread and with two differ by 1.1e-3 in one of these.
    assert losses[1] == pytest.approx(losses[0], rel=3e-3), wanted


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("schedule", quick_are(["one_cycle"], ["linear", "one_cycle"]))
@pytest.mark.parametrize("micro_batch", quick_are([3], [None, 3]))
def test_optimizers_and_schedules_train_the_same_when_captured(
    tmp_path: Path, optimizer: str, schedule: str, micro_batch: int | None
) -> None:
    wanted = config(**SILENT, optim={"name": optimizer}, schedule={"name": schedule})
    eager = train(ready(tmp_path, wanted, micro_batch=micro_batch), Quiet())
    prepared = captured_steps(ready(tmp_path, wanted, micro_batch=micro_batch))
    captured = train(prepared, Quiet())
    assert prepared.executor.why_eager is None
    losses = [[row["train_loss"] for row in result.curve] for result in (eager, captured)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("first", quick_are([True], [True, False]))
@pytest.mark.parametrize("stop_at", a_few([3, 6]))
def test_state_moves_between_eager_and_captured_steps(
    tmp_path: Path, optimizer: str, first: bool, stop_at: int
) -> None:
    wanted = config("evidence", **SILENT, optim={"name": optimizer})
    whole = train(ready(tmp_path, wanted), Quiet())
    folder = tmp_path / "state"
    folder.mkdir()
    executors = [ready(tmp_path, wanted), captured_steps(ready(tmp_path, wanted))]
    with pytest.raises(Stopped):
        train(executors[first], Quiet(stop_at), folder)
    rest = train(executors[not first], Quiet(), folder)
    losses = [[row["train_loss"] for row in result.curve] for result in (whole, rest)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.slow
def test_capture_time_does_not_count_as_training(tmp_path: Path) -> None:
    """Otherwise the planner would take the steps of a short trial for slow."""
    took = 0.4

    class Slow(EagerBackend):
        def capture(self, run: Work, warm_up: Work, kind: str) -> Work:
            time.sleep(took)
            return super().capture(run, warm_up, kind)

    wanted = config(**SILENT, train={"epochs": 9})
    prepared = captured_steps(ready(tmp_path, wanted, n=200), Slow())
    result = train(prepared, Quiet())
    samples = 9 * len(prepared.train.chosen)
    assert prepared.executor.capture_seconds >= took
    assert result.samples_per_second is not None
    assert samples / result.samples_per_second <= result.seconds - took


@pytest.mark.slow
@pytest.mark.usefixtures("same_bf16_everywhere")
def test_preparing_capture_does_not_count_as_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    took = 0.4
    monkeypatch.setattr(
        "supermax.training.steps.capturable_step.fused", lambda *_: time.sleep(took)
    )
    wanted = config(**SILENT, train={"epochs": 1})
    prepared = captured_steps(ready(tmp_path, wanted, precision="bf16"))
    train(prepared, Quiet())
    assert prepared.executor.capture_seconds >= took


def many_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supermax.training.steps.step_cost_model._CAPTURE", 0.0)
    monkeypatch.setattr("supermax.training.steps.epoch_schedule._ROUND", 1)


class Refuses(EagerBackend):
    """Backend whose captures fail from the given one on."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def capture(self, run: Work, warm_up: Work, kind: str) -> Work:
        if not self.left:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.left -= 1
        return super().capture(run, warm_up, kind)


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("micro_batch", quick_are([3], [None, 3]))
def test_failed_capture_falls_back_to_eager_with_a_reason(
    tmp_path: Path, after: int, micro_batch: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    many_widths(monkeypatch)
    wanted = config("evidence", **SILENT, train={"epochs": 2, "effective_batch": 4})
    eager = train(ready(tmp_path, wanted, micro_batch=micro_batch), Quiet())
    prepared = captured_steps(ready(tmp_path, wanted, micro_batch=micro_batch), Refuses(after))
    result = train(prepared, Quiet())
    assert "not permitted" in str(prepared.executor.why_eager)
    losses = [[row["train_loss"] for row in some.curve] for some in (eager, result)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("evaluated", quick_are([100], [1 << 14, 100]))
def test_captured_inference_equals_eager_inference(
    tmp_path: Path, agent: str, evaluated: int
) -> None:
    prepared = ready(tmp_path, config(agent, **SILENT), n=46, evaluated=evaluated)
    backend = Kinds()
    captured = captured_steps(prepared, backend)
    for _ in range(2):  # the same graphs read the new weights
        expected, found = prepared.evaluate(), captured.evaluate()
        # The correlation of nearly equal numbers enlarges their rounding errors.
        assert found.metrics == pytest.approx(
            expected.metrics, rel=1e-4 if found.numbers else None
        )
        assert found.numbers == pytest.approx(expected.numbers)
        assert found.spans == expected.spans
        assert found.margins == pytest.approx(expected.margins, abs=1e-4)
        for name, entities in expected.entities.items():
            own = found.entities[name]
            assert [e.entity for e in own] == [e.entity for e in entities]
            assert [e.score for e in own] == pytest.approx([e.score for e in entities], abs=1e-5)
        for name, some in expected.probabilities.items():
            assert found.probabilities[name] == pytest.approx(some, abs=1e-5)
        with torch.no_grad():
            for parameter in prepared.model.parameters():
                parameter += 0.01 * torch.randn_like(parameter)
    assert backend.kinds == {"inference"}


def test_nothing_to_learn_from_is_infeasible(tmp_path: Path) -> None:
    none = replace(corpus(8, 1), spans=tuple(replace(e, spans=()) for e in corpus(8, 1).spans))
    wanted = config("evidence", train={"negative_ratio": 0.0})
    with pytest.raises(Infeasible, match="nothing is left to learn from"):
        prepare(wanted, none, none, cache=tmp_path)


def test_a_single_evaluation_pass_is_not_captured(tmp_path: Path) -> None:
    backend = Kinds()
    prepared = captured_steps(ready(tmp_path, config(**SILENT)), backend)
    prepared.executor.run_inference(prepared.validation, passes=1)
    assert not backend.kinds


def test_failed_capture_of_inference_falls_back_to_eager(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class NoLooks(EagerBackend):
        def capture(self, run: Work, warm_up: Work, kind: str) -> Work:
            if kind == "inference":
                raise RuntimeError("operation not permitted when stream is capturing")
            return super().capture(run, warm_up, kind)

    wanted = config("share", **SILENT)
    expected = train(ready(tmp_path, wanted), Quiet())
    prepared = captured_steps(ready(tmp_path, wanted), NoLooks())
    found = train(prepared, Quiet())
    assert prepared.executor.why_eager is None
    assert found.metrics == pytest.approx(expected.metrics, abs=1e-3)
    said = capsys.readouterr().err
    assert said.count("Evaluation runs eagerly: it cannot be captured (operation not") == 1


def test_reasons_for_eager_steps_known_in_advance() -> None:
    half = Execution(device="cuda", precision="bf16")
    assert why_eager(half) is None
    assert "CPU" in str(why_eager(Execution()))
    assert "turned off" in str(why_eager(replace(half, captured=False)))
    assert "fp16" in str(why_eager(replace(half, precision="fp16")))
    assert "checkpointing" in str(why_eager(replace(half, checkpoint_activations=True)))
