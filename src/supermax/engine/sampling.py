"""Samplers across restarts."""

from __future__ import annotations

import hashlib

from optuna.samplers import BaseSampler
from optuna.samplers._lazy_random_state import LazyRandomState


def reseed(sampler: BaseSampler, trials: int) -> None:
    """Move a seeded sampler on, so that after a restart it does not repeat its first draws.

    The new seed follows from the old state and the number of trials: the same call on the same
    study draws the same again. A sampler without a seed stays as it is.
    """
    if trials == 0:
        return
    for value in vars(sampler).values():
        if isinstance(value, LazyRandomState) and value._rng is not None:
            keys = value._rng.get_state()[1].tobytes()  # type: ignore[index]
            digest = hashlib.sha256(keys + trials.to_bytes(8, "big")).digest()
            value._rng.seed(int.from_bytes(digest[:4], "big"))
        elif isinstance(value, BaseSampler):
            reseed(value, trials)
