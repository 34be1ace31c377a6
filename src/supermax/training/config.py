"""Configuration of a trial, under the names of the search spaces. Execution is not part of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from supermax._util.text import listed, nearest
from supermax.agents import AGENTS, agent_of, stored_name
from supermax.agents.validation import AgentName
from supermax.errors import UserError


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


_P = TypeVar("_P", bound=_Part)


class EncoderConfig(_Part):
    name: str
    dropout: float | None = Field(None, ge=0, lt=1)
    """Dropout of hidden states; None: the value of the encoder's own configuration."""
    attention_dropout: float | None = Field(None, ge=0, lt=1)
    """Dropout of attention weights; None: the value of the encoder's own configuration."""
    frozen_layers: int = Field(0, ge=0)
    """First layers that are not trained, with the embeddings; 0: all are trained."""


class OtherEncoderConfig(_Part):
    name: str


class AdapterConfig(_Part):
    """Low-rank matrices that are trained in place of the encoder's own weights."""

    name: Literal["none", "lora"] = "none"
    rank: int = Field(8, ge=1)
    ratio: float = Field(2.0, gt=0)
    """Scaling of the matrices' product: lora_alpha / r."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout of the adapter's inputs."""
    target_modules: Literal["attention", "all-linear"] = "all-linear"
    """Linear layers that are adapted: those of attention, or all in the encoder's layers."""

    @property
    def alpha(self) -> float:
        """Numerator of the scaling, as LoRA has it: lora_alpha."""
        return self.ratio * self.rank


class TextConfig(_Part):
    max_length: int = Field(256, ge=8)
    """Tokens of a sequence, with the question and special tokens."""
    doc_stride: int = Field(64, ge=0)
    """Tokens that two consecutive windows of a long text share."""
    long_texts: Literal["cut", "windows"] = "cut"
    """A text to classify, or to predict a number from, that is longer than max_length: it is
    truncated, or it becomes windows whose outputs are pooled. Spans and entities are always found
    in windows."""
    window_pooling: Literal["mean", "max"] = "mean"
    """Pooling of the logits of classes or labels, or of the numbers, of a text's windows."""


class TrainConfig(_Part):
    effective_batch: int = Field(32, ge=1)
    """Sequences of an optimizer update, over all of its micro-batches."""
    epochs: int = Field(3, ge=1)
    patience: int | None = Field(None, ge=1)
    """Epochs without a better value after which training ends; None: no early stopping."""
    min_delta: float = Field(0.0, ge=0)
    """Least improvement of the objective that counts as better."""
    clip: float | None = Field(1.0, gt=0)
    """Maximum norm of the gradients; None: no clipping."""
    seed: int = 1
    negative_ratio: float = Field(1.0, ge=0, le=1)
    """Share of the windows without an answer that is trained on."""
    label_all_tokens: bool = False
    """Entities: all tokens of a word are trained on, later ones as I-; False: the first alone."""


class OptimConfig(_Part):
    name: Literal["adamw", "adamw_8bit", "adafactor", "lion"] = "adamw"
    lr: float = Field(2e-5, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    eps: float = Field(1e-8, gt=0)
    layer_decay: float = Field(1.0, gt=0, le=1)
    """Factor of the learning rate from one encoder layer to the layer below it."""


class ScheduleConfig(_Part):
    name: Literal["linear", "cosine", "cosine_restarts", "polynomial", "one_cycle"] = "linear"
    warmup: float = Field(0.1, ge=0, lt=1)
    """Warm-up as a share of all updates."""
    cycles: int = Field(2, ge=1)
    power: float = Field(1.0, gt=0)


class HeadConfig(_Part):
    pooling: Literal["cls", "mean", "max", "attention", "last"] = "cls"
    """`last`: the state of the last token, the only one of a causal decoder that has seen the
    whole text."""
    depth: int = Field(1, ge=1)
    width: int = Field(256, ge=1)
    """Hidden size of the head."""
    activation: Literal["gelu", "relu", "tanh", "silu"] = "gelu"
    dropout: float = Field(0.1, ge=0, lt=1)


class LossConfig(_Part):
    name: Literal["cross_entropy", "label_smoothing", "focal", "mse", "huber", "mae", "bce"] = (
        "cross_entropy"
    )
    """The default of the agent regression is mse, that of multilabel is bce."""
    smoothing: float = Field(0.1, ge=0, lt=1)
    gamma: float = Field(2.0, ge=0)
    delta: float = Field(1.0, gt=0)
    """Residual in standard deviations from which the Huber loss is linear."""
    balance: Literal["none", "weighted", "effective_number"] = "none"
    balance_beta: float = Field(0.999, gt=0, lt=1)
    evidence_weight: float = Field(0.5, ge=0, le=1)
    """Share of the span loss in the sum of both losses."""


class NoAnswerConfig(_Part):
    policy: Literal["none", "threshold", "ratio", "calibrated"] | None = None
    """None: a threshold that is chosen in each evaluation, for the best value of the objective."""
    threshold: float = 0.0
    ratio: float = Field(1.0, gt=0)


class DecodeConfig(_Part):
    n_best: int | None = Field(None, ge=1)
    """Most likely starts, and ends, whose pairs are considered; None: chosen in each
    evaluation."""
    max_answer: int | None = Field(None, ge=1)
    """Tokens of the longest answer that is considered; None: chosen in each evaluation."""


Probability = Annotated[float, Field(ge=0, le=1)]


class LabelsConfig(_Part):
    threshold: Probability | tuple[Probability, ...] | None = None
    """Probability above which a label is predicted, one for all labels or one for each; None: one
    for each label, chosen in each evaluation."""


FORMER_DECODING: dict[str, dict[str, Any]] = {
    "no_answer": {"policy": "threshold"},
    "decode": {"n_best": 10, "max_answer": 64},
}
"""Settings that earlier versions had where a space did not search them."""


class FusionConfig(_Part):
    name: Literal["concat", "gated", "attention"] = "concat"
    width: int = Field(256, ge=1)


FULL_TRAINING = {
    "encoder.frozen_layers": (0, "all weights of the encoder are frozen anyway"),
    "optim.layer_decay": (1, "the pretrained weights, which lower rates protect, are not trained"),
}
"""Settings without a meaning under an adapter: their neutral value, and the reason."""


class Config(_Part):
    """Everything that defines an experiment: trials with equal configurations are repetitions."""

    agent: AgentName = "criteria"
    encoder: EncoderConfig
    evidence_encoder: OtherEncoderConfig | None = None
    adapter: AdapterConfig = AdapterConfig()
    text: TextConfig = TextConfig()
    train: TrainConfig = TrainConfig()
    optim: OptimConfig = OptimConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    head: HeadConfig = HeadConfig()
    loss: LossConfig = LossConfig()
    no_answer: NoAnswerConfig = NoAnswerConfig()
    decode: DecodeConfig = DecodeConfig()
    labels: LabelsConfig = LabelsConfig()
    fusion: FusionConfig = FusionConfig()

    @model_validator(mode="before")
    @classmethod
    def _default_loss(cls, data: Any) -> Any:
        """Give the loss a name of the agent's if it has none."""
        name = data.get("agent") if isinstance(data, Mapping) else None
        if not isinstance(name, str) or stored_name(name) not in AGENTS:
            return data
        default, loss = agent_of(name).losses[0], data.get("loss", {})
        if isinstance(loss, LossConfig) and "name" not in loss.model_fields_set:
            return {**data, "loss": loss.model_copy(update={"name": default})}
        if isinstance(loss, Mapping) and "name" not in loss:
            return {**data, "loss": {**loss, "name": default}}
        return data

    @model_validator(mode="after")
    def _check_head(self) -> Config:
        if agent_of(self.agent).entities and self.head.depth != 1:
            raise ValueError(
                f"head.depth is {self.head.depth}, but the agent {self.agent} has the head of "
                f"transformers, which is linear: leave it out"
            )
        return self

    @model_validator(mode="after")
    def _check_windows(self) -> Config:
        if self.text.long_texts == "windows" and not agent_of(self.agent).text_level:
            raise ValueError(
                f"text.long_texts is windows, but the agent {self.agent} cannot pool the outputs "
                f"of windows: only agents with one encoder and outputs for the whole text can. "
                f"Leave it at cut"
            )
        return self

    @property
    def window_stride(self) -> int | None:
        """Tokens that the windows of a text without spans or entities share; None: it is
        truncated."""
        return self.text.doc_stride if self.text.long_texts == "windows" else None

    @model_validator(mode="after")
    def _check_loss(self) -> Config:
        losses = agent_of(self.agent).losses
        if self.loss.name not in losses:
            has = f"the agent {self.agent} has {', '.join(losses)}"
            raise ValueError(f"loss.name is {self.loss.name}, but {has}")
        return self

    @model_validator(mode="after")
    def _check_adapter(self) -> Config:
        if self.adapter.name == "none":
            return self
        for key, (neutral, reason) in FULL_TRAINING.items():
            part, _, name = key.partition(".")
            if (value := getattr(getattr(self, part), name)) != neutral:
                raise ValueError(
                    f"{key} is {value}, but with adapter.name: {self.adapter.name} {reason}: "
                    f"leave it out, or set it to {neutral}"
                )
        return self


@dataclass(frozen=True)
class Decoding:
    """Settings that turn the outputs of a span head into answers."""

    n_best: int
    max_answer: int
    policy: Literal["none", "threshold", "ratio", "calibrated"]
    threshold: float | None = None
    """Threshold of the policy "calibrated"; None with other policies."""


@dataclass(frozen=True)
class LabelDecoding:
    """Settings that turn the probabilities of labels into sets of labels."""

    thresholds: tuple[float, ...]
    """Probability of each label above which it is predicted."""

    @property
    def threshold(self) -> None:
        """There is no threshold of spans."""
        return None


AnyDecoding = Decoding | LabelDecoding


def stored_decoding(stored: Mapping[str, Any]) -> AnyDecoding:
    """Return the decoding settings of which `asdict` made a mapping."""
    if "thresholds" in stored:
        return LabelDecoding(tuple(stored["thresholds"]))
    return Decoding(**stored)


def chooses_decoding(config: Config) -> bool:
    """Return True if an evaluation chooses settings: the agent finds spans or sets of labels, and
    not all settings are given."""
    if agent_of(config.agent).label_sets:
        return config.labels.threshold is None
    decode, policy = config.decode, config.no_answer.policy
    is_open = None in (decode.n_best, decode.max_answer, policy) or policy == "calibrated"
    return agent_of(config.agent).spans and is_open


def with_decoding(config: Config, decoding: AnyDecoding) -> Config:
    """Return the configuration with these settings, which nothing has to choose any more."""
    if isinstance(decoding, LabelDecoding):
        return config.model_copy(update={"labels": LabelsConfig(threshold=decoding.thresholds)})
    decode = DecodeConfig(n_best=decoding.n_best, max_answer=decoding.max_answer)
    no_answer = config.no_answer.model_copy(update={"policy": decoding.policy})
    return config.model_copy(update={"decode": decode, "no_answer": no_answer})


def read_config(data: Mapping[str, object]) -> Config:
    """Return the configuration. Raises one UserError that lists every mistake."""
    return _read(Config, data, "The configuration has mistakes:")


def read_limits(limits: Mapping[str, object]) -> TrainConfig:
    """Return the `train` part that a search gives to every trial.

    Raises one UserError that lists every mistake.
    """
    return _read(TrainConfig, limits, "The search's limits have mistakes:")


def _read(kind: type[_P], data: Mapping[str, object], heading: str) -> _P:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        mistakes = []
        for detail in error.errors():
            where = ".".join(map(str, detail["loc"])) or "configuration"
            message = detail["msg"][:1].lower() + detail["msg"][1:]
            if detail["type"] == "extra_forbidden":
                message = f"there is no such key{nearest(where, _keys(kind))}"
            mistakes.append(f"{where}: {message}")
        raise UserError(listed(heading, mistakes)) from None


def config_keys() -> list[str]:
    """Return all keys that a space may search: `optim.lr` and so on."""
    return [key for key in _keys(Config) if "." in key]


def _keys(kind: type[BaseModel], prefix: str = "") -> list[str]:
    """Return all keys of a model, followed by the dotted keys of each of its parts."""
    keys = []
    for name, field in kind.model_fields.items():
        keys.append(prefix + name)
        for part in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(part, type) and issubclass(part, _Part):
                keys += _keys(part, f"{prefix}{name}.")
    return keys
