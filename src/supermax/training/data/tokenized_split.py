"""Split that is tokenized for each encoder of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from supermax.training.data.examples import Example
from supermax.training.data.offsets import Array
from supermax.training.data.tokens import Tokens


def as_targets(labels: Array | NDArray[np.floating[Any]]) -> Tensor:
    """Return labels of sequences as a tensor: classes as integers, others as fp32."""
    is_numeric = labels.dtype.kind == "f"
    return torch.from_numpy(np.asarray(labels).astype(np.float32 if is_numeric else np.int64))


@dataclass(frozen=True)
class TokenizedSplit:
    examples: tuple[Example, ...]
    views: tuple[Tokens, ...]
    """Tokens for each encoder; the last one has the targets."""
    chosen: NDArray[np.int64]
    """Sequences that are trained on or evaluated."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        return self.views[-1].lengths[self.chosen]

    def rows(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sequences at positions of `chosen`."""
        return self.chosen[indices]

    def targets(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return labels and start positions of sequences, from which losses are normalised.

        The labels of entity examples are the classes of all their tokens.
        """
        rows, last = self.rows(indices), self.views[-1]
        labels, starts = (
            last.tags_of(rows) if len(last.tag) else last.label[rows],
            last.start[rows],
        )
        return (
            as_targets(labels),
            torch.from_numpy(starts.astype(np.int64)),
        )
