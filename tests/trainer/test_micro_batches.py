"""Micro-batches: the loss and the gradients of the whole batch, for each kind of loss."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer

from supermax.errors import Infeasible
from supermax.trainer.losses import Composition, KnownComposition
from supermax.trainer.micro_batches import MicroBatches
from tests.trainer import tiny

SIZE = 7


def regression(folder: Path) -> tuple[Trainer, Any]:
    """Its model accepts num_items_in_batch and ignores it."""
    data = [row | {"labels": row["labels"] + 0.5} for row in tiny.rows(SIZE)]
    model = lambda: tiny.BertForSequenceClassification(tiny.config(num_labels=1))  # noqa: E731
    return tiny.trainer(folder, model_init=model), data


def several_labels(folder: Path) -> tuple[Trainer, Any]:
    data = [row | {"labels": [1.0, float(row["labels"])]} for row in tiny.rows(SIZE)]
    return tiny.trainer(folder), data


def tokens(folder: Path, **arguments: Any) -> tuple[Trainer, Any]:
    """One example has no label at all."""
    data = tiny.rows(SIZE)
    for number, row in enumerate(data):
        labelled = [n % 3 for n in range(2 * number)]
        row["labels"] = (labelled + [-100] * tiny.LENGTH)[: tiny.LENGTH]
    return tiny.trainer(folder, model_init=tiny.tagger, arguments=arguments), data


def smoothed(folder: Path) -> tuple[Trainer, Any]:
    return tokens(folder, label_smoothing_factor=0.1)


def classes(folder: Path) -> tuple[Trainer, Any]:
    return tiny.trainer(folder), tiny.rows(SIZE)


def weighted(folder: Path) -> tuple[Trainer, Any]:
    return tiny.trainer(folder, of=tiny.Weighted), tiny.rows(SIZE)


def scaled(folder: Path) -> tuple[Trainer, Any]:
    return tiny.trainer(folder, of=tiny.Scaled), tiny.rows(SIZE)


def own_function(folder: Path) -> tuple[Trainer, Any]:
    def loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        per_class = torch.nn.functional.cross_entropy(
            outputs.logits, labels, weight=torch.tensor([1.0, 3.0]), reduction="sum"
        )
        return per_class / num_items_in_batch

    return tiny.trainer(folder, compute_loss_func=loss), tiny.rows(SIZE)


def own_method(folder: Path) -> tuple[Trainer, Any]:
    """A loss that is set on the Trainer itself, not by a subclass."""
    trainer = tiny.trainer(folder)
    trainer.compute_loss = tiny.Weighted.compute_loss.__get__(trainer)
    return trainer, tiny.rows(SIZE)


KINDS = [
    classes, regression, several_labels, tokens, smoothed, weighted, scaled, own_function,
    own_method,
]  # fmt: skip


def step(
    trainer: Trainer, data: Any, parts: int, accumulated: int = 1
) -> tuple[float, list[torch.Tensor], MicroBatches]:
    """Return loss and gradients of one step of a new model with a batch of all rows."""
    trainer.args.per_device_train_batch_size = len(data)
    torch.manual_seed(0)
    model = trainer.model = trainer.model_wrapped = trainer.call_model_init()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    trainer.current_gradient_accumulation_steps = accumulated
    batches = [trainer.data_collator(data)] * accumulated
    items = trainer._get_num_items_in_batch(batches, torch.device("cpu"))
    micro = MicroBatches(trainer, parts)
    micro.install()
    try:
        loss = trainer.training_step(model, batches[0], items)
    finally:
        vars(trainer).pop("training_step", None)
    return float(loss), [p.grad for p in model.parameters() if p.grad is not None], micro


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("accumulated", [1, 2])
def test_loss_and_gradients_are_those_of_the_batch(
    kind: Any, accumulated: int, tmp_path: Path
) -> None:
    trainer, data = kind(tmp_path)
    loss, gradients, _ = step(trainer, data, 1, accumulated)
    for parts in (2, 4, 8):
        split_loss, split_gradients, micro = step(trainer, data, parts, accumulated)
        assert micro.why_not is None
        assert split_loss == pytest.approx(loss, rel=1e-5)
        for one, other in zip(split_gradients, gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)


def test_batches_are_split(tmp_path: Path) -> None:
    """Otherwise the gradients would be the same, too."""
    for kind in (classes, weighted, scaled):
        trainer, data = kind(tmp_path)
        sizes: list[int] = []
        trainer.model_init = partial(watched, trainer.model_init, sizes)
        step(trainer, data, 3)
        with_gradients = {size for size in sizes if size > 0}
        assert with_gradients == {3, 1}, kind


def watched(make: Any, sizes: list[int]) -> Any:
    """Return a model that notes the batch size of each forward pass with gradients."""
    model = make()
    forward = model.forward

    def noted(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            sizes.append(len(kwargs["input_ids"]))
        return forward(*args, **kwargs)

    model.forward = noted
    return model


def test_a_loss_between_the_examples_is_not_split(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, model_init=tiny.contrastive)
    loss, gradients, _ = step(trainer, tiny.rows(SIZE), 1)
    same_loss, same_gradients, micro = step(trainer, tiny.rows(SIZE), 4)
    assert micro.why_not == "the loss of a batch is not the mean of the losses of its examples"
    assert same_loss == loss
    for one, other in zip(same_gradients, gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_class_weights_in_the_model_are_not_split(
    tmp_path: Path, seed: int, counted: bool
) -> None:
    """At the start all examples have about the same loss: their weighted mean is the plain one."""
    trainer = tiny.trainer(tmp_path, model_init=tiny.weighted_model)
    trainer.model_accepts_loss_kwargs = counted
    data = tiny.rows(SIZE, seed)
    one_class = [row for row in data if row["labels"] == data[0]["labels"]]
    micro = step(trainer, data, 4)[2]
    assert micro.why_not == "the loss of a batch is not the mean of the losses of its examples"
    assert step(trainer, one_class[:2], 2)[2].why_not is None


def test_the_test_of_a_loss_changes_no_weight_and_no_random_number() -> None:
    model, known = tiny.classifier(), KnownComposition()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    state = torch.get_rng_state()
    batch = {key: torch.tensor([row[key] for row in tiny.rows(SIZE)]) for key in tiny.rows(1)[0]}
    kind = known.of(model, lambda some, _: float(model(**some).loss), batch, SIZE, False)
    assert kind is Composition.EXAMPLES
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())


def test_batch_normalisation_is_not_split(tmp_path: Path) -> None:
    def model() -> Any:
        made = tiny.classifier()
        made.classifier = torch.nn.Sequential(made.classifier, torch.nn.BatchNorm1d(2))
        return made

    _, _, micro = step(tiny.trainer(tmp_path, model_init=model), tiny.rows(SIZE), 2)
    assert micro.why_not is not None
    assert "batch normalisation" in micro.why_not


FITS = [(1, 1, True), (1, 2, False), (3, 4, True), (3, 8, False)]


@pytest.mark.parametrize(("batch", "parts", "fits"), FITS)
def test_one_example_is_the_smallest_micro_batch(
    batch: int, parts: int, fits: bool, tmp_path: Path
) -> None:
    trainer = tiny.trainer(tmp_path, arguments={"per_device_train_batch_size": batch})
    micro = MicroBatches(trainer, parts)
    with contextlib.nullcontext() if fits else pytest.raises(Infeasible):
        micro.check()
