"""Kinds of trackers, and what the setting `track` names.

mlflow, tensorboard:FOLDER, wandb:ENTITY/PROJECT, http://… ──find_destination()──▶ Destination
                                                    Backend ◀──make_backend()──┘
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from supermax._util.text import edits, masked_url
from supermax.engine.storage.locations import Location
from supermax.errors import UserError
from supermax.results.tracking.backend import Backend
from supermax.results.tracking.backends import mlflow, tensorboard, wandb
from supermax.results.tracking.backends.mlflow_address import mlflow_destination
from supermax.results.tracking.destination import MLFLOW, TENSORBOARD, WANDB, Destination

_NEAR = 2
"""Edits within which a word is a mistyped kind rather than a file of MLflow."""


@dataclass(frozen=True)
class TrackerKind:
    """Kind of tracker. Nothing of its package is imported outside the tracker process."""

    title: str
    package: str
    destination: Callable[[str | None, Location], Destination]
    backend: Callable[[Destination], Backend]
    settings: Mapping[str, str]
    """Environment variables that are set before its package is imported."""


KINDS: dict[str, TrackerKind] = {
    MLFLOW: TrackerKind("MLflow", "mlflow", mlflow_destination, mlflow.Mlflow, mlflow.SETTINGS),
    TENSORBOARD: TrackerKind(
        "TensorBoard",
        "tensorboard",
        tensorboard.tensorboard_destination,
        tensorboard.TensorBoard,
        {},
    ),
    WANDB: TrackerKind(
        "Weights & Biases",
        "wandb",
        wandb.wandb_destination,
        wandb.Wandb,
        wandb.SETTINGS,
    ),
}
_ALONE = {
    # Each library would open a thread pool; the cores are for the trials.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "DO_NOT_TRACK": "true",
}


def split_kind(track: str) -> tuple[str, str | None]:
    """Return the kind and the address of a value of `track`. Raises UserError for a mistyped
    kind: as the name of a file, it would be created."""
    head, _, rest = track.strip().partition(":")
    if head in KINDS:
        return head, rest or None
    near = [kind for kind in KINDS if edits(head.lower(), kind) <= _NEAR]
    if near and not rest.startswith("//"):
        raise UserError(
            f"There is no tracker {head!r}: did you mean {near[0]}? For an MLflow database of "
            f"that name, write ./{head}."
        )
    if not track.strip():
        raise UserError(f"track is empty. Name a tracker: {', '.join(KINDS)}.")
    return MLFLOW, track


def check_trackers(wanted: Sequence[str]) -> None:
    """Raise UserError for a mistyped tracker, one given twice, or one that is not installed."""
    seen = set()
    for track in wanted:
        kind, _ = split_kind(track)
        check_installed(kind)
        if track in seen:
            raise UserError(f"track names {shown_tracker(track)} twice: leave one out.")
        seen.add(track)


def shown_tracker(track: str) -> str:
    """Return a value of `track` without a password."""
    kind, address = split_kind(track)
    shown = masked_url(address) if address and "://" in address else address
    return ":".join(filter(None, (kind, shown))) if kind != MLFLOW or not shown else shown


def check_installed(kind: str) -> None:
    """Raise UserError if the package of a kind is missing. It is not imported."""
    if importlib.util.find_spec(KINDS[kind].package) is None:
        raise UserError(f"{KINDS[kind].title} is not installed: pip install 'supermax[{kind}]'")


def find_destination(track: str, home: Location) -> Destination:
    """Return the destination that a value of `track` names. Raises UserError."""
    kind, address = split_kind(track)
    return KINDS[kind].destination(address, home)


def make_backend(destination: Destination) -> Backend:
    return KINDS[destination.kind].backend(destination)


def title_of(destination: Destination) -> str:
    return KINDS[destination.kind].title


def settings_of(destination: Destination) -> dict[str, str]:
    """Return the environment variables of the tracker process."""
    return {**_ALONE, **KINDS[destination.kind].settings, **destination.environment}
