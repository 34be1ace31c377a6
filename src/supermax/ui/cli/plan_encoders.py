"""Encoders for `supermax plan`, read from their configuration: no weights and no GPU needed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from supermax._util.text import in_short
from supermax.errors import UserError

if TYPE_CHECKING:
    from supermax.training.models.sources import Source
    from supermax.training.steps.execution import Execution


def find_encoder(name: str) -> Source:
    """Return the source of an encoder under the name that was asked for.

    Raises UserError where no such encoder is known or its configuration makes no model. Its
    weights are not loaded: memory follows from the configuration alone.
    """
    from supermax._util.attributes import UNTRAINED
    from supermax.tasks.shapes import encoder_of, why_unusable
    from supermax.training.models.architectures import FULL
    from supermax.training.models.sources import find

    known = f"{UNTRAINED}{name}" if name in FULL else name
    source = replace(find(known, weights=False), name=name)
    if (reason := why_unusable(source)) is not None:
        raise UserError(reason)
    try:
        encoder_of(source)
    except Exception as error:  # the libraries raise whatever strange sizes provoke
        raise UserError(
            f"The configuration of '{name}' makes no encoder: {in_short(error)}."
        ) from None
    return source


def execution_on(device: str) -> Execution:
    """Return how a trial is trained on the device: bf16 on CUDA, fp32 on a CPU."""
    from supermax.training.steps.execution import Execution

    return Execution(device=device, precision="bf16" if device == "cuda" else "fp32")
