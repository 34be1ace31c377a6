"""Micro-batches of a Trainer's batch: less memory, the same step.

The Trainer keeps its arguments, its data loader and its steps. Only the computation of a step is
split, in one of two ways:

    the model's own loss   forward and backward passes of slices, one after the other; their losses
                           are weighted so that the gradients are those of the batch
    a loss of the user     forward passes of slices, computed again in the backward pass; the loss
                           is computed once, from the outputs of the whole batch
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from supermax.errors import Infeasible
from supermax.trainer.losses import Composition, KnownComposition, weight_of
from supermax.trainer.sliced_forward import SlicedForward
from supermax.trainer.slicing import NotSliceable, examples_in, slice_of

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class MicroBatches:
    """Splits the batches of a Trainer into `parts`, in its `training_step`."""

    def __init__(self, trainer: Any, parts: int) -> None:
        self._trainer = trainer
        self._parts = parts
        self._step = trainer.training_step
        self._forward = SlicedForward()
        self._composition = KnownComposition()
        self.why_not: str | None = None
        """Reason why batches are not split; None: they are."""

    def install(self) -> None:
        if self._parts > 1:
            self._trainer.training_step = self.training_step

    @property
    def rows(self) -> int:
        """Number of examples of a micro-batch."""
        return math.ceil(int(self._trainer.args.train_batch_size) / self._parts)

    def check(self) -> None:
        """Raise Infeasible if the parts before these had one example each already."""
        if self._parts // 2 >= int(self._trainer.args.train_batch_size):
            raise Infeasible("A single example does not fit in memory.")

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Do what Trainer.training_step does, in micro-batches."""
        try:
            size = examples_in(inputs)
            if size <= self.rows:
                return self._step(model, inputs, num_items_in_batch)
            self._refuse_batch_norm(model)
            if not self._is_loss_of_model():
                with self._forward.of(self._trainer.model, self.rows):
                    return self._step(model, inputs, num_items_in_batch)
            kind = self._composition.of(
                model, partial(self._loss, model), inputs, size, num_items_in_batch is not None
            )
        except NotSliceable as error:
            self.why_not = str(error)
            return self._step(model, inputs, num_items_in_batch)
        return self._sliced_step(model, inputs, size, num_items_in_batch, kind)

    def _sliced_step(
        self, model: Any, inputs: Any, size: int, items: Any, kind: Composition
    ) -> Any:
        total: Any = None
        for start in range(0, size, self.rows):
            rows = slice(start, min(start + self.rows, size))
            part = slice_of(inputs, rows, size)
            weight = weight_of(kind, part, rows.stop - rows.start, inputs, size)
            if weight == 0.0:  # it has no labels: its mean would be NaN
                continue
            with self._weighted(weight):
                loss = self._step(model, part, items)
            total = loss if total is None else total + loss
        return total if total is not None else self._step(model, inputs, items)

    def _is_loss_of_model(self) -> bool:
        """Return whether the Trainer takes the loss that the model computes."""
        from transformers import Trainer

        trainer = self._trainer
        changed = "compute_loss" in vars(trainer) or trainer.compute_loss_func
        return type(trainer).compute_loss is Trainer.compute_loss and not changed

    def _loss(self, model: Any, batch: Any, items: int | None) -> float:
        trainer = self._trainer
        count = None if items is None else torch.tensor(items, device=trainer.args.device)
        prepared = trainer._prepare_inputs(dict(batch))
        return float(trainer.compute_loss(model, prepared, num_items_in_batch=count).mean())

    @contextlib.contextmanager
    def _weighted(self, weight: float) -> Iterator[None]:
        """Multiply the loss of a slice by its weight in the loss of the batch."""
        trainer = self._trainer
        compute_loss = trainer.compute_loss
        trainer.compute_loss = lambda *args, **kwargs: compute_loss(*args, **kwargs) * weight
        try:
            yield
        finally:
            del trainer.compute_loss

    def _refuse_batch_norm(self, model: Any) -> None:
        if any(isinstance(module, _BATCH_NORMS) for module in model.modules()):
            raise NotSliceable("the model has batch normalisation, which sees the whole batch")
