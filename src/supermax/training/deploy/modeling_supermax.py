"""Models exported by Supermax, for transformers alone: encoders, pooling, fusion, heads.

    AutoModelForSequenceClassification.from_pretrained(FOLDER, trust_remote_code=True)

This file imports torch and transformers only. The models predict; they compute no loss.

It travels with an export, and so repeats pooling, fusion and heads of `training/models/heads.py`
on purpose. `tests/training/deploy/test_modeling_supermax.py` compares both: change them together.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import (
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils import ModelOutput

_ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU}
_LINEAR_HEAD = {"depth": 1, "width": 256, "activation": "gelu", "dropout": 0.1}


class SupermaxConfig(PretrainedConfig):
    """Configuration of the encoders, as dictionaries, and of everything above them.

    head: depth, width, activation, dropout. fusion: name, width. heads: names of the heads.
    """

    model_type = "supermax"

    def __init__(
        self,
        encoders: Sequence[dict[str, Any]] = (),
        pooling: str = "cls",
        head: dict[str, Any] | None = None,
        fusion: dict[str, Any] | None = None,
        heads: Sequence[str] = ("class_head",),
        **kwargs: Any,
    ) -> None:
        self.encoders = list(encoders)
        self.pooling = pooling
        self.head = {**_LINEAR_HEAD, **(head or {})}
        self.fusion = fusion
        self.heads = list(heads)
        super().__init__(**kwargs)


@dataclass
class SupermaxOutput(ModelOutput):
    """Outputs of all heads; None for a head that the model does not have.

    logits: classes or labels [batch, classes], the number in the unit of the data [batch, 1], or
    classes of tokens [batch, length, classes].
    start_logits, end_logits: [batch, length]; of the second encoder if there are two.
    """

    logits: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None


class _Encoder(nn.Module):
    """Encoder without its pooler, which is given token types only if it uses them."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        config = AutoConfig.for_model(**{k: v for k, v in settings.items() if k != "dtype"})
        self.model = AutoModel.from_config(config)
        if getattr(self.model, "pooler", None) is not None:
            self.model.pooler = None
        accepts = inspect.signature(self.model.forward).parameters
        types = getattr(config, "type_vocab_size", 0) or 0
        self.takes_types = "token_type_ids" in accepts and types > 1
        self.size: int = config.hidden_size

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor | None) -> Tensor:
        more = {"token_type_ids": types} if self.takes_types and types is not None else {}
        states: Tensor = self.model(input_ids=ids, attention_mask=mask, **more).last_hidden_state
        return states


class _Pooling(nn.Module):
    """Pooling of token states to one vector per sequence, without padding."""

    def __init__(self, kind: str, size: int) -> None:
        super().__init__()
        self.kind = kind
        if kind == "attention":
            self.score = nn.Linear(size, 1)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        if self.kind == "cls":
            return states[:, 0]
        if self.kind == "last":
            last = mask.sum(dim=1).sub(1).clamp(min=0)  # padding is on the right
            return states.gather(1, last.view(-1, 1, 1).expand(-1, 1, states.shape[-1])).squeeze(1)
        real = mask.unsqueeze(-1).bool()
        if self.kind == "max":
            return states.masked_fill(~real, torch.finfo(states.dtype).min).amax(dim=1)
        if self.kind == "mean":
            return (states * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)
        scores = self.score(states)
        scores = scores.masked_fill(~real, torch.finfo(scores.dtype).min)
        weighted: Tensor = scores.softmax(dim=1) * states * real
        return weighted.sum(dim=1)


class _Fusion(nn.Module):
    """Fusion of the second encoder's states with those of the first."""

    def __init__(self, kind: str, width: int, queries: int, states: int) -> None:
        super().__init__()
        self.kind = kind
        self.of_query = nn.Linear(queries, width)
        self.of_state = nn.Linear(states, width)
        if kind == "concat":
            self.mix = nn.Linear(2 * width, width)
        elif kind == "gated":
            self.gate = nn.Linear(2 * width, width)

    def forward(self, queries: Tensor, states: Tensor, pooled: Tensor, mask: Tensor) -> Tensor:
        query = self.of_query(queries)
        if self.kind == "attention":
            keys = self.of_state(states)
            scores = query @ keys.transpose(1, 2) / keys.shape[-1] ** 0.5
            scores = scores.masked_fill(~mask.bool().unsqueeze(1), torch.finfo(scores.dtype).min)
            attended: Tensor = query + scores.softmax(dim=-1) @ keys
            return attended
        other = self.of_state(pooled).unsqueeze(1).expand_as(query)
        both = torch.cat([query, other], dim=-1)
        if self.kind == "concat":
            return nn.functional.gelu(self.mix(both))
        gate = self.gate(both).sigmoid()
        mixed: Tensor = gate * query + (1 - gate) * other
        return mixed


def _head(settings: dict[str, Any], size: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(settings["depth"] - 1):
        layers += [nn.Dropout(settings["dropout"]), nn.Linear(size, settings["width"])]
        layers.append(_ACTIVATIONS[settings["activation"]]())
        size = settings["width"]
    return nn.Sequential(*layers, nn.Dropout(settings["dropout"]), nn.Linear(size, outputs))


def _token_head(dropout: float, encoder: PretrainedConfig, outputs: int) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if encoder.model_type == "modernbert":
        from transformers.models.modernbert.modeling_modernbert import ModernBertPredictionHead

        layers["prediction"] = ModernBertPredictionHead(encoder)
    layers["dropout"] = nn.Dropout(dropout)
    layers["classifier"] = nn.Linear(encoder.hidden_size, outputs)
    return nn.Sequential(layers)


Sequences = tuple[Tensor, Tensor | None, Tensor | None]
"""Ids, attention mask and token types of one encoder [batch, length]."""


class SupermaxPreTrainedModel(PreTrainedModel):
    """One encoder, or two whose outputs are fused, with all heads."""

    config_class = SupermaxConfig

    def __init__(self, config: SupermaxConfig) -> None:
        super().__init__(config)
        encoders = [_Encoder(settings) for settings in config.encoders]
        sizes = [encoder.size for encoder in encoders]
        self.encoders = nn.ModuleList(encoders)
        self.pooling = nn.ModuleList(_Pooling(config.pooling, size) for size in sizes)
        size = sizes[0]
        self.fusion: _Fusion | None = None
        if config.fusion is not None:
            size = config.fusion["width"]
            self.fusion = _Fusion(config.fusion["name"], size, sizes[1], sizes[0])
        outputs = {"class_head": config.num_labels, "number_head": 1, "span_head": 2}
        for name in config.heads:
            if name == "token_head":
                settings: Any = encoders[0].model.config
                made = _token_head(config.head["dropout"], settings, config.num_labels)
            else:
                made = _head(config.head, size, outputs[name])
            setattr(self, name, made)
        if "number_head" in config.heads:  # mean and deviation of the training data
            self.register_buffer("scaling", torch.tensor([0.0, 1.0]))
        self.post_init()

    def outputs(self, *sequences: Sequences) -> SupermaxOutput:
        states: list[Tensor] = []
        masks: list[Tensor] = []
        pooled: list[Tensor] = []
        for encoder, pool, (ids, mask, types) in zip(
            self.encoders, self.pooling, sequences, strict=True
        ):
            masks.append(torch.ones_like(ids) if mask is None else mask)
            states.append(encoder(ids, masks[-1], types))
            pooled.append(pool(states[-1], masks[-1]))
        summary, tokens = pooled[-1], states[-1]
        if self.fusion is not None:
            summary = self.fusion(summary.unsqueeze(1), states[0], pooled[0], masks[0]).squeeze(1)
            tokens = self.fusion(tokens, states[0], pooled[0], masks[0])
        return self._logits(summary, tokens)

    def _logits(self, summary: Tensor, tokens: Tensor) -> SupermaxOutput:
        logits = starts = ends = None
        if hasattr(self, "class_head"):
            logits = self.class_head(summary)
        elif hasattr(self, "number_head"):
            logits = self.scaling[0] + self.scaling[1] * self.number_head(summary)
        elif hasattr(self, "token_head"):
            logits = self.token_head(tokens)
        if hasattr(self, "span_head"):
            starts, ends = self.span_head(tokens).unbind(dim=-1)
        return SupermaxOutput(logits=logits, start_logits=starts, end_logits=ends)


class SupermaxModel(SupermaxPreTrainedModel):
    """Outputs of all heads.

    Arguments that begin with `evidence_` are the sequences of the second encoder.
    """

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        evidence_input_ids: Tensor | None = None,
        evidence_attention_mask: Tensor | None = None,
        evidence_token_type_ids: Tensor | None = None,
    ) -> SupermaxOutput:
        sequences: list[Sequences] = [(input_ids, attention_mask, token_type_ids)]
        if evidence_input_ids is not None:
            more = (evidence_input_ids, evidence_attention_mask, evidence_token_type_ids)
            sequences.append(more)
        return self.outputs(*sequences)


class SupermaxForSequenceClassification(SupermaxPreTrainedModel):
    """The model's classes or labels, or its number in the unit of the data."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        outputs = self.outputs((input_ids, attention_mask, token_type_ids))
        return SequenceClassifierOutput(logits=outputs.logits)


class SupermaxForTokenClassification(SupermaxPreTrainedModel):
    """Classes of the tokens."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> TokenClassifierOutput:
        outputs = self.outputs((input_ids, attention_mask, token_type_ids))
        return TokenClassifierOutput(logits=outputs.logits)


class SupermaxForQuestionAnswering(SupermaxPreTrainedModel):
    """Logits of the first and the last token of the answer; position 0: no answer."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> QuestionAnsweringModelOutput:
        outputs = self.outputs((input_ids, attention_mask, token_type_ids))
        return QuestionAnsweringModelOutput(
            start_logits=outputs.start_logits, end_logits=outputs.end_logits
        )
