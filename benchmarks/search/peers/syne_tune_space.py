"""Search space of a table, as both versions of Syne Tune take it."""

from __future__ import annotations

from typing import Any

from serve import Spec
from syne_tune.config_space import choice, lograndint, loguniform, randint, uniform


def config_space(spec: Spec) -> dict[str, Any]:
    space = {}
    for name, domain in spec.space.items():
        if "choices" in domain:
            space[name] = choice(domain["choices"])
            continue
        kinds = {"float": (uniform, loguniform), "int": (randint, lograndint)}
        space[name] = kinds[domain["type"]][domain["log"]](domain["low"], domain["high"])
    return space
