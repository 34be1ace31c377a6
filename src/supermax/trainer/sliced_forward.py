"""Forward pass of a model in slices, whose activations are computed again in the backward pass.

The outputs are those of the whole batch, so that any loss of them is exact: with class weights,
with in-batch negatives, with several passes of the model.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from supermax.trainer.losses import Composition, KnownComposition, weight_of
from supermax.trainer.slicing import NotSliceable, examples_in, slice_of

ITEMS = "num_items_in_batch"


class SlicedForward:
    """Has a model process `rows` examples at a time while it trains."""

    def __init__(self) -> None:
        self._composition = KnownComposition()  # of a loss that the model returns

    @contextlib.contextmanager
    def of(self, model: Any, rows: int) -> Iterator[None]:
        forward, patched = model.forward, "forward" in vars(model)

        @functools.wraps(forward)
        def in_slices(*args: Any, **kwargs: Any) -> Any:
            size = examples_in((args, kwargs)) if torch.is_grad_enabled() else 0
            if size <= rows:
                return forward(*args, **kwargs)
            slices = [slice(start, min(start + rows, size)) for start in range(0, size, rows)]
            parts = [slice_of((args, kwargs), part, size) for part in slices]
            outputs = [
                checkpoint(forward, *some, use_reentrant=False, **named) for some, named in parts
            ]
            sizes = [part.stop - part.start for part in slices]
            weights: list[float] = []
            if _loss_of(outputs[0]) is not None and not args:
                kind = self._kind(model, forward, kwargs, size)
                some = zip(parts, sizes, strict=True)
                weights = [weight_of(kind, named, n, kwargs, size) for (_, named), n in some]
            return joined_outputs(outputs, sizes, weights)

        model.forward = in_slices
        try:
            yield
        finally:
            if patched:
                model.forward = forward
            else:
                del model.forward

    def _kind(
        self, model: Any, forward: Callable[..., Any], kwargs: dict[str, Any], size: int
    ) -> Composition:
        """Return the composition of the loss that the model returns."""
        counted = kwargs.get(ITEMS) is not None

        def loss(batch: Any, items: int | None) -> float:
            named = {**batch, ITEMS: torch.tensor(items)} if counted else batch
            return float(_loss_of(forward(**named)))  # type: ignore[arg-type]

        return self._composition.of(model, loss, kwargs, size, counted)


def joined_outputs(
    outputs: Sequence[Any], sizes: Sequence[int], weights: Sequence[float] = ()
) -> Any:
    """Return the outputs of slices as that of the whole batch. `weights`: of their losses. Raise
    NotSliceable for a tensor that does not belong to single examples."""
    first = outputs[0]
    if isinstance(first, torch.Tensor):
        if any(out.shape[:1] != (n,) for out, n in zip(outputs, sizes, strict=True)):
            raise NotSliceable("the model returns a tensor that has not one row per example")
        return torch.cat(list(outputs))
    if isinstance(first, Mapping):
        fields = {}
        for key in first:
            column = [out[key] for out in outputs]
            if key == "loss" and weights and _loss_of(first) is not None:
                fields[key] = sum(w * loss for w, loss in zip(weights, column, strict=True) if w)
            else:
                fields[key] = joined_outputs(column, sizes)
        return type(first)(**fields) if hasattr(first, "to_tuple") else fields
    if isinstance(first, (list, tuple)):
        return type(first)(joined_outputs(column, sizes) for column in zip(*outputs, strict=True))
    return first


def _loss_of(output: Any) -> torch.Tensor | None:
    """Return the loss that a model returns with its outputs; None: it returns none."""
    loss = output.get("loss") if isinstance(output, Mapping) else None
    return loss if isinstance(loss, torch.Tensor) and loss.ndim == 0 else None
