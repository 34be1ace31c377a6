"""Files with which transformers loads an exported model as a whole, without Supermax.

    Prepared, weights ──stock_model()──▶ StockModel or None ──write_model()──▶ files

If a class of transformers predicts the same, the files are that class's own. Otherwise
modeling_supermax.py comes with them, which `trust_remote_code=True` allows to run.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from supermax.agents import agent_of
from supermax.agents.agent import Agent
from supermax.training.config import HeadConfig
from supermax.training.data.entities import tag_names
from supermax.training.models.assembly import Model
from supermax.training.models.encoders import no_deprecation_warnings
from supermax.training.models.sources import has_own_code
from supermax.training.prepare import Prepared, max_input_length

WEIGHTS = "model.safetensors"
HEADS = "heads.safetensors"
"""Heads under the names of Supermax, beside weights in the format of a class of transformers."""
CODE = "modeling_supermax.py"
ENCODER = "encoders.0.model."
"""Prefix of the encoder's weights in a model of Supermax."""
TOLERANCE = 1e-4
"""Largest difference of a logit; of a number, relative to its size and the data's deviation."""
_PROBE = (2, 12)  # sequences and tokens on which a class is compared
_KINDS = {
    "text-classification": "SequenceClassification",
    "question-answering": "QuestionAnswering",
    "token-classification": "TokenClassification",
}
"""Part of the names of the classes for each task, of transformers and of modeling_supermax.py."""
_HEAD_NAMES = ("class_head", "number_head", "span_head", "token_head")


@dataclass(frozen=True)
class _Family:
    """Head for sequence classification of an architecture: a hidden layer, then a linear one.

    A head without a hidden layer is exported with one that changes nothing. tanh is linear to 1e-6
    for states of layer norms that are multiplied by 2^-12 (powers of two are exact); GELU and ReLU
    are the identity for states plus 32.
    """

    dense: str
    """Name of the hidden layer."""
    out: str
    """Name of the last layer."""
    activations: tuple[str, ...]
    """Activations that the hidden layer can have."""
    dropouts: tuple[str, ...] = ("classifier_dropout",)
    """Settings of the head's dropout."""
    activation: str | None = None
    """Setting of the activation, if there is one."""
    scale: float = 1.0
    shift: float = 0.0
    norm: tuple[str, str] | None = None
    """Norm after the hidden layer, and the encoder's last norm, whose scale it repeats."""
    linear: Mapping[str, object] = field(default_factory=dict)
    """Settings with which the hidden layer changes nothing."""


_ROBERTA = _Family("classifier.dense", "classifier.out_proj", ("tanh",), scale=2.0**-12)
_FAMILIES = {
    "bert": _Family("bert.pooler.dense", "classifier", ("tanh",), scale=2.0**-12),
    "roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "electra": _Family("classifier.dense", "classifier.out_proj", ("gelu",), shift=32.0),
    "distilbert": _Family(
        "pre_classifier", "classifier", ("relu",), ("seq_classif_dropout",), shift=32.0
    ),
    "deberta-v2": _Family(
        "pooler.dense",
        "classifier",
        ("gelu", "relu", "tanh", "silu"),
        ("cls_dropout", "pooler_dropout"),
        activation="pooler_hidden_act",
        linear={"pooler_hidden_act": "linear"},
    ),
    "modernbert": _Family(
        "head.dense",
        "classifier",
        (),
        norm=("head.norm", "final_norm"),
        linear={
            "classifier_activation": "linear",
            "classifier_pooling": "cls",
            "classifier_bias": False,
            "norm_bias": False,
        },
    ),
}
_QUESTION_ANSWERING = "qa_outputs"
_TOKENS = {"classifier": "classifier", "prediction": "head"}
"""Layers of the head for the classes of tokens, and their names in transformers."""


@dataclass(frozen=True)
class StockModel:
    """Model in the format of a class of transformers."""

    config: PretrainedConfig
    weights: dict[str, Tensor]
    encoder: str
    """Prefix of the encoder's weights."""


@dataclass(frozen=True)
class _Head:
    """Layers of a head under the names of transformers, and settings of their class."""

    weights: dict[str, Tensor]
    settings: Mapping[str, object]


def stock_model(
    prepared: Prepared, weights: Mapping[str, Tensor], label_names: Sequence[str]
) -> StockModel | None:
    """Return the model as a class of transformers that predicts the same; None without one.

    Without an adapter: `weights` are merged.
    """
    agent, given = agent_of(prepared.config.agent), _encoder_configs(prepared)[0]
    if agent.encoders != 1 or len(agent.targets) != 1:
        return None
    head = _head(agent, prepared.config.head, weights, given)
    if head is None:
        return None
    changes = {**_labels(agent, label_names), **head.settings}
    config = type(given).from_dict({**given.to_dict(), **changes})
    made = _built(config, f"AutoModelFor{_KINDS[agent.targets[0].task]}")
    if made is None:
        return None
    config.architectures = [type(made).__name__]
    prefix = f"{made.base_model_prefix}."
    encoder = {
        prefix + name.removeprefix(ENCODER): weight
        for name, weight in weights.items()
        if name.startswith(ENCODER)
    }
    model = StockModel(config, encoder | head.weights, prefix)
    expected = {name: weight.shape for name, weight in made.state_dict().items()}
    if expected != {name: weight.shape for name, weight in model.weights.items()}:
        return None  # another architecture, or a version of transformers with other names
    made.load_state_dict(model.weights)
    return model if _difference(made, prepared.model, weights) <= TOLERANCE else None


def _encoder_configs(prepared: Prepared) -> list[PretrainedConfig]:
    return [cast(PreTrainedModel, each.model).config for each in prepared.model.encoders]


def _head(
    agent: Agent, head: HeadConfig, weights: Mapping[str, Tensor], encoder: PretrainedConfig
) -> _Head | None:
    """Return the head under the names of transformers; None if its class has other layers."""
    if agent.spans:
        dropout = {"qa_dropout": head.dropout} if hasattr(encoder, "qa_dropout") else {}
        layer = _renamed(weights, "span_head.1", _QUESTION_ANSWERING)
        return _Head(layer, dropout) if head.depth == 1 else None
    if agent.entities:
        own = "classifier_dropout"
        return _Head(_token_layers(weights), {own: head.dropout} if hasattr(encoder, own) else {})
    family = _FAMILIES.get(encoder.model_type)
    return None if family is None else _sequence_head(head, weights, family)


def _token_layers(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    parts = {n: n.split(".", 2) for n in weights if n.startswith("token_head.")}
    return {f"{_TOKENS[part]}.{rest}": weights[n] for n, (_, part, rest) in parts.items()}


def _sequence_head(
    head: HeadConfig, weights: Mapping[str, Tensor], family: _Family
) -> _Head | None:
    prefix = "number_head" if "scaling" in weights else "class_head"
    size = weights[f"{prefix}.1.weight"].shape[1]
    settings: dict[str, object] = dict.fromkeys(family.dropouts, head.dropout)
    if head.pooling != "cls" or head.depth > 2:
        return None
    out = _renamed(weights, f"{prefix}.{1 if head.depth == 1 else 4}", family.out)
    if "scaling" in weights:
        out = _in_unit(out, weights["scaling"])
    if head.depth == 1:
        return _Head(_with_identity(out, family, weights), {**settings, **family.linear})
    if head.width != size or head.activation not in family.activations:
        return None
    if family.activation is not None:
        settings |= {family.activation: head.activation}
    return _Head(_renamed(weights, f"{prefix}.1", family.dense) | out, settings)


def _with_identity(
    out: dict[str, Tensor], family: _Family, weights: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return a linear layer with a hidden layer before it that changes nothing."""
    weight, bias = out[f"{family.out}.weight"], out[f"{family.out}.bias"]
    identity = torch.eye(weight.shape[1])
    if family.norm is not None:  # which normalises states that are: their scale is undone before
        inner, last = family.norm
        scale = weights.get(f"{ENCODER}{last}.weight", torch.ones(weight.shape[1]))
        dense = {f"{family.dense}.weight": identity / scale, f"{inner}.weight": scale.clone()}
        return dense | out
    shifted = bias.double() - family.shift * weight.double().sum(1)
    return {
        f"{family.dense}.weight": family.scale * identity,
        f"{family.dense}.bias": torch.full((weight.shape[1],), family.shift),
        f"{family.out}.weight": weight / family.scale,
        f"{family.out}.bias": shifted.to(bias.dtype),
    }


def _renamed(weights: Mapping[str, Tensor], layer: str, name: str) -> dict[str, Tensor]:
    return {f"{name}.{kind}": weights[f"{layer}.{kind}"] for kind in ("weight", "bias")}


def _in_unit(layer: dict[str, Tensor], scaling: Tensor) -> dict[str, Tensor]:
    """Return a linear layer whose output is in the unit of the data, not standardised."""
    mean, deviation = scaling.double()
    scaled = {name: value.double() * deviation for name, value in layer.items()}
    scaled |= {name: value + mean for name, value in scaled.items() if name.endswith(".bias")}
    return {name: value.to(layer[name].dtype) for name, value in scaled.items()}


def _labels(agent: Agent, names: Sequence[str]) -> dict[str, Any]:
    """Return the settings that tell transformers of the labels."""
    if agent.numbers:
        return {"id2label": {0: "value"}, "label2id": {"value": 0}, "problem_type": "regression"}
    if not agent.named:
        return {}
    labels = tag_names(names) if agent.entities else names
    settings: dict[str, Any] = {
        "id2label": dict(enumerate(labels)),
        "label2id": {name: index for index, name in enumerate(labels)},
    }
    if agent.entities:
        return settings
    kind = "multi" if agent.label_sets else "single"
    return {**settings, "problem_type": f"{kind}_label_classification"}


def _built(config: PretrainedConfig, auto: str) -> PreTrainedModel | None:
    """Return an untrained model; None if the class is not there for this type of encoder."""
    try:
        with torch.random.fork_rng(devices=[]), no_deprecation_warnings():
            made: PreTrainedModel = getattr(transformers, auto).from_config(
                copy.deepcopy(config), dtype=torch.float32
            )
    except ValueError:
        return None
    return made.eval()


@torch.inference_mode()
def _difference(made: PreTrainedModel, model: Model, weights: Mapping[str, Tensor]) -> float:
    """Return the largest difference of the class from the model's head, on random tokens."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, made.config.vocab_size, _PROBE, generator=generator)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    outputs = made(**given)
    found = (
        outputs.logits
        if "logits" in outputs
        else torch.stack([outputs.start_logits, outputs.end_logits], -1)
    )
    states = made.base_model(**given).last_hidden_state
    name = next(name for name in _HEAD_NAMES if getattr(model, name) is not None)
    own = {n.removeprefix(f"{name}."): w for n, w in weights.items() if n.startswith(f"{name}.")}
    head = copy.deepcopy(getattr(model, name)).cpu().float().eval()
    head.load_state_dict(own)
    wanted = head(states if found.dim() == 3 else states[:, 0])
    scale: Tensor | float = 1.0
    if "scaling" in weights:
        mean, deviation = weights["scaling"].tolist()
        wanted = mean + deviation * wanted
        scale = wanted.abs() + deviation
    return float(((found - wanted).abs() / scale).max())


def write_model(
    folder: Path, prepared: Prepared, weights: dict[str, Tensor], label_names: Sequence[str]
) -> str | None:
    """Write configuration, weights and tokenizer. `weights` are those without an adapter.

    Returns the prefix of the encoder's weights if they are those of a class of transformers, and
    None if they are named as in Supermax. An encoder with code of its own gets the weights alone:
    no class of transformers, and none of modeling_supermax.py, can build it.
    """
    if any(has_own_code(config) for config in _encoder_configs(prepared)):
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
        return None
    stock = stock_model(prepared, weights, label_names)
    config = _own_config(prepared, label_names) if stock is None else stock.config
    config.dtype = torch.float32
    config.save_pretrained(folder)
    if stock is None:
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
        shutil.copyfile(Path(__file__).with_name(CODE), folder / CODE)
    else:
        save_file(stock.weights, folder / WEIGHTS, metadata={"format": "pt"})
        heads = {n: w for n, w in weights.items() if not n.startswith(ENCODER)}
        save_file(heads, folder / HEADS, metadata={"format": "pt"})
    _tokenizer(prepared).save_pretrained(folder)
    return None if stock is None else stock.encoder


def _own_config(prepared: Prepared, label_names: Sequence[str]) -> PretrainedConfig:
    """Return the configuration of the classes in modeling_supermax.py."""
    from supermax.training.deploy.modeling_supermax import SupermaxConfig

    config, agent = prepared.config, agent_of(prepared.config.agent)
    classes = {"AutoModel": "SupermaxModel"}
    if agent.encoders == 1:
        kinds = [_KINDS[target.task] for target in agent.targets]
        classes |= {f"AutoModelFor{kind}": f"SupermaxFor{kind}" for kind in kinds}
    own = SupermaxConfig(
        encoders=[_public(each) for each in _encoder_configs(prepared)],
        pooling=config.head.pooling,
        head=config.head.model_dump(exclude={"pooling"}),
        fusion=config.fusion.model_dump() if agent.encoders == 2 else None,
        heads=[name for name in _HEAD_NAMES if getattr(prepared.model, name) is not None],
        architectures=[list(classes.values())[min(1, len(classes) - 1)]],
        **_labels(agent, label_names),
    )
    module = CODE.removesuffix(".py")
    own.auto_map = {auto: f"{module}.{name}" for auto, name in classes.items()}
    own.auto_map["AutoConfig"] = f"{module}.{SupermaxConfig.__name__}"
    return own


def _public(config: PretrainedConfig) -> dict[str, Any]:
    """Return the settings without private ones, such as the folder that the encoder came from."""
    return {name: value for name, value in config.to_dict().items() if not name.startswith("_")}


def _tokenizer(prepared: Prepared) -> PreTrainedTokenizerBase:
    """Return the first tokenizer with the length of the model's sequences as its maximum."""
    tokenizer = copy.deepcopy(prepared.tokenizers[0])
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()  # of its last call
    backend.no_padding()
    longest = max_input_length(prepared.sources[0])
    tokenizer.model_max_length = min(prepared.config.text.max_length, longest)
    return cast(PreTrainedTokenizerBase, tokenizer)
