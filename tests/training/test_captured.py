"""Recorded steps, with the work itself in place of a recording: what is fed to them, how wide
they are, and that they train as steps taken one by one do."""

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
from supermax.training.batches import collate, order
from supermax.training.captured import CapturedWay
from supermax.training.evaluate import evaluate
from supermax.training.loop import train
from supermax.training.prepare import Prepared, prepare
from supermax.training.recording import Unrecorded, Work
from supermax.training.resident import NOBODY, Resident
from supermax.training.steps import Execution, shares, why_eager
from supermax.training.timetable import chosen, timetable, widened
from supermax.training.tokens import NONE
from supermax.training.updates import RECORDED_OPTIMIZERS
from supermax.training.ways import EagerWay
from tests.few import a_few
from tests.training.corpora import Quiet, Stopped, config, corpus, ready
from tests.training.draws import drawn

SILENT: dict[str, Any] = {
    "encoder": {"dropout": 0.0, "attention_dropout": 0.0},
    "head": {"dropout": 0.0},
}
AGENTS = ["criteria", "evidence", "share", "joint"]
OPTIMIZERS = list(RECORDED_OPTIMIZERS)
FEW = (("criteria", 0), ("joint", 1))
"""Of what is drawn: the others take a minute."""


def captured(prepared: Prepared, recorder: Any = None) -> Prepared:
    eager = EagerWay(prepared.step, prepared.train, prepared.pads)
    return replace(prepared, way=CapturedWay(eager, recorder or Unrecorded()))


@pytest.mark.parametrize("agent", AGENTS)
def test_batches_are_put_together_as_on_the_host(tmp_path: Path, agent: str) -> None:
    prepared = ready(tmp_path, config(agent=agent, **SILENT))
    data = prepared.train
    resident = Resident(data, prepared.pads, "cpu")
    rows = np.array([3, 0, 7, 5])
    theirs = collate(data.views, prepared.pads, rows)
    widths = tuple(one.ids.shape[1] + 3 for one in theirs.inputs)
    ours = resident.batch(torch.tensor([*rows, NOBODY]), widths)
    for one, other, width in zip(ours.inputs, theirs.inputs, widths, strict=True):
        assert one.ids.shape == (5, width)
        for mine, its in ((one.ids, other.ids), (one.mask, other.mask), (one.types, other.types)):
            assert torch.equal(mine[:4, :-3], its)
        assert not one.mask[:4, -3:].any()
    for mine, its in ((ours.labels, theirs.labels), (ours.starts, theirs.starts)):
        assert torch.equal(mine[:4], its)
        assert mine[4] == NONE
    assert ours.ends[4] == NONE


@pytest.mark.parametrize("balance", ["none", "weighted"])
@pytest.mark.parametrize("size", [1, 3, 8])
def test_an_epoch_is_laid_out_whole(tmp_path: Path, balance: str, size: int) -> None:
    wanted = config(agent="share", loss={"balance": balance}, train={"effective_batch": 8})
    prepared = ready(tmp_path, wanted, n=29)
    data = prepared.train
    batches = order(data.lengths, 8, 1, 0)
    weights = None if prepared.weights is None else prepared.weights.numpy()
    table = timetable(batches, data, size, weights, [32])
    padded = timetable(batches, data, size, weights, [None])
    assert len(table.first) == len(batches) + 1
    for i, batch in enumerate(batches):
        micros = slice(table.first[i], table.first[i + 1])
        inside = table.rows[micros].ravel()
        assert inside[inside != NOBODY].tolist() == data.rows(batch).tolist()
        share = shares(*data.targets(batch), prepared.weights)
        for row in table.shares[micros]:
            assert row[0] == pytest.approx(float(share.classes), rel=1e-6)
            assert row[1] == pytest.approx(float(share.spans), rel=1e-6)
        for rows, needed in zip(padded.rows[micros], padded.needed[micros], strict=True):
            for view, width in zip(data.views, needed, strict=True):
                assert width == max(view.lengths[row] for row in rows if row != NOBODY)
        for rows, starts, needed in zip(
            table.rows[micros], table.starts[micros, 0], table.needed[micros, 0], strict=True
        ):
            assert ((starts == NOBODY) == (rows == NOBODY)).all()
            real = rows != NOBODY
            ends = starts[real] + data.views[0].lengths[rows[real]]
            assert ends.max() <= 32 * needed
            assert needed <= max(2, size)


needs = st.dictionaries(st.integers(1, 40).map(lambda n: 8 * n), st.integers(0, 200), min_size=1)


@settings(max_examples=60, deadline=None)
@given(needs, st.floats(0, 1e-2), st.floats(0, 1))
def test_few_widths_are_recorded_and_none_is_too_narrow(
    needed: dict[int, int], each: float, recording: float
) -> None:
    def cost(widths: list[int]) -> float:
        padded = sum(n * each * widened(width, widths) for width, n in needed.items())
        return padded + recording * len(widths)

    found = chosen(needed, lambda width: each * width, recording)
    assert found == sorted(set(found))
    assert found[-1] == max(needed)
    others = sorted(needed)[:-1][:6]
    for n in range(len(others) + 1):
        for some in combinations(others, n):
            assert cost(found) <= cost([*some, max(needed)]) + 1e-9


class Kinds(Unrecorded):
    """Says what was recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: set[str] = set()

    def record(self, run: Work, rehearse: Work, kind: str) -> Work:
        self.kinds.add(kind)
        return super().record(run, rehearse, kind)


class Watching(Unrecorded):
    """Looks before anything is recorded."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__()
        self._look = look

    def record(self, run: Work, rehearse: Work, kind: str) -> Work:
        self._look()
        return super().record(run, rehearse, kind)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("micro_batch", [None, 3])
def test_a_recording_never_makes_the_optimizer_s_state(
    tmp_path: Path, optimizer: str, micro_batch: int | None
) -> None:
    """Replayed, it would begin anew with every update."""
    there: list[set[torch.Tensor]] = []
    wanted = config(**SILENT, optim={"name": optimizer})
    prepared = ready(tmp_path, wanted, micro_batch=micro_batch)
    trained = {p for group in prepared.step.optimizer.param_groups for p in group["params"]}
    look = Watching(lambda: there.append(set(prepared.step.optimizer.state)))
    train(captured(prepared, look), Quiet())
    assert len(there) > (micro_batch is not None)
    assert all(some == trained for some in there)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("micro_batch", [None, 3])
@pytest.mark.parametrize("some_had_it", [False, True])
def test_making_the_optimizer_s_state_changes_nothing_else(
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

    def look() -> None:
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
    recorded = train(captured(prepared, Watching(look)), Quiet())
    one_by_one = train(begun(), Quiet())
    assert looked
    losses = [[row["train_loss"] for row in result.curve] for result in (one_by_one, recorded)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_what_is_never_reached_again_is_not_recorded() -> None:
    assert chosen(Counter({8: 1, 512: 1}), lambda width: 1e-6 * width, 0.3) == [512]
    assert chosen(Counter({8: 9999, 512: 9}), lambda width: 1e-4 * width, 0.3) == [8, 512]


@pytest.mark.parametrize("agent", a_few(AGENTS, 2))
@pytest.mark.parametrize("micro_batch", [None, 3])
def test_recorded_steps_train_as_those_taken_one_by_one(
    tmp_path: Path, agent: str, micro_batch: int | None
) -> None:
    wanted = config(agent=agent, **SILENT, train={"epochs": 2, "effective_batch": 8, "clip": 1.0})
    one_by_one = train(ready(tmp_path, wanted, micro_batch=micro_batch), Quiet())
    prepared = captured(ready(tmp_path, wanted, micro_batch=micro_batch))
    first = {name: weight.clone() for name, weight in prepared.model.state_dict().items()}
    recorded = train(prepared, Quiet())
    assert prepared.way.why_eager is None
    losses = [[row["train_loss"] for row in result.curve] for result in (one_by_one, recorded)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    # Where a gradient is all but 0, its rounding decides which way the optimizer steps.
    apart = distance(recorded.weights, one_by_one.weights)
    assert apart < 0.02 * distance(one_by_one.weights, first)


@pytest.mark.parametrize("micro_batch", [None, 3])
@pytest.mark.parametrize("evidence_weight", [0.0, 1.0])
def test_what_the_loss_does_not_reach_stays_as_it_is(
    tmp_path: Path, micro_batch: int | None, evidence_weight: float
) -> None:
    """Not even the decay of weights touches it, in whatever way steps are taken."""
    wanted = config(
        "share", **SILENT, loss={"evidence_weight": evidence_weight},
        optim={"lr": 1e-2, "weight_decay": 0.5}, train={"epochs": 1},
    )  # fmt: skip
    head = "span_head" if evidence_weight == 0 else "class_head"
    for way in (lambda prepared: prepared, captured):
        prepared = way(ready(tmp_path, wanted, micro_batch=micro_batch))
        before = {k: v.clone() for k, v in prepared.model.state_dict().items() if head in k}
        train(prepared, Quiet())
        after = prepared.model.state_dict()
        assert before
        assert all(torch.equal(value, after[name]) for name, value in before.items())


def distance(here: dict[str, torch.Tensor], there: dict[str, torch.Tensor]) -> float:
    """Between the weights of a model at two moments."""
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
def test_whatever_a_space_comes_to_is_recorded_and_trains_the_same(
    tmp_path: Path, agent: str, seed: int
) -> None:
    wanted, micro_batch = drawn(agent, seed), (None, 3)[seed % 2]
    one_by_one = train(ready(tmp_path, wanted, micro_batch=micro_batch), Quiet())
    prepared = captured(ready(tmp_path, wanted, micro_batch=micro_batch))
    recorded = train(prepared, Quiet())
    assert prepared.way.why_eager is None
    losses = [[row["train_loss"] for row in result.curve] for result in (one_by_one, recorded)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3), wanted


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("schedule", ["linear", "one_cycle"])
@pytest.mark.parametrize("micro_batch", [None, 3])
def test_every_optimizer_and_its_rate_are_followed(
    tmp_path: Path, optimizer: str, schedule: str, micro_batch: int | None
) -> None:
    wanted = config(**SILENT, optim={"name": optimizer}, schedule={"name": schedule})
    one_by_one = train(ready(tmp_path, wanted, micro_batch=micro_batch), Quiet())
    prepared = captured(ready(tmp_path, wanted, micro_batch=micro_batch))
    recorded = train(prepared, Quiet())
    assert prepared.way.why_eager is None
    losses = [[row["train_loss"] for row in result.curve] for result in (one_by_one, recorded)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("stop_at", a_few([3, 6]))
def test_a_state_goes_on_either_way(
    tmp_path: Path, optimizer: str, first: bool, stop_at: int
) -> None:
    wanted = config("evidence", **SILENT, optim={"name": optimizer})
    whole = train(ready(tmp_path, wanted), Quiet())
    folder = tmp_path / "state"
    folder.mkdir()
    ways = [ready(tmp_path, wanted), captured(ready(tmp_path, wanted))]
    with pytest.raises(Stopped):
        train(ways[first], Quiet(stop_at), folder)
    rest = train(ways[not first], Quiet(), folder)
    losses = [[row["train_loss"] for row in result.curve] for result in (whole, rest)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_recording_does_not_count_as_training(tmp_path: Path) -> None:
    """The planner would take a short trial's steps for slow ones."""
    took = 0.4

    class Slow(Unrecorded):
        def record(self, run: Work, rehearse: Work, kind: str) -> Work:
            time.sleep(took)
            return super().record(run, rehearse, kind)

    prepared = captured(ready(tmp_path, config(**SILENT, train={"epochs": 9}), n=200), Slow())
    result = train(prepared, Quiet())
    samples = 9 * len(prepared.train.chosen)
    assert prepared.way.getting_ready >= took
    assert result.samples_per_second is not None
    assert samples / result.samples_per_second <= result.seconds - took


@pytest.mark.usefixtures("same_bf16_everywhere")
def test_nor_does_what_comes_before_a_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    took = 0.4
    monkeypatch.setattr("supermax.training.updates.fused", lambda *_: time.sleep(took))
    prepared = captured(ready(tmp_path, config(**SILENT, train={"epochs": 1}), precision="bf16"))
    train(prepared, Quiet())
    assert prepared.way.getting_ready >= took


def many_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supermax.training.costs._RECORDING", 0.0)
    monkeypatch.setattr("supermax.training.timetable._ROUND", 1)


class Refuses(Unrecorded):
    """Records nothing from the given call on."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def record(self, run: Work, rehearse: Work, kind: str) -> Work:
        if not self.left:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.left -= 1
        return super().record(run, rehearse, kind)


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("micro_batch", [None, 3])
def test_what_cannot_be_recorded_is_done_one_by_one_and_said(
    tmp_path: Path, after: int, micro_batch: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    many_widths(monkeypatch)
    wanted = config("evidence", **SILENT, train={"epochs": 2, "effective_batch": 4})
    one_by_one = train(ready(tmp_path, wanted, micro_batch=micro_batch), Quiet())
    prepared = captured(ready(tmp_path, wanted, micro_batch=micro_batch), Refuses(after))
    result = train(prepared, Quiet())
    assert "not permitted" in str(prepared.way.why_eager)
    losses = [[row["train_loss"] for row in some.curve] for some in (one_by_one, result)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("evaluated", [1 << 14, 100])
def test_a_split_is_looked_at_as_one_by_one(tmp_path: Path, agent: str, evaluated: int) -> None:
    prepared = ready(tmp_path, config(agent, **SILENT), n=46, evaluated=evaluated)
    recorder = Kinds()
    recorded = captured(prepared, recorder)
    for _ in range(2):  # with other weights the same recordings see others
        expected, found = evaluate(prepared), evaluate(recorded)
        assert found.metrics == pytest.approx(expected.metrics)
        assert found.spans == expected.spans
        assert found.margins == pytest.approx(expected.margins, abs=1e-4)
        for name, some in expected.probabilities.items():
            assert found.probabilities[name] == pytest.approx(some, abs=1e-5)
        with torch.no_grad():
            for parameter in prepared.model.parameters():
                parameter += 0.01 * torch.randn_like(parameter)
    assert recorder.kinds == {"look"}


def test_nothing_to_learn_from_is_infeasible(tmp_path: Path) -> None:
    none = replace(corpus(8, 1), spans=tuple(replace(e, spans=()) for e in corpus(8, 1).spans))
    wanted = config("evidence", train={"negative_ratio": 0.0})
    with pytest.raises(Infeasible, match="nothing is left to learn from"):
        prepare(wanted, none, none, cache=tmp_path)


def test_what_is_looked_at_once_is_not_recorded(tmp_path: Path) -> None:
    recorder = Kinds()
    prepared = captured(ready(tmp_path, config(**SILENT)), recorder)
    evaluate(prepared, prepared.validation)
    assert not recorder.kinds


def test_looks_that_cannot_be_recorded_are_taken_one_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class NoLooks(Unrecorded):
        def record(self, run: Work, rehearse: Work, kind: str) -> Work:
            if kind == "look":
                raise RuntimeError("operation not permitted when stream is capturing")
            return super().record(run, rehearse, kind)

    wanted = config("share", **SILENT)
    expected = train(ready(tmp_path, wanted), Quiet())
    prepared = captured(ready(tmp_path, wanted), NoLooks())
    found = train(prepared, Quiet())
    assert prepared.way.why_eager is None
    assert found.metrics == pytest.approx(expected.metrics, abs=1e-3)
    said = capsys.readouterr().err
    assert said.count("Evaluation cannot be recorded: operation not") == 1


def test_a_reason_is_given_before_anything_is_tried() -> None:
    half = Execution(device="cuda", precision="bf16")
    assert why_eager(half) is None
    assert "CPU" in str(why_eager(Execution()))
    assert "asked" in str(why_eager(replace(half, captured=False)))
    assert "fp16" in str(why_eager(replace(half, precision="fp16")))
    assert "again" in str(why_eager(replace(half, checkpoint_activations=True)))
