"""Pooling of a model's outputs over the windows of a text."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.floating]


def pooled(
    outputs: Numbers, texts: NDArray[np.integer], pooling: Literal["mean", "max"]
) -> tuple[NDArray[np.intp], Numbers]:
    """Return the first window of each text, and its outputs pooled over all of its windows.

    `outputs` has a row for each window and `texts` the number of its text. Texts are in ascending
    order of their numbers.
    """
    _, first, position = np.unique(texts, return_index=True, return_inverse=True)
    if pooling == "max":
        found = np.full((len(first), *outputs.shape[1:]), -np.inf, dtype=outputs.dtype)
        np.maximum.at(found, position, outputs)
        return first, found
    found = np.zeros((len(first), *outputs.shape[1:]), dtype=np.float64)
    np.add.at(found, position, outputs)
    counts = np.bincount(position).reshape(-1, *(1,) * (outputs.ndim - 1))
    return first, (found / counts).astype(outputs.dtype)
