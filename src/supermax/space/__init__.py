"""The search space as data: feasible by construction, able to change without losing a trial.

model ◀─ reading (files), narrowing          what can be sampled
  ├─▶ feasible ─▶ sampling                   which points are drawn
  └─▶ diff, carrying ─▶ writing, versions    what becomes of trials when it changes
"""

from __future__ import annotations

from supermax.space.diff import Change, changes
from supermax.space.domains import Categorical, Constraint, Float, Int, Parameter
from supermax.space.model import Space, choices, flatten, nest
from supermax.space.narrowing import narrowed
from supermax.space.presets import Preset, preset
from supermax.space.reading import load, loads, shipped
from supermax.space.sampling import SpaceSampler, sampler_for
from supermax.space.seeds import enqueue, enqueue_defaults, warm_start
from supermax.space.versions import Opened, find_versions, open_version, space_of

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
]
