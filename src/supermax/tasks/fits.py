"""Share of a search space that fits a device: whole, split into micro-batches, or never.

space, sources, budget ──fits()──▶ Share for each encoder
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from supermax.agents import agent_of
from supermax.memory.disk import Footprint, footprint
from supermax.memory.estimate import need
from supermax.memory.facts import Spec
from supermax.memory.planner import smallest_budget, split_into
from supermax.space import Space, choices
from supermax.space.adapters import NAME, TARGETS, may_adapt
from supermax.tasks.space_values import integers
from supermax.tasks.specs import spec_of
from supermax.training.config import AdapterConfig, read_config
from supermax.training.models.sources import Source
from supermax.training.steps.execution import Execution

_MOST_VALUES = 64  # of a range; from larger ranges only some values are taken


@dataclass(frozen=True)
class Share:
    """Numbers of an encoder's combinations of batch, length and optimizer, by how they fit."""

    whole: int
    """Combinations whose effective batch fits at once."""
    split: int
    """Combinations that fit only with micro-batches or activation checkpointing."""
    never: int
    """Combinations that do not fit."""
    largest: int
    """Bytes that the largest combination needs with its whole effective batch."""
    smallest: int
    """Bytes of the smallest device that all combinations fit, split as far as possible."""

    @property
    def all(self) -> int:
        return self.whole + self.split + self.never


def fits(
    space: Space, sources: Mapping[str, Source], agent: str, budget: int, execution: Execution
) -> dict[str, Share]:
    """Return the share of each encoder, with no frozen layers and texts of maximum length."""
    return {
        name: share(combinations(space, agent, source, execution), budget)
        for name, source in sources.items()
    }


def share(specs: list[Spec], budget: int) -> Share:
    """Return the share by the planner's estimates, before anything is measured."""
    whole = [need(spec, split_into(spec, spec.effective_batch)).total for spec in specs]
    smallest = [smallest_budget(spec) for spec in specs]
    fitting = sum(size <= budget for size in whole)
    never = sum(size > budget for size in smallest)
    return Share(fitting, len(specs) - fitting - never, never, max(whole), max(smallest))


def footprints(
    space: Space, sources: Iterable[Source], agent: str, execution: Execution
) -> list[Footprint]:
    """Return the memory and disk footprints of all combinations, smallest state first.

    Each is taken with the fewest and with the most frozen layers of the space: values between
    them lie between these footprints.
    """
    frozen = _numbers(space, "encoder.frozen_layers") or [0]
    distinct = {
        footprint(replace(spec, frozen=min(layers, min(e.layers for e in spec.encoders))))
        for source in sources
        for spec in combinations(space, agent, source, execution)
        for layers in (frozen[0], frozen[-1])
    }
    return sorted(distinct, key=lambda each: each.states)


def combinations(space: Space, agent: str, source: Source, execution: Execution) -> list[Spec]:
    """Return a spec for every effective batch, length, optimizer and adapter of the space."""
    config = read_config(
        {
            "agent": agent,
            "encoder": {"name": source.name, "dropout": 0.1, "attention_dropout": 0.1},
            "text": {"max_length": 512},
        }
    )
    configs = [config.model_copy(update={"adapter": adapter}) for adapter in _adapters(space)]
    bases = [spec_of(each, [source] * agent_of(agent).encoders, execution) for each in configs]
    lengths = _numbers(space, "text.max_length") or [256]
    searched = choices(space, "optim.name") if "optim.name" in space.parameters else ["adamw"]
    return [
        replace(
            base, effective_batch=batch, length=min(length, base.length), optimizer=str(optimizer)
        )
        for base, batch, length, optimizer in itertools.product(
            bases, _batches(space), lengths, searched
        )
    ]


def _adapters(space: Space) -> list[AdapterConfig]:
    """Return the adapters of the space that need least and most memory, and none where trials may
    have none."""
    if not may_adapt(space):
        return [AdapterConfig()]
    none = [AdapterConfig()] if "none" in choices(space, NAME) else []
    ranks = _numbers(space, "adapter.rank") or [8]
    dropouts = 0.1 if "adapter.dropout" in space.parameters else 0.0
    kinds = choices(space, TARGETS) if TARGETS in space.parameters else ["all-linear"]
    least = {"rank": min(ranks), "dropout": 0.0, "target_modules": sorted(map(str, kinds))[-1]}
    most = {"rank": max(ranks), "dropout": dropouts, "target_modules": sorted(map(str, kinds))[0]}
    lora = [AdapterConfig.model_validate({"name": "lora", **each}) for each in (least, most)]
    return [*none, *lora]


def _batches(space: Space) -> list[int]:
    """Return the effective batches; in older spaces, products of batch size and accumulation."""
    sizes, accumulation = _numbers(space, "train.batch_size"), _numbers(space, "train.grad_accum")
    if sizes:
        return [size * steps for size in sizes for steps in accumulation or [1]]
    return _numbers(space, "train.effective_batch") or [32]


def _numbers(space: Space, key: str) -> list[int]:
    return integers(space, key, _MOST_VALUES)
