"""Files with which transformers loads an exported model as a whole, without Supermax.

    Prepared, weights ──stock_model()──▶ StockModel or None ──write_model()──▶ files

If a class of transformers computes the same, the files are that class's own. Otherwise
modeling_supermax.py comes with them, which `trust_remote_code=True` allows to run.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
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
from supermax.training.models.encoders import no_deprecation_warnings
from supermax.training.prepare import Prepared, max_input_length

WEIGHTS = "model.safetensors"
HEADS = "heads.safetensors"
"""Heads under the names of Supermax, beside weights in the format of a class of transformers."""
CODE = "modeling_supermax.py"
ENCODER = "encoders.0.model."
"""Prefix of the encoder's weights in a model of Supermax."""


@dataclass(frozen=True)
class _Family:
    """Names of the weights in the task models of an architecture."""

    encoder: str
    """Prefix of the encoder's weights."""
    dense: str
    """Hidden layer of the head for sequence classification."""
    out: str
    """Last layer of that head."""
    activation: str | None
    """Activation of the hidden layer; None: any, set by `pooler_hidden_act`."""
    dropouts: tuple[str, ...] = ("classifier_dropout",)
    """Settings of that head's dropout."""


_ROBERTA = _Family("roberta.", "classifier.dense", "classifier.out_proj", "tanh")
_FAMILIES = {
    "bert": _Family("bert.", "bert.pooler.dense", "classifier", "tanh"),
    "roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "electra": _Family("electra.", "classifier.dense", "classifier.out_proj", "gelu"),
    "deberta-v2": _Family(
        "deberta.", "pooler.dense", "classifier", None, ("cls_dropout", "pooler_dropout")
    ),
    "distilbert": _Family(
        "distilbert.", "pre_classifier", "classifier", "relu", ("seq_classif_dropout",)
    ),
}
_QUESTION_ANSWERING = "qa_outputs"


@dataclass(frozen=True)
class StockModel:
    """Model in the format of a class of transformers."""

    config: PretrainedConfig
    weights: dict[str, Tensor]
    encoder: str
    """Prefix of the encoder's weights."""


def stock_model(
    prepared: Prepared, weights: Mapping[str, Tensor], label_names: tuple[str, ...]
) -> StockModel | None:
    """Return the model as a class of transformers that computes the same; None without one."""
    agent, head = agent_of(prepared.config.agent), prepared.config.head
    encoder_config = _encoder_configs(prepared)[0]
    family = _FAMILIES.get(encoder_config.model_type)
    if family is None or agent.encoders != 1 or len(agent.targets) != 1:
        return None
    if agent.spans:
        layers = _span_layers(head, weights)
        changes = {"qa_dropout": head.dropout} if hasattr(encoder_config, "qa_dropout") else {}
    else:
        size = encoder_config.hidden_size
        layers = _class_layers(head, weights, family, size)
        changes = {**_labels(agent, label_names), **_head_settings(head, family, size)}
    if layers is None:
        return None
    config = type(encoder_config).from_dict({**encoder_config.to_dict(), **changes})
    encoder = {
        family.encoder + name.removeprefix(ENCODER): weight
        for name, weight in weights.items()
        if name.startswith(ENCODER)
    }
    model = StockModel(config, encoder | layers, family.encoder)
    auto = "AutoModelFor" + ("QuestionAnswering" if agent.spans else "SequenceClassification")
    return model if _fits(model, getattr(transformers, auto)) else None


def _encoder_configs(prepared: Prepared) -> list[PretrainedConfig]:
    return [cast(PreTrainedModel, each.model).config for each in prepared.model.encoders]


def _span_layers(head: HeadConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    if head.depth != 1:
        return None
    return _renamed(weights, "span_head.1", _QUESTION_ANSWERING)


def _class_layers(
    head: HeadConfig, weights: Mapping[str, Tensor], family: _Family, size: int
) -> dict[str, Tensor] | None:
    """Return the layers of the head for classes or a number under the names of the family."""
    prefix = "number_head" if "scaling" in weights else "class_head"
    if head.pooling != "cls":
        return None
    if head.depth == 2 and head.width == size and family.activation in (None, head.activation):
        dense = _renamed(weights, f"{prefix}.1", family.dense)
        out = _renamed(weights, f"{prefix}.4", family.out)
    elif head.depth == 1 and family.activation is None:  # a hidden layer that changes nothing
        identity = {"weight": torch.eye(size), "bias": torch.zeros(size)}
        dense = {f"{family.dense}.{name}": value for name, value in identity.items()}
        out = _renamed(weights, f"{prefix}.1", family.out)
    else:
        return None
    return dense | (_in_unit(out, weights["scaling"]) if "scaling" in weights else out)


def _head_settings(head: HeadConfig, family: _Family, size: int) -> dict[str, Any]:
    settings: dict[str, Any] = dict.fromkeys(family.dropouts, head.dropout)
    if family.activation is None:
        settings["pooler_hidden_act"] = head.activation if head.depth == 2 else "linear"
        settings["pooler_hidden_size"] = size
    return settings


def _renamed(weights: Mapping[str, Tensor], layer: str, name: str) -> dict[str, Tensor]:
    return {f"{name}.{kind}": weights[f"{layer}.{kind}"] for kind in ("weight", "bias")}


def _in_unit(layer: dict[str, Tensor], scaling: Tensor) -> dict[str, Tensor]:
    """Return a linear layer whose output is in the unit of the data, not standardised."""
    mean, deviation = scaling.double()
    scaled = {name: value.double() * deviation for name, value in layer.items()}
    scaled |= {name: value + mean for name, value in scaled.items() if name.endswith(".bias")}
    return {name: value.to(layer[name].dtype) for name, value in scaled.items()}


def _labels(agent: Agent, names: tuple[str, ...]) -> dict[str, Any]:
    if agent.numbers:
        return {"id2label": {0: "value"}, "label2id": {"value": 0}, "problem_type": "regression"}
    return {
        "id2label": dict(enumerate(names)),
        "label2id": {name: index for index, name in enumerate(names)},
        "problem_type": "single_label_classification",
    }


def _fits(model: StockModel, auto: Any) -> bool:
    """Return True if the class has exactly these weights, and put its name into the configuration.

    Another version of transformers may have renamed some.
    """
    with torch.device("meta"), no_deprecation_warnings():
        built = auto.from_config(copy.deepcopy(model.config))
    expected = {name: weight.shape for name, weight in built.state_dict().items()}
    model.config.architectures = [type(built).__name__]
    return expected == {name: weight.shape for name, weight in model.weights.items()}


def write_model(
    folder: Path, prepared: Prepared, weights: dict[str, Tensor], label_names: tuple[str, ...]
) -> str | None:
    """Write configuration, weights and tokenizer.

    Returns the prefix of the encoder's weights if they are those of a class of transformers, and
    None if they are named as in Supermax.
    """
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


def _own_config(prepared: Prepared, label_names: tuple[str, ...]) -> PretrainedConfig:
    """Return the configuration of the classes in modeling_supermax.py."""
    from supermax.training.deploy.modeling_supermax import SupermaxConfig

    config, agent = prepared.config, agent_of(prepared.config.agent)
    classes = {"AutoModel": "SupermaxModel"}
    heads = [name for name in ("class_head", "number_head", "span_head")
             if getattr(prepared.model, name) is not None]  # fmt: skip
    if agent.encoders == 1 and (agent.classes or agent.numbers):
        classes["AutoModelForSequenceClassification"] = "SupermaxForSequenceClassification"
    if agent.encoders == 1 and agent.spans:
        classes["AutoModelForQuestionAnswering"] = "SupermaxForQuestionAnswering"
    own = SupermaxConfig(
        encoders=[_public(each) for each in _encoder_configs(prepared)],
        pooling=config.head.pooling,
        head=config.head.model_dump(exclude={"pooling"}),
        fusion=config.fusion.model_dump() if agent.encoders == 2 else None,
        heads=heads,
        architectures=[list(classes.values())[min(1, len(classes) - 1)]],
        **({} if heads == ["span_head"] else _labels(agent, label_names)),
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
