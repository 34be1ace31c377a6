"""Probes stay within the memory of the trial that runs them, and are short."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from supermax.memory.estimate import need
from supermax.memory.facts import Spec
from supermax.memory.planner import Plan, plan
from supermax.memory.probes import LONGEST, STEPS, probes
from supermax.memory.speed import micro_seconds
from tests.memory.specs import BERT_LARGE, GIB, specs
from tests.memory.test_planner import budgets


@settings(max_examples=60, deadline=None)
@given(specs(), budgets)
def test_no_probe_needs_more_than_the_plan_nor_takes_long(spec: Spec, budget: int) -> None:
    found = plan(spec, budget)
    if not isinstance(found, Plan):
        return
    tried = probes(found)
    assert len(set(tried)) == len(tried) <= 3
    assert all(need(spec, split).total <= found.need.total for split in tried)
    assert sum(STEPS * micro_seconds(spec, split) for split in tried) <= LONGEST


def test_the_plan_itself_comes_first_then_what_might_be_faster() -> None:
    found = plan(Spec((BERT_LARGE,), effective_batch=32, length=256), 200 * GIB)
    assert isinstance(found, Plan)
    assert found.whole
    assert [(split.micro_batch, split.checkpointing) for split in probes(found)] == [
        (32, False),
        (32, True),
        (16, True),
    ]


def test_a_long_step_is_not_probed() -> None:
    huge = replace(BERT_LARGE, by_layer=(600_000_000,) * 24, matrices=600_000_000)
    found = plan(Spec((huge,), 512, 512), 20_000 * GIB)
    assert isinstance(found, Plan)
    assert found.split not in probes(found)


def test_nothing_is_probed_on_a_cpu() -> None:
    found = plan(Spec((BERT_LARGE,), 8, 64, device="cpu", precision="fp32"), 200 * GIB)
    assert isinstance(found, Plan)
    assert probes(found) == []
