"""Reseed samplers after a restart; detect exhausted grid and brute-force samplers."""

from __future__ import annotations

import hashlib

from optuna.samplers import BaseSampler, BruteForceSampler, GridSampler
from optuna.samplers._brute_force import _TreeNode
from optuna.samplers._lazy_random_state import LazyRandomState
from optuna.study import Study
from optuna.trial import TrialState


def reseed(
    sampler: BaseSampler, trials: int, run: str = "", seen: frozenset[int] = frozenset()
) -> None:
    """Reseed a seeded sampler, so that after a restart it does not repeat its first samples.

    The new seed is derived from the old state and the number of trials: the same call on the same
    study samples the same values. A sampler without a seed stays as it is. `run`: name of the run
    if others share the study, which must not all sample the same values.
    """
    if (trials == 0 and not run) or id(sampler) in seen:
        return
    for value in getattr(sampler, "__dict__", {}).values():
        if isinstance(value, LazyRandomState) and value._rng is not None:
            keys = value._rng.get_state()[1].tobytes()  # type: ignore[index]
            digest = hashlib.sha256(keys + trials.to_bytes(8, "big") + run.encode()).digest()
            value._rng.seed(int.from_bytes(digest[:4], "big"))
        elif isinstance(value, BaseSampler):
            reseed(value, trials, run, seen | {id(sampler)})


def exhausted(study: Study) -> bool:
    """Return whether a grid or brute-force sampler has tried every point; it would repeat one."""
    sampler = study.sampler
    if isinstance(sampler, GridSampler):
        return bool(sampler.is_exhausted(study))
    if isinstance(sampler, BruteForceSampler):
        tree = _TreeNode()
        trials = [t for t in study.get_trials(deepcopy=False) if t.state is not TrialState.WAITING]
        sampler._populate_tree(tree, trials, {})
        return bool(trials) and not tree.is_any_expandable(exclude_running=False)
    return False
