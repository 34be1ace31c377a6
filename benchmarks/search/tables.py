"""Recorded learning curves of a task, on which searches are replayed. families.py reads them.

Needs only Optuna and NumPy: a peer uses it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution

if TYPE_CHECKING:
    from supermax._util.attributes import ParamValue

Params = Mapping[str, "ParamValue"]


@dataclass(frozen=True)
class Table:
    """Curves of one task. Values are losses."""

    name: str
    space: dict[str, BaseDistribution]
    epochs: int
    best: float
    """Lowest loss that a configuration reaches."""
    median: float
    """Lowest loss that half of the configurations reach."""
    curve: Callable[[Params], np.ndarray]
    """Loss after each epoch."""
    defaults: Params
    """Configuration that somebody with experience would begin with."""
    recorded: Sequence[Params] = ()
    """Configurations that were trained; empty where portfolios choose from uniform ones."""

    def regret(self, loss: float) -> float:
        """Return the normalised regret: 0 for the best configuration, 1 for the median one."""
        return (loss - self.best) / (self.median - self.best)


def drawn_evenly(rng: np.random.Generator, space: Mapping[str, BaseDistribution]) -> Params:
    """Draw a configuration evenly."""
    drawn = {}
    for name, distribution in space.items():
        assert isinstance(distribution, IntDistribution | FloatDistribution)
        low, high = distribution.low, distribution.high
        ends = np.log([low, high]) if distribution.log else np.array([low, high])
        x = rng.uniform(*ends)
        x = np.exp(x) if distribution.log else x
        drawn[name] = round(x) if isinstance(distribution, IntDistribution) else x
    return drawn
