"""Plans: they keep the effective batch, fit the budget, and get no worse with more memory."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from supermax.engine.jobs.policy import MOST_REPLANS
from supermax.memory.estimate import CONTEXT, need
from supermax.memory.facts import Spec
from supermax.memory.planner import Failed, NoPlan, Plan, plan, smallest_budget, split_into, splits
from supermax.memory.speed import StepSpeed
from supermax.tasks.fits import share
from supermax.tasks.trial_plan import failed_of, trial_plan
from tests.memory.specs import BERT_LARGE, GIB, MIB, specs

budgets = st.integers(1, 200_000).map(lambda mib: mib * MIB)
LARGE = Spec((BERT_LARGE,), effective_batch=192, length=480)
paces = st.lists(
    st.builds(StepSpeed, st.integers(1, 100_000), st.booleans(), st.floats(1e-4, 10.0)), max_size=6
)


@settings(max_examples=60, deadline=None)
@given(specs(), budgets)
def test_a_plan_fits_and_keeps_the_effective_batch(spec: Spec, budget: int) -> None:
    found = plan(spec, budget)
    if isinstance(found, NoPlan):
        assert all(need(spec, split).total > budget for split in splits(spec))
        assert isinstance(plan(spec, found.smallest), Plan)
        assert found.over > 0
        return
    assert found.need.total <= budget
    assert 1 <= found.split.micro_batch <= spec.effective_batch
    assert found.micro_batches * found.split.micro_batch >= spec.effective_batch
    assert (found.micro_batches - 1) * found.split.micro_batch < spec.effective_batch


@settings(max_examples=60, deadline=None)
@given(specs(), budgets, budgets, paces)
def test_more_memory_never_makes_a_plan_worse(
    spec: Spec, one: int, other: int, measured: list[StepSpeed]
) -> None:
    """For arbitrary measured step times."""
    less, more = (plan(spec, budget, measured=measured) for budget in sorted((one, other)))
    if isinstance(less, NoPlan):
        return
    assert isinstance(more, Plan)
    assert more.whole or more.seconds <= less.seconds + 2e-6  # they are held against in millionths
    if more.split.checkpointing == less.split.checkpointing:
        assert more.split.micro_batch >= less.split.micro_batch


@settings(max_examples=60, deadline=None)
@given(specs(), paces)
def test_a_batch_that_fits_whole_is_never_split(spec: Spec, measured: list[StepSpeed]) -> None:
    whole = need(spec, next(iter(splits(spec)))).total
    found = plan(spec, whole, measured=measured)
    assert isinstance(found, Plan)
    assert found.whole
    assert found.why == ""


@settings(max_examples=40, deadline=None)
@given(specs(), budgets, st.data())
def test_a_split_that_ran_out_of_memory_is_never_planned_again(
    spec: Spec, budget: int, data: st.DataObject
) -> None:
    failed: list[Failed] = []
    for _ in range(MOST_REPLANS):
        found = plan(spec, budget, failed=failed)
        if isinstance(found, NoPlan):
            assert found.over > 0
            if failed:  # the smallest split with nearly all of the memory
                last = min(failed, key=lambda f: (need(spec, f.split).total, -f.memory))
                context = CONTEXT["cpu" if spec.device == "cpu" else "cuda"]
                assert 1.25 * last.memory > budget - context
            return
        assert found.need.total <= budget
        now = Failed(found.split, found.need.reserved)
        assert now not in failed
        for before in failed:
            smaller = need(spec, now.split).total < need(spec, before.split).total
            assert smaller or now.memory >= int(1.25 * before.memory)
        failed.append(now)
    raise AssertionError("it does not end before the engine ends it")


def test_a_trial_that_always_runs_out_of_memory_ends_before_the_engine_ends_it() -> None:
    """A small encoder on a large machine: seven sizes of micro-batches, each of which could get
    four times its memory again and again."""
    encoder = replace(
        BERT_LARGE,
        family="deberta-v2",
        hidden=128,
        inner=256,
        heads=2,
        embeddings=3_840_000,
        by_layer=(132_224,) * 21,
        after=128,
        matrices=131_072,
        largest=3_712_000,
        span=512,
    )
    spec = Spec((encoder,), 192, 254, device="cpu", precision="fp32", dropout=False,
                attention_dropout=False)  # fmt: skip
    failed: list[Failed] = []
    while isinstance(found := plan(spec, 100_000 * MIB, failed=failed), Plan):
        failed.append(Failed(found.split, found.need.reserved))
        assert len(failed) < MOST_REPLANS - 5
    assert failed[-1].split.micro_batch == 1


def test_a_small_trial_gets_more_memory_instead_of_a_tiny_micro_batch() -> None:
    """Splitting would save little: most of its memory are weights and the margin."""
    small = Spec((BERT_LARGE,), effective_batch=16, length=32, device="cpu")
    first = plan(small, 64 * GIB)
    assert isinstance(first, Plan)
    second = plan(small, 64 * GIB, failed=[Failed(first.split, first.need.reserved)])
    assert isinstance(second, Plan)
    assert second.split == first.split
    assert second.need.reserved == 4 * first.need.reserved
    assert not second.why


@settings(max_examples=60, deadline=None)
@given(specs(), budgets)
def test_a_split_has_its_reason(spec: Spec, budget: int) -> None:
    found = plan(spec, budget)
    if isinstance(found, NoPlan):
        return
    whole = need(spec, next(iter(splits(spec)))).total
    assert bool(found.why) == (not found.whole)
    assert found.why.startswith("the whole batch would need") == (whole > budget)


@settings(max_examples=60, deadline=None)
@given(specs(), budgets)
def test_failed_splits_are_restored_from_the_ledger(spec: Spec, budget: int) -> None:
    for found in (plan(spec, budget), plan(spec, smallest_budget(spec))):
        if isinstance(found, Plan):
            assert failed_of(trial_plan(found)) == Failed(found.split, found.need.reserved)


def test_a_split_states_its_reason() -> None:
    split = plan(LARGE, 24 * GIB)
    assert isinstance(split, Plan)
    assert split.why == "the whole batch would need 103 GiB, and 24.0 GiB are available"
    whole = plan(LARGE, 200 * GIB)
    assert isinstance(whole, Plan)
    assert whole.why == ""
    close = plan(LARGE, whole.need.total - 1)
    assert isinstance(close, Plan)
    assert close.why == "the whole batch would need a little more, and 103 GiB are available"
    failed = [Failed(whole.split, whole.need.reserved)]
    again = plan(LARGE, 120 * GIB, failed=failed)
    assert isinstance(again, Plan)
    assert again.why == "an earlier attempt ran out of memory"


@given(st.integers(1, 600))
def test_every_size_of_equal_parts_is_tried_once(batch: int) -> None:
    sizes = [split.micro_batch for split in splits(replace(LARGE, effective_batch=batch))]
    equal = list(dict.fromkeys(-(-batch // times) for times in range(1, batch + 1)))
    assert sizes == 2 * equal


def test_a_huge_batch_is_planned_quickly() -> None:
    few = list(splits(replace(LARGE, effective_batch=10**9)))
    assert len(few) < 130_000


@settings(max_examples=100, deadline=None)
@given(specs(), budgets)
def test_the_share_of_a_space_that_fits_agrees_with_plans(spec: Spec, budget: int) -> None:
    for size in {budget, smallest_budget(spec), smallest_budget(spec) - 1}:
        found, said = plan(spec, size), share([spec], size)
        assert said.all == 1
        assert said.never == isinstance(found, NoPlan)
        assert said.whole == (isinstance(found, Plan) and found.whole)
        assert said.smallest == (
            found.smallest if isinstance(found, NoPlan) else smallest_budget(spec)
        )


def test_smaller_micro_batches_are_preferred_to_checkpointing_if_faster() -> None:
    found = plan(LARGE, 24 * GIB)
    assert isinstance(found, Plan)
    assert not found.split.checkpointing
    assert found.split.micro_batch < 192
    assert str(found) == f"{found.micro_batches} micro-batches of {found.split.micro_batch}"


def test_the_text_of_a_plan_names_its_smaller_last_micro_batch() -> None:
    made = plan(LARGE, 200 * GIB)
    assert isinstance(made, Plan)
    for size, words in (
        (48, "4 micro-batches of 48"),
        (22, "8 micro-batches of 22 and one of 16"),
        (100, "1 micro-batch of 100 and one of 92"),
        (192, "192 sequences at once"),
    ):
        assert str(replace(made, split=split_into(LARGE, size))) == words
    again = replace(made, split=split_into(LARGE, 22, checkpointing=True))
    assert str(again) == "8 micro-batches of 22 and one of 16, activation checkpointing"


def test_the_whole_batch_is_taken_where_it_fits() -> None:
    found = plan(LARGE, 200 * GIB)
    assert isinstance(found, Plan)
    assert found.whole
    assert str(found) == "192 sequences at once"


def test_no_plan_names_the_smallest_sufficient_memory() -> None:
    found = plan(LARGE, 4 * GIB)
    assert isinstance(found, NoPlan)
    assert "bert-large at 480 tokens needs 6." in str(found)
    assert 0.4 < found.over < 1.2


def test_best_weights_are_offloaded_to_the_host_if_memory_is_short() -> None:
    smallest = plan(LARGE, 1)
    assert isinstance(smallest, NoPlan)
    tight = plan(LARGE, smallest.smallest)
    assert isinstance(tight, Plan)
    assert tight.split.best_on_host
    roomy = plan(LARGE, smallest.smallest + 4 * BERT_LARGE.parameters)
    assert isinstance(roomy, Plan)
    assert not roomy.split.best_on_host


def test_more_frozen_layers_than_an_encoder_has_freeze_all() -> None:
    """With two encoders of different depth."""
    small = replace(BERT_LARGE, by_layer=BERT_LARGE.by_layer[:6])
    both = replace(LARGE, encoders=(small, BERT_LARGE), frozen=12)
    assert [both.active(encoder) for encoder in both.encoders] == [0, 12]
    assert both.trained_of(small) == small.after
    deep = replace(LARGE, encoders=(BERT_LARGE,), frozen=12)
    for split in splits(both):
        pair, one = need(both, split).items(), need(deep, split).items()
        assert all(pair[key] >= one[key] for key in ("half_copies", "activations", "attention"))


def test_the_data_set_counts_where_it_is_on_the_device() -> None:
    recorded = replace(LARGE, captured=True)
    large = replace(recorded, data=100_000_000)
    for split in splits(recorded):
        more = need(large, split).total - need(recorded, split).total
        assert more == (0 if split.checkpointing else 800_000_000)
    one_by_one = replace(large, captured=False)
    assert need(one_by_one, split_into(LARGE, 8)).total == need(LARGE, split_into(LARGE, 8)).total


def test_measured_step_times_decide() -> None:
    """Between few large steps with activation checkpointing and many small ones."""
    small = replace(LARGE, effective_batch=64)
    for again, seconds in ((True, 2.0), (False, 0.01)):
        paces = [StepSpeed(16 * 480, False, seconds), StepSpeed(64 * 480, True, 0.3)]
        found = plan(small, 12 * GIB, measured=paces)
        assert isinstance(found, Plan)
        assert found.split.checkpointing is again
        assert found.seconds < 0.4


def test_a_slow_measurement_does_not_reduce_the_micro_batch() -> None:
    """A larger micro-batch takes no longer than its parts one after the other."""
    unknown = plan(LARGE, 24 * GIB)
    assert isinstance(unknown, Plan)
    size = unknown.split.micro_batch
    slow = [StepSpeed(size * 480, False, 9.0), StepSpeed(2 * 480, False, 0.01)]
    found = plan(LARGE, 24 * GIB, measured=slow)
    assert isinstance(found, Plan)
    assert found.split.micro_batch == size
    assert found.seconds <= 1.0


def test_the_fastest_measurement_of_a_split_counts() -> None:
    """The first trial of a process is slower, and so is one beside another process."""
    small = replace(LARGE, effective_batch=64)
    paces = [
        StepSpeed(16 * 480, False, 2.0),
        StepSpeed(64 * 480, True, 0.3),
        StepSpeed(16 * 475, False, 0.01),
    ]
    found = plan(small, 12 * GIB, measured=paces)
    assert isinstance(found, Plan)
    assert not found.split.checkpointing
