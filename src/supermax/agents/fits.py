"""How much of a space fits a device: as it is, split into micro-batches, or never.

space, sources, budget ──fits()──▶ Share for each encoder
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from supermax.agents.specs import spec_of
from supermax.memory.disk import Footprint, footprint
from supermax.memory.estimate import need
from supermax.memory.facts import Spec
from supermax.memory.planner import least, split_into
from supermax.space import Categorical, Space
from supermax.training.config import read_config
from supermax.training.sources import Source
from supermax.training.steps import Execution

_MOST_VALUES = 64


@dataclass(frozen=True)
class Share:
    """Of the combinations of batch, length and optimizer that a space has for an encoder."""

    whole: int
    split: int
    never: int
    largest: int
    """Bytes that the largest of them needs as it is."""
    smallest: int
    """Bytes of the smallest device that takes all of them, the most split."""

    @property
    def all(self) -> int:
        return self.whole + self.split + self.never


def fits(
    space: Space, sources: Mapping[str, Source], agent: str, budget: int, execution: Execution
) -> dict[str, Share]:
    """By encoder, with nothing frozen, and texts as long as they may be."""
    return {
        name: share(combinations(space, agent, source, execution), budget)
        for name, source in sources.items()
    }


def share(specs: list[Spec], budget: int) -> Share:
    """As the planner would have it, before anything is measured."""
    whole = [need(spec, split_into(spec, spec.effective_batch)).total for spec in specs]
    smallest = [least(spec) for spec in specs]
    fitting = sum(size <= budget for size in whole)
    never = sum(size > budget for size in smallest)
    return Share(fitting, len(specs) - fitting - never, never, max(whole), max(smallest))


def footprints(
    space: Space, sources: Iterable[Source], agent: str, execution: Execution
) -> list[Footprint]:
    """Every kind of trial by what it takes of memory and disk: with as few and as many frozen
    layers as the space has, since what lies between takes a mean of both."""
    frozen = _numbers(space, "encoder.frozen_layers") or [0]
    found = {
        footprint(replace(spec, frozen=min(layers, min(e.layers for e in spec.encoders))))
        for source in sources
        for spec in combinations(space, agent, source, execution)
        for layers in (frozen[0], frozen[-1])
    }
    return sorted(found, key=lambda one: one.states)


def combinations(space: Space, agent: str, source: Source, execution: Execution) -> list[Spec]:
    """Every effective batch, length and optimizer that the space has."""
    config = read_config(
        {
            "agent": agent,
            "encoder": {"name": source.name, "dropout": 0.1, "attention_dropout": 0.1},
            "text": {"max_length": 512},
        }
    )
    base = spec_of(config, [source] * (2 if agent == "joint" else 1), execution)
    lengths = _numbers(space, "text.max_length") or [256]
    optimizers = _words(space, "optim.name") or ["adamw"]
    return [
        replace(base, effective_batch=batch, length=min(length, base.length), optimizer=optimizer)
        for batch, length, optimizer in itertools.product(_batches(space), lengths, optimizers)
    ]


def _batches(space: Space) -> list[int]:
    """With the older pair every product, as often as it occurs."""
    sizes, times = _numbers(space, "train.batch_size"), _numbers(space, "train.grad_accum")
    if sizes:
        return [size * time for size in sizes for time in times or [1]]
    return _numbers(space, "train.effective_batch") or [32]


def _numbers(space: Space, key: str) -> list[int]:
    """All values, or some from the lowest to the highest where there are very many."""
    found: dict[int, None] = {}
    for branch in space.parameters[key].branches if key in space.parameters else ():
        if isinstance(branch, Categorical):
            found |= {int(value): None for value in branch.choices if isinstance(value, int)}
        else:
            low, high, step = int(branch.low), int(branch.high), int(branch.step or 1)
            values = range(low, high + 1, step)
            thin = -(-len(values) // _MOST_VALUES)
            found |= dict.fromkeys((*values[::-thin], low))
    return sorted(found)


def _words(space: Space, key: str) -> list[str]:
    branches = space.parameters[key].branches if key in space.parameters else ()
    found = [b.choices for b in branches if isinstance(b, Categorical)]
    return list(dict.fromkeys(str(value) for some in found for value in some))
