"""Models of the agents: encoders, pooling and fusion, with heads for classes, spans, a number,
classes of tokens.

Inputs ──encoder──▶ states ──pooling──▶ class head ──▶ class logits
                      └───────────────▶ span head ──▶ start and end logits
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from supermax.agents import agent_of
from supermax.training.config import Config
from supermax.training.models.encoders import depth_of, freeze, layer_list
from supermax.training.models.heads import Fusion, Pooling, head, token_head
from supermax.training.models.packing import Packing, can_pack, packed_states

if TYPE_CHECKING:
    from transformers import PreTrainedModel


ADAPTER = ".lora_"
"""Part of the names of an adapter's parameters, as peft names them."""


@dataclass(frozen=True)
class Inputs:
    """Sequences of one encoder [batch, length], padded; with `packing`, computed in fewer rows."""

    ids: Tensor
    mask: Tensor
    types: Tensor
    packing: Packing | None = None

    def to(self, device: str) -> Inputs:
        ids, mask, types = (
            t.to(device, non_blocking=True) for t in (self.ids, self.mask, self.types)
        )
        return Inputs(ids, mask, types, None if self.packing is None else self.packing.to(device))

    @property
    def tokens(self) -> int:
        """Number of tokens that the encoder computes, padding included."""
        packing = self.packing
        return self.ids.numel() if packing is None else packing.rows * packing.length


@dataclass(frozen=True)
class Outputs:
    """Logits of the heads; None for a head that the model does not have.

    classes: [batch, classes or labels], the standardised number [batch, 1], or the classes of
    tokens [batch, length, classes]; starts and ends: [batch, length].
    """

    classes: Tensor | None = None
    starts: Tensor | None = None
    ends: Tensor | None = None


@dataclass(frozen=True)
class Scaling:
    """Mean and standard deviation of the numbers of a training split."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Scaling:
        """Return those of some numbers; a deviation of 1 if they are all the same."""
        return cls(float(values.mean()), float(values.std()) or 1.0)


class Encoder(nn.Module):
    """Encoder that is given token types only if it uses them, and sequences packed or padded."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        accepts = inspect.signature(model.forward).parameters
        config = model.config
        self.size: int = config.hidden_size
        type_count = getattr(config, "type_vocab_size", 0) or 0
        self.takes_types = "token_type_ids" in accepts and type_count > 1
        self.packs = can_pack(model)
        """The encoder supports packed sequences."""

    def forward(self, inputs: Inputs) -> Tensor:
        if inputs.packing is not None:
            types = inputs.types if self.takes_types else None
            return packed_states(self.model, inputs.ids, inputs.mask, types, inputs.packing)
        more = {"token_type_ids": inputs.types} if self.takes_types else {}
        states: Tensor = self.model(
            input_ids=inputs.ids, attention_mask=inputs.mask, **more
        ).last_hidden_state
        return states


class _Encoders(nn.ModuleList):
    if TYPE_CHECKING:  # torch knows of its elements only that they are modules

        def __iter__(self) -> Iterator[Encoder]: ...


class Model(nn.Module):
    """One encoder, or two whose outputs are fused; one head or two."""

    scaling: Tensor

    def __init__(self, config: Config, encoders: list[nn.Module], classes: int) -> None:
        super().__init__()
        self.has_adapter = False
        """The encoders are frozen, and an adapter is trained in their place (adapters.py)."""
        self.encoders = _Encoders(Encoder(encoder) for encoder in encoders)
        for encoder in encoders:
            freeze(encoder, config.encoder.frozen_layers)
        sizes = [encoder.size for encoder in self.encoders]
        self.pooling = nn.ModuleList(Pooling(config.head.pooling, size) for size in sizes)
        size = sizes[0]
        self.fusion: Fusion | None = None
        if len(encoders) == 2:
            self.fusion = Fusion(config.fusion, sizes[1], sizes[0])
            size = config.fusion.width
        agent = agent_of(config.agent)
        classifies = agent.classes or agent.label_sets
        self.class_head = head(config.head, size, classes) if classifies else None
        self.number_head = head(config.head, size, 1) if agent.numbers else None
        if agent.numbers:
            self.register_buffer("scaling", torch.tensor([0.0, 1.0], dtype=torch.float64))
        self.span_head = head(config.head, size, 2) if agent.spans else None
        self.token_head: nn.Sequential | None = None
        if agent.entities:
            outputs = 2 * classes + 1  # O, and B- and I- of each type
            settings: Any = encoders[0].config
            self.token_head = token_head(config.head, settings, outputs)

    def forward(self, *inputs: Inputs) -> Outputs:
        states = [encoder(its) for encoder, its in zip(self.encoders, inputs, strict=True)]
        pooled = [
            pool(hidden, its.mask)
            for pool, hidden, its in zip(self.pooling, states, inputs, strict=True)
        ]
        summary, tokens = pooled[-1], states[-1]
        if self.fusion is not None:
            first, mask = states[0], inputs[0].mask
            summary = self.fusion(summary.unsqueeze(1), first, pooled[0], mask).squeeze(1)
            tokens = self.fusion(tokens, first, pooled[0], mask)
        if self.token_head is not None:
            return Outputs(self.token_head(tokens))
        own = self.class_head if self.number_head is None else self.number_head
        classes = own(summary) if own is not None else None
        if self.span_head is None:
            return Outputs(classes)
        starts, ends = self.span_head(tokens).unbind(dim=-1)
        return Outputs(classes, starts, ends)

    @property
    def unit(self) -> Scaling | None:
        """Mean and deviation that numbers are standardised with; None without a head for them."""
        return None if self.number_head is None else Scaling(*self.scaling.tolist())

    def set_scaling(self, scaling: Scaling) -> None:
        """Store mean and deviation with the weights."""
        numbers = [scaling.mean, scaling.deviation]
        self.scaling.copy_(torch.tensor(numbers, dtype=torch.float64))

    def saved_state(self) -> dict[str, Tensor]:
        """Return the weights that checkpoints hold: all of them, or with an adapter those that are
        not frozen. Preparing the trial again gives the frozen ones."""
        frozen = {name for name, p in self.named_parameters() if not p.requires_grad}
        left_out = frozen if self.has_adapter else set()
        return {name: w for name, w in self.state_dict().items() if name not in left_out}

    def load_saved(self, weights: Mapping[str, Tensor]) -> None:
        """Load what `saved_state` returned: heads and adapter together. Raises RuntimeError where
        some of it is missing."""
        if differences := sorted(self.saved_state().keys() ^ weights.keys()):
            raise RuntimeError(f"Missing or unexpected weights: {', '.join(differences[:5])}")
        self.load_state_dict(weights, strict=False)

    def layers_above(self) -> dict[str, int]:
        """Return the number of layers above each parameter in its own encoder: 0 in the last
        layer, the encoder's depth for its embeddings. Parameters of heads are not included."""
        above: dict[str, int] = {}
        for i, encoder in enumerate(self.encoders):
            layers = len(layer_list(encoder.model)[1])
            for name, depth in depth_of(encoder.model).items():
                above[f"encoders.{i}.model.{name}"] = layers - depth
        return above

    def checkpoint_activations(self) -> None:
        """Recompute activations in the backward pass: slower, with far less memory."""
        for encoder in self.encoders:
            encoder.model.gradient_checkpointing_enable(
                gradient_checkpointing_kwargs={"use_reentrant": False}
            )

    @property
    def new_parameters(self) -> list[str]:
        """Names of parameters without pretrained weights, which are trained from scratch."""
        return [name for name, _ in self.named_parameters() if not name.startswith("encoders.")]


def count(model: nn.Module) -> int:
    """Return the number of parameters, frozen ones included. Those of an adapter are not counted:
    an exported model has them merged."""
    return sum(p.numel() for name, p in model.named_parameters() if ADAPTER not in name)
