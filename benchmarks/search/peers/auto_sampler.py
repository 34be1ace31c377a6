"""AutoSampler of OptunaHub, with the default pruner.

The module comes from a clone of github.com/optuna/optunahub-registry, whose folder is in the
environment variable OPTUNAHUB_REGISTRY. Measured with commit ee68019.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import optuna
import optunahub
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.pruners import MedianPruner
from serve import Spec, serve

sys.path.append(str(Path(__file__).parent.parent))
from optuna_method import OptunaMethod
from tables import Table


def start(spec: Spec) -> tuple[str, OptunaMethod]:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space: dict[str, BaseDistribution] = {}
    for name, domain in spec.space.items():
        if "choices" in domain:
            space[name] = CategoricalDistribution(domain["choices"])
            continue
        kind = FloatDistribution if domain["type"] == "float" else IntDistribution
        space[name] = kind(domain["low"], domain["high"], log=domain["log"])
    table = Table("", space, spec.epochs, 0.0, 1.0, lambda _: np.zeros(0), spec.defaults)
    registry = str(Path(os.environ["OPTUNAHUB_REGISTRY"]) / "package")
    module = optunahub.load_local_module("samplers/auto_sampler", registry_root=registry)
    sampler = module.AutoSampler(seed=spec.seed)
    return version("optuna"), OptunaMethod(table, sampler, MedianPruner())


if __name__ == "__main__":
    serve(start)
