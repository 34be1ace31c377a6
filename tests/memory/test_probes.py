"""Probes stay within the memory of the trial that runs them, and are short."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from supermax.memory.estimate import Correction, need
from supermax.memory.facts import Spec
from supermax.memory.measurements import Known
from supermax.memory.planner import Plan, plan
from supermax.memory.probes import MAX_SECONDS, STEPS, probes
from supermax.memory.speed import StepSpeed, micro_seconds
from tests.memory.specs import BERT_LARGE, GIB, specs
from tests.memory.test_planner import budgets


@settings(max_examples=60, deadline=None)
@given(specs(), budgets, st.floats(0.25, 4.0), st.integers(0, 3))
def test_no_probe_needs_more_than_the_plan_nor_takes_long(
    spec: Spec, budget: int, scale: float, measurements: int
) -> None:
    correction = Correction(scale, worst=scale) if measurements else Correction()
    found = plan(spec, budget, correction=correction)
    if not isinstance(found, Plan):
        return
    tried = probes(found, Known(correction, measurements=measurements))
    assert len(set(tried)) == len(tried) <= 2
    assert all(need(spec, split, correction).total <= found.need.total for split in tried)
    assert sum(STEPS * micro_seconds(spec, split) for split in tried) <= MAX_SECONDS


def tried(gib: int, known: Known) -> list[tuple[int, bool]]:
    found = plan(Spec((BERT_LARGE,), effective_batch=192, length=480), gib * GIB)
    assert isinstance(found, Plan)
    return [(split.micro_batch, split.checkpointing) for split in probes(found, known)]


def test_a_whole_batch_is_the_only_probe() -> None:
    assert tried(200, Known()) == [(192, False)]
    assert tried(200, Known(measurements=1)) == []


def test_a_split_batch_is_probed_with_and_without_checkpointing_until_measured() -> None:
    for gib in (12, 20):
        (size, way), (other, another) = tried(gib, Known())
        assert another is not way
        assert (other > size) is another  # activations that are not kept leave room for more
        one_way = (StepSpeed(size * 480, way, 0.1),)
        assert tried(gib, Known(speeds=one_way, measurements=1)) == [(other, another)]
        both = (*one_way, StepSpeed(other * 480, another, 0.2))
        assert tried(gib, Known(speeds=both, measurements=2)) == []


def test_a_long_step_is_not_probed() -> None:
    huge = replace(BERT_LARGE, by_layer=(600_000_000,) * 24, matrices=600_000_000)
    found = plan(Spec((huge,), 512, 512), 20_000 * GIB)
    assert isinstance(found, Plan)
    assert found.split not in probes(found, Known())


def test_nothing_is_probed_on_a_cpu() -> None:
    found = plan(Spec((BERT_LARGE,), 8, 64, device="cpu", precision="fp32"), 200 * GIB)
    assert isinstance(found, Plan)
    assert probes(found, Known()) == []
