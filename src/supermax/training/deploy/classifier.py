"""Trained model as a sequence classifier of transformers, for a head that one can represent.

    weights of encoder and head ──as_classifier()──▶ BertForSequenceClassification, …

Classifiers of transformers have a layer before the last linear one: a linear map with an
activation or a norm. It is set so that it changes nothing, which is possible in each family below.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

from supermax.training.config import Config

_SMALL = 2.0**-12
"""Factor at which tanh is linear up to 1e-6 for states of layer norms; a power of two is exact."""
_SHIFT = 32.0
"""Above it, GELU and ReLU are the identity; states of layer norms are far below it."""
_TOLERANCE = 1e-3  # of logits
_PROBE = (2, 12)  # sequences and tokens on which the classifier is compared


@dataclass(frozen=True)
class _Family:
    """Layers of a classifier, by their names in it, and how the first one becomes the identity."""

    dense: str
    output: str
    identity: Callable[[nn.Module, nn.Linear, nn.Linear, nn.Module], None]
    settings: Mapping[str, object] = field(default_factory=dict)
    """Settings of its configuration."""


def _through_tanh(_: nn.Module, dense: nn.Linear, output: nn.Linear, __: nn.Module) -> None:
    dense.weight.copy_(_SMALL * torch.eye(dense.in_features))
    dense.bias.zero_()
    output.weight.div_(_SMALL)


def _above_zero(_: nn.Module, dense: nn.Linear, output: nn.Linear, __: nn.Module) -> None:
    dense.weight.copy_(torch.eye(dense.in_features))
    dense.bias.fill_(_SHIFT)
    output.bias.sub_(_SHIFT * output.weight.double().sum(1).to(output.bias))


def _without_activation(_: nn.Module, dense: nn.Linear, __: nn.Linear, ___: nn.Module) -> None:
    dense.weight.copy_(torch.eye(dense.in_features))
    dense.bias.zero_()


def _through_norm(model: nn.Module, dense: nn.Linear, _: nn.Linear, base: nn.Module) -> None:
    """Undo the scale of the encoder's last norm, since its states are normalised again."""
    norm_before: Any = base.get_submodule("final_norm")
    scale: Tensor = norm_before.weight
    dense.weight.copy_(torch.diag(1 / scale))
    norm: Any = model.get_submodule("head.norm")
    norm.weight.copy_(scale)


_ROBERTA = _Family("classifier.dense", "classifier.out_proj", _through_tanh)
_FAMILIES = {
    "bert": _Family("bert.pooler.dense", "classifier", _through_tanh),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "electra": _Family("classifier.dense", "classifier.out_proj", _above_zero),
    "distilbert": _Family("pre_classifier", "classifier", _above_zero),
    "deberta-v2": _Family(
        "pooler.dense", "classifier", _without_activation, {"pooler_hidden_act": "linear"}
    ),
    "eurobert": _Family("dense", "classifier", _above_zero, {"classifier_pooling": "bos"}),
    "modernbert": _Family(
        "head.dense",
        "classifier",
        _through_norm,
        {
            "classifier_activation": "linear",
            "classifier_pooling": "cls",
            "classifier_bias": False,
            "norm_bias": False,
        },
    ),
}


def as_classifier(
    encoder: PreTrainedModel,
    config: Config,
    weights: Mapping[str, Tensor],
    names: Sequence[str],
) -> PreTrainedModel | None:
    """Return the model as a classifier for several labels, with these weights; None if
    transformers has none for its family, its pooling or the depth of its head."""
    family = _FAMILIES.get(encoder.config.model_type)
    if family is None or (config.head.pooling, config.head.depth) != ("cls", 1):
        return None
    settings = copy.deepcopy(encoder.config)
    settings.update({**family.settings, "problem_type": "multi_label_classification"})
    settings.id2label = dict(enumerate(names))
    settings.label2id = {name: index for index, name in enumerate(names)}
    model: PreTrainedModel = transformers.AutoModelForSequenceClassification.from_config(
        settings, dtype=torch.float32
    )
    model.eval()
    base: nn.Module = getattr(model, model.base_model_prefix)
    prefix = "encoders.0.model."
    states = {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}
    missing = base.load_state_dict(states, strict=False).missing_keys
    if any(not name.startswith("pooler.") for name in missing):
        return None
    head = [weights[name] for name in sorted(weights) if name.startswith("class_head.")]
    bias, weight = head  # sorted: …bias, …weight
    dense, output = (model.get_submodule(name) for name in (family.dense, family.output))
    if not isinstance(dense, nn.Linear) or not isinstance(output, nn.Linear):
        return None
    with torch.no_grad():
        output.weight.copy_(weight)
        output.bias.copy_(bias)
        family.identity(model, dense, output, base)
    return model if _is_same(model, base, weight, bias) else None


@torch.inference_mode()
def _is_same(model: PreTrainedModel, base: nn.Module, weight: Tensor, bias: Tensor) -> bool:
    """Return True if the classifier has the logits of the head on random tokens."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, model.config.vocab_size, _PROBE, generator=generator)
    mask = torch.ones_like(ids)
    states = base(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]
    wanted = nn.functional.linear(states, weight, bias)
    found: Tensor = model(input_ids=ids, attention_mask=mask).logits
    return bool((found - wanted).abs().max() <= _TOLERANCE)
