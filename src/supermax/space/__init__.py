"""Search space as data, with constraints; a changed space keeps the trials that are still valid.

model ◀─ reading (files), narrowing                     definition of the space
  ├─▶ feasible ─▶ sampling                              feasible configurations
  └─▶ migration: diff, carry ─▶ bulk_write, versions    trials of a changed space
"""

from __future__ import annotations

from supermax.space.adapters import with_lora
from supermax.space.domains import Categorical, Constraint, Float, Int, Parameter
from supermax.space.migration.diff import Change, changes
from supermax.space.migration.versions import Opened, find_versions, open_version, space_of
from supermax.space.model import Space, choices, flatten, nest
from supermax.space.narrowing import narrowed
from supermax.space.presets import Preset, preset
from supermax.space.reading import load, loads, shipped
from supermax.space.sampling import SpaceSampler, sampler_for
from supermax.space.seeds import enqueue, enqueue_defaults, warm_start

__all__ = [
    "Categorical",
    "Change",
    "Constraint",
    "Float",
    "Int",
    "Opened",
    "Parameter",
    "Preset",
    "Space",
    "SpaceSampler",
    "changes",
    "choices",
    "enqueue",
    "enqueue_defaults",
    "find_versions",
    "flatten",
    "load",
    "loads",
    "narrowed",
    "nest",
    "open_version",
    "preset",
    "sampler_for",
    "shipped",
    "space_of",
    "warm_start",
    "with_lora",
]
