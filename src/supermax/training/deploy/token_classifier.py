"""Token classification model of transformers with the weights of a trained model."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import torch
import transformers

from supermax.training.data.entities import tag_names
from supermax.training.prepare import Prepared

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_ENCODER, _HEAD = "encoders.0.model.", "token_head."
_PARTS = {"classifier.": "classifier.", "prediction.": "head."}
"""Prefixes of the head's weights here, and in transformers."""


def token_classifier(
    prepared: Prepared, weights: Mapping[str, torch.Tensor], types: Sequence[str]
) -> PreTrainedModel | None:
    """Return the model that `AutoModelForTokenClassification` has for the encoder; None if it has
    none, or one with another head, or if this is no model for entities."""
    if prepared.model.token_head is None:
        return None
    names = dict(enumerate(tag_names(types)))
    encoder = cast("PreTrainedModel", prepared.model.encoders[0].model)
    config: PretrainedConfig = copy.deepcopy(encoder.config)
    config.id2label, config.label2id = names, {name: i for i, name in names.items()}
    if hasattr(config, "classifier_dropout"):
        config.classifier_dropout = prepared.config.head.dropout
    try:
        made = transformers.AutoModelForTokenClassification.from_config(
            config, dtype=torch.float32
        )
    except ValueError:  # there is none for this type of encoder
        return None
    state = {}
    for name, weight in weights.items():
        if name.startswith(_ENCODER):
            state[f"{made.base_model_prefix}.{name.removeprefix(_ENCODER)}"] = weight
        elif name.startswith(_HEAD):
            own = name.removeprefix(_HEAD)
            part = next(prefix for prefix in _PARTS if own.startswith(prefix))
            state[_PARTS[part] + own.removeprefix(part)] = weight
    if set(made.state_dict()) != set(state):
        return None
    made.load_state_dict(state)
    return made
