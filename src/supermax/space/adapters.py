"""LoRA as a searched option of any space.

Space ──with_lora()──▶ Space with `adapter.*`, and with the branches that other parameters need
"""

from __future__ import annotations

from typing import Any

import yaml

from supermax.space.domains import Branch, Categorical
from supermax.space.model import Space, choices
from supermax.space.reading import CATALOG

NAME, TARGETS = "adapter.name", "adapter.target_modules"
FULL_ONLY = ("encoder.frozen_layers", "optim.layer_decay")
"""Parameters without a meaning under an adapter: they are sampled without one only."""
RATE = "optim.lr"
RATE_FACTOR = 10
"""Factor from a learning rate for all weights to one for low-rank matrices. LoRA reaches its best
values at about ten times the rate of full fine-tuning (Schulman et al. 2025, "LoRA Without
Regret")."""


def lora_parameters() -> dict[str, dict[str, Any]]:
    """Return the parameters of an adapter, with all of their values."""
    data = yaml.safe_load((CATALOG / "_lora.yaml").read_text(encoding="utf-8"))
    return dict(data["parameters"])


def may_adapt(space: Space) -> bool:
    """Return True if trials of the space may have an adapter."""
    return NAME in space.parameters and set(choices(space, NAME)) != {"none"}


def with_lora(space: Space) -> Space:
    """Return the space with LoRA as a choice of `adapter.name`.

    Frozen layers and layer-wise learning rates are then sampled without an adapter only, and
    learning rates for LoRA are ten times those of the space. A space that has `adapter.name` is
    returned as it is.
    """
    if NAME in space.parameters:
        return space
    data = space.data()
    for name in FULL_ONLY:
        if name in space.parameters:
            branches = [_without_adapter(b) for b in space.parameters[name].branches]
            data["parameters"][name] = _written(space, name, branches)
    if RATE in space.parameters:
        full = space.parameters[RATE].branches
        branches = [*map(_without_adapter, full), *map(_with_adapter, full)]
        data["parameters"][RATE] = _written(space, RATE, branches)
    return Space(**{**data, "parameters": {**data["parameters"], **lora_parameters()}})


def _written(space: Space, name: str, branches: list[dict[str, Any]]) -> dict[str, Any]:
    was = space.parameters[name].was
    return {"branches": branches, **({"was": list(was)} if was else {})}


def _without_adapter(branch: Branch) -> dict[str, Any]:
    when = f"{NAME} == 'none'" + (f" and ({branch.when})" if branch.when else "")
    return {**branch.data(), "when": when}


def _with_adapter(branch: Branch) -> dict[str, Any]:
    """Return the branch for learning rates of an adapter; it comes after those without one."""
    data: dict[str, Any] = branch.data()
    if isinstance(branch, Categorical):
        data["choices"] = [_rate(choice) for choice in data["choices"]]
    return {**data, **{k: _rate(data[k]) for k in ("low", "high", "step", "default") if k in data}}


def _rate(value: Any) -> Any:
    """Return a learning rate for an adapter, without the rounding error of the product."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(f"{RATE_FACTOR * value:.12g}") if is_number else value
