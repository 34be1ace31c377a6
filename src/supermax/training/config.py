"""A trial's configuration as the spaces name it: what the experiment is, not its execution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from supermax.errors import UserError
from supermax.naming import Agent
from supermax.words import listed, nearest


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


_P = TypeVar("_P", bound=_Part)


class EncoderConfig(_Part):
    name: str
    dropout: float | None = Field(None, ge=0, lt=1)
    """None: as the encoder's own configuration has it."""
    attention_dropout: float | None = Field(None, ge=0, lt=1)
    frozen_layers: int = Field(0, ge=0)


class OtherEncoderConfig(_Part):
    name: str


class TextConfig(_Part):
    max_length: int = Field(256, ge=8)
    doc_stride: int = Field(64, ge=0)
    """Tokens that two windows of a long text share."""


class TrainConfig(_Part):
    effective_batch: int = Field(32, ge=1)
    epochs: int = Field(3, ge=1)
    patience: int | None = Field(None, ge=1)
    """Epochs without a better value after which training ends; None: never."""
    min_delta: float = Field(0.0, ge=0)
    clip: float | None = Field(1.0, gt=0)
    seed: int = 1
    negative_ratio: float = Field(1.0, ge=0, le=1)
    """Share of the windows without an answer that is trained on."""


class OptimConfig(_Part):
    name: Literal["adamw", "adamw_8bit", "adafactor", "lion"] = "adamw"
    lr: float = Field(2e-5, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    eps: float = Field(1e-8, gt=0)
    layer_decay: float = Field(1.0, gt=0, le=1)


class ScheduleConfig(_Part):
    name: Literal["linear", "cosine", "cosine_restarts", "polynomial", "one_cycle"] = "linear"
    warmup: float = Field(0.1, ge=0, lt=1)
    """Share of all updates."""
    cycles: int = Field(2, ge=1)
    power: float = Field(1.0, gt=0)


class HeadConfig(_Part):
    pooling: Literal["cls", "mean", "max", "attention"] = "cls"
    depth: int = Field(1, ge=1)
    width: int = Field(256, ge=1)
    activation: Literal["gelu", "relu", "tanh", "silu"] = "gelu"
    dropout: float = Field(0.1, ge=0, lt=1)


class LossConfig(_Part):
    name: Literal["cross_entropy", "label_smoothing", "focal"] = "cross_entropy"
    smoothing: float = Field(0.1, ge=0, lt=1)
    gamma: float = Field(2.0, ge=0)
    balance: Literal["none", "weighted", "effective_number"] = "none"
    balance_beta: float = Field(0.999, gt=0, lt=1)
    evidence_weight: float = Field(0.5, ge=0, le=1)


class NoAnswerConfig(_Part):
    policy: Literal["none", "threshold", "ratio", "calibrated"] = "threshold"
    threshold: float = 0.0
    ratio: float = Field(1.0, gt=0)


class DecodeConfig(_Part):
    n_best: int = Field(10, ge=1)
    max_answer: int = Field(64, ge=1)
    """Tokens of the longest answer."""


class FusionConfig(_Part):
    name: Literal["concat", "gated", "attention"] = "concat"
    width: int = Field(256, ge=1)


class Config(_Part):
    """Everything that makes an experiment; two trials with the same one are the same."""

    agent: Agent = "criteria"
    encoder: EncoderConfig
    evidence_encoder: OtherEncoderConfig | None = None
    text: TextConfig = TextConfig()
    train: TrainConfig = TrainConfig()
    optim: OptimConfig = OptimConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    head: HeadConfig = HeadConfig()
    loss: LossConfig = LossConfig()
    no_answer: NoAnswerConfig = NoAnswerConfig()
    decode: DecodeConfig = DecodeConfig()
    fusion: FusionConfig = FusionConfig()


def read_config(data: Mapping[str, Any]) -> Config:
    """The configuration, or one UserError with every mistake in it."""
    return _read(Config, data, "The configuration has mistakes:")


def read_limits(limits: Mapping[str, Any]) -> TrainConfig:
    """What a search gives to the part `train` of every trial. Raises UserError for mistakes."""
    return _read(TrainConfig, limits, "The search's limits have mistakes:")


def _read(kind: type[_P], data: Mapping[str, Any], head: str) -> _P:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        found = []
        for detail in error.errors():
            where = ".".join(map(str, detail["loc"])) or "configuration"
            message = detail["msg"][:1].lower() + detail["msg"][1:]
            if detail["type"] == "extra_forbidden":
                message = f"there is no such key{nearest(where, _keys(kind))}"
            found.append(f"{where}: {message}")
        raise UserError(listed(head, found)) from None


def config_keys() -> list[str]:
    """All that a space may search: `optim.lr` and so on."""
    return [key for key in _keys(Config) if "." in key]


def _keys(kind: type[BaseModel], before: str = "") -> list[str]:
    """All keys, with those of the parts behind a dot."""
    found = []
    for name, field in kind.model_fields.items():
        found.append(before + name)
        for part in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(part, type) and issubclass(part, _Part):
                found += _keys(part, f"{before}{name}.")
    return found
