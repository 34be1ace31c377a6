"""Recorded fine-tuning trainings: their configurations, and the lines of a recording.

record.py writes them, tweeteval.py reads them. Needs no torch.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
)
from scipy.stats import qmc  # type: ignore[import-untyped]

RECORDING = Path(__file__).parents[1] / "results" / "fine-tuning-curves-2026-11-18.jsonl.gz"
EPOCHS = 9
SHORT = (1, 3)
"""Epochs of short schedules."""
CONFIGURATIONS, WITH_SHORT, WITH_SEEDS = 240, 60, 20
SEEDS = (2, 3)
"""Seeds of the best configurations, in addition to 1."""
SPACE: dict[str, BaseDistribution] = {
    "optim.lr": FloatDistribution(1e-5, 5e-4, log=True),
    "train.effective_batch": CategoricalDistribution([16, 32, 64]),
    "optim.weight_decay": FloatDistribution(1e-3, 0.1, log=True),
    "optim.layer_decay": FloatDistribution(0.7, 1.0),
    "schedule.name": CategoricalDistribution(["linear", "cosine"]),
    "schedule.warmup": FloatDistribution(0.0, 0.3),
    "encoder.dropout": FloatDistribution(0.0, 0.3),
    "head.dropout": FloatDistribution(0.0, 0.3),
    "head.pooling": CategoricalDistribution(["cls", "mean"]),
    "loss.name": CategoricalDistribution(["cross_entropy", "label_smoothing"]),
    "loss.balance": CategoricalDistribution(["none", "weighted"]),
}
DEFAULTS: dict[str, Any] = {
    "optim.lr": 5e-5,
    "train.effective_batch": 16,
    "optim.weight_decay": 0.01,
    "optim.layer_decay": 1.0,
    "schedule.name": "linear",
    "schedule.warmup": 0.1,
    "encoder.dropout": 0.1,
    "head.dropout": 0.1,
    "head.pooling": "mean",
    "loss.name": "cross_entropy",
    "loss.balance": "none",
}
"""Configuration 0: the defaults of the preset `standard` when the trainings were recorded."""

Kind = Literal["long", "short", "seed"]
Encoder = Literal["whole", "half"]
ENCODERS: tuple[Encoder, ...] = ("whole", "half")

TASKS = (
    "emotion",
    "irony",
    "offensive",
    "stance-abortion",
    "stance-feminist",
    "stance-hillary",
)
"""Tasks of TweetEval that were recorded."""


class Item(NamedTuple):
    """One training."""

    task: str
    encoder: Encoder
    configuration: int
    epochs: int = EPOCHS
    seed: int = 1


def configurations() -> list[dict[str, Any]]:
    """Return `DEFAULTS` and quasi-random configurations, always the same."""
    sampler = qmc.Sobol(len(SPACE), scramble=True, seed=0)
    points = sampler.random(512)[: CONFIGURATIONS - 1]
    found: list[dict[str, Any]] = [dict(DEFAULTS)]
    for point in points:
        pairs = zip(SPACE.items(), point, strict=True)
        found.append({name: _value(domain, float(x)) for (name, domain), x in pairs})
    return found


def _value(domain: BaseDistribution, x: float) -> Any:
    """Return the value at a point of the unit interval."""
    if isinstance(domain, CategoricalDistribution):
        return domain.choices[int(x * len(domain.choices))]
    assert isinstance(domain, FloatDistribution)
    if domain.log:
        return float(domain.low * (domain.high / domain.low) ** x)
    return domain.low + (domain.high - domain.low) * x


@dataclass(frozen=True)
class Line:
    """Line of a recording."""

    item: Item
    validation: list[float]
    """Macro F1 after each epoch, the first one at index 0."""
    test: list[float]
    seconds: float


def read_lines(file: Path) -> dict[Item, Line]:
    """Read the trainings that are done. The file may be compressed (.gz)."""
    if not file.exists():
        return {}
    data = file.read_bytes()
    text = (gzip.decompress(data) if file.suffix == ".gz" else data).decode()
    lines = (Line(**json.loads(line)) for line in text.splitlines())
    return {(item := Item(*line.item)): replace(line, item=item) for line in lines}
