"""Facts about a configuration that decide its memory.

Config, sources, longest sequence ──spec_of()──▶ memory.facts.Spec
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from supermax.agents import agent_of
from supermax.memory.facts import HALF, Spec
from supermax.memory.saved_activations import adapter_by_token
from supermax.tasks.shapes import adapted_layers, encoder_of
from supermax.training.config import AdapterConfig, Config
from supermax.training.models.heads import Fusion, Pooling, head, token_head
from supermax.training.models.sources import Source
from supermax.training.prepare import max_input_length
from supermax.training.steps.execution import Execution, why_eager


def spec_of(
    config: Config,
    sources: Sequence[Source],
    execution: Execution,
    *,
    classes: int = 2,
    tokens: int | None = None,
    data: int = 0,
) -> Spec:
    """Return the facts from which the memory of a trial is estimated.

    `tokens` are those of the longest text with its question, before truncation; None: the maximum
    length. `data` are the tokens of all texts.
    """
    length = min(config.text.max_length, *(max_input_length(source) for source in sources))
    overlap = length / max(length // 4, length - config.text.doc_stride)  # windows repeat tokens
    return Spec(
        encoders=tuple(encoder_of(source) for source in sources),
        effective_batch=config.train.effective_batch,
        length=length if tokens is None else min(length, max(1, tokens)),
        device=execution.device.split(":")[0],
        precision=execution.precision,
        optimizer=config.optim.name,
        frozen=config.encoder.frozen_layers,
        **_adapter(config.adapter, sources, execution),
        dropout=config.encoder.dropout != 0,
        attention_dropout=config.encoder.attention_dropout != 0,
        head=_head_parameters(config, sources, classes),
        token_width=_token_width(config, sources[-1].config.hidden_size, classes),
        data=int(data * (overlap if tokens is None or tokens > length else 1.0)),
        captured=why_eager(replace(execution, checkpoint_activations=False)) is None,
    )


def _adapter(
    config: AdapterConfig, sources: Sequence[Source], execution: Execution
) -> dict[str, int]:
    """Return the fields of a Spec that an adapter decides."""
    if config.name == "none":
        return {}
    layers = [adapted_layers(source, config.target_modules) for source in sources]
    facts = config.rank, config.dropout > 0, execution.precision in HALF
    return {
        "adapter": sum(each.parameters(config.rank) for each in layers),
        "adapter_bytes": sum(adapter_by_token(each, *facts) for each in layers),
    }


def _head_parameters(config: Config, sources: Sequence[Source], classes: int) -> int:
    """Count the parameters of pooling, fusion and heads."""
    agent = agent_of(config.agent)
    sizes = [int(source.config.hidden_size) for source in sources]
    parts: list[nn.Module] = []
    with torch.device("meta"):
        parts += [Pooling(config.head.pooling, size) for size in sizes]
        size = sizes[0]
        if len(sizes) == 2:
            parts.append(Fusion(config.fusion, sizes[1], sizes[0]))
            size = config.fusion.width
        if agent.classes or agent.label_sets:
            parts.append(head(config.head, size, classes))
        if agent.numbers:
            parts.append(head(config.head, size, 1))
        if agent.spans:
            parts.append(head(config.head, size, 2))
        if agent.entities:
            parts.append(token_head(config.head, sources[0].config, 2 * classes + 1))
    return sum(p.numel() for part in parts for p in part.parameters())


def _token_width(config: Config, hidden: int, classes: int) -> int:
    """Return the activations of each token outside the encoder, in numbers."""
    width = hidden // 3 if config.head.pooling in ("max", "attention", "mean") else 0
    agent = agent_of(config.agent)
    if agent.encoders == 2:
        width += config.fusion.width
    if agent.spans:
        width += hidden // 5 + (config.head.depth - 1) * config.head.width // 2
    if agent.entities:
        width += hidden // 5 + 2 * (2 * classes + 1)  # logits, probabilities, and their gradients
    return width
