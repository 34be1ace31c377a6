"""Encoders of Hugging Face: loaded completely or not at all; their layers, freezing, dropouts.

Source ──prepared_config()──▶ configuration ──load_encoder()──▶ encoder
"""

from __future__ import annotations

import contextlib
import copy
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
import transformers  # imports AutoModel on access: takes seconds, not every process needs it
from torch import Tensor, nn
from transformers import PretrainedConfig

from supermax._util.text import listed
from supermax.errors import UserError
from supermax.training.models.sources import Source, has_own_code

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_HIDDEN = (
    "hidden_dropout_prob",
    "dropout",
    "embedding_dropout",
    "mlp_dropout",
    "hidden_dropout",
    "resid_pdrop",
    "embd_pdrop",
)
_OF_POSITIONS = ("encoder.LayerNorm.weight", "encoder.LayerNorm.bias")
"""DeBERTa's norm of its relative position embeddings, which every layer uses."""
_ATTENTION = ("attention_probs_dropout_prob", "attention_dropout", "attn_pdrop")
DROPOUTS = (*_HIDDEN, *_ATTENTION)
_UNREAD = {"eurobert": ("hidden_dropout",)}
"""Keys that published configurations have although the model type does not read them."""


def dropout_keys(config: PretrainedConfig) -> dict[str, list[str]]:
    """Return the keys of an encoder's dropouts, by the parameter that sets them; an empty list
    where the encoder has no such dropout."""
    unread = _UNREAD.get(config.model_type, ())
    return {
        name: [key for key in keys if hasattr(config, key) and key not in unread]
        for name, keys in (("dropout", _HIDDEN), ("attention_dropout", _ATTENTION))
    }


def check_dropouts(
    sources: Sequence[Source], dropout: float | None, attention_dropout: float | None
) -> None:
    """Raise UserError if a dropout above 0 would be set that none of the encoders has."""
    values = {"dropout": dropout, "attention_dropout": attention_dropout}
    for name, value in values.items():
        if value and not any(dropout_keys(source.config)[name] for source in sources):
            names = " and ".join(dict.fromkeys(f"'{source.name}'" for source in sources))
            raise UserError(
                f"encoder.{name} is {value:g}, but {names} has no such dropout. "
                f"Set encoder.{name} to 0, or leave it out."
            )


def prepared_config(
    source: Source, dropout: float | None, attention_dropout: float | None, **ids: int | None
) -> PretrainedConfig:
    """Return the configuration with the trial's dropouts, as far as the encoder has them; for an
    untrained encoder also with the special ids of its tokenizer."""
    config = type(source.config).from_dict(source.config.to_dict())
    values = {"dropout": dropout, "attention_dropout": attention_dropout}
    for name, keys in dropout_keys(config).items():
        for key in keys if values[name] is not None else ():
            setattr(config, key, values[name])
    if not source.trained:
        for key, value in ids.items():
            if value is not None:
                setattr(config, key, value)
    return config


def load_encoder(source: Source, config: PretrainedConfig) -> PreTrainedModel:
    """Return the encoder with all its weights, in fp32 on the CPU, without its pooler.

    Raises UserError if weights are missing: none stays on the meta device or is initialised
    randomly without notice.
    """
    model = finish_loading(
        untrained(config) if source.place is None else _pretrained(source, config)
    )
    if meta := [name for name, parameter in model.named_parameters() if parameter.is_meta]:
        raise UserError(listed(f"The weights of '{source.name}' were not loaded:", meta[:5]))
    return model


def finish_loading(model: PreTrainedModel) -> PreTrainedModel:
    """Remove the pooler, which a pooling of our own replaces, and cache relative positions.

    A decoder does not return its keys and values, which only generation needs.
    """
    if getattr(model.config, "use_cache", False):
        model.config.use_cache = False
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    _cache_positions(model)
    return model


def _cache_positions(model: PreTrainedModel) -> None:
    """Cache DeBERTa's relative positions by sequence length.

    It computes them in every forward pass with a CPU-GPU synchronisation, which capture does not
    allow. They depend on the length alone.
    """
    stack = getattr(model, "encoder", None)
    if stack is None or not hasattr(stack, "get_rel_pos"):
        return
    build: Callable[..., Tensor] = type(stack).get_rel_pos
    stack_ref = weakref.ref(stack)
    cached: dict[tuple[int, torch.device], Tensor] = {}

    def positions(
        states: Tensor, query_states: Tensor | None = None, relative_pos: Tensor | None = None
    ) -> Tensor:
        if query_states is not None or relative_pos is not None:
            return build(stack_ref(), states, query_states, relative_pos)
        key = (states.size(-2), states.device)
        if key not in cached:
            if states.is_cuda and torch.cuda.is_current_stream_capturing():
                # Not cached: a tensor of a capture has no values until the graph is replayed.
                return build(stack_ref(), states)
            with torch.inference_mode(False):  # inference tensors could not be used in training
                cached[key] = build(stack_ref(), states)
        return cached[key]

    stack.get_rel_pos = positions


def uncache_positions(model: PreTrainedModel) -> None:
    """Compute DeBERTa's relative positions in every forward pass again."""
    if (stack := getattr(model, "encoder", None)) is not None:
        vars(stack).pop("get_rel_pos", None)


def prepare_for_length(encoder: PreTrainedModel, length: int, device: str) -> None:
    """Compute what depends on the sequence length alone, before a step of it is captured."""
    stack = getattr(encoder, "encoder", None)
    if stack is not None and hasattr(stack, "get_rel_pos"):
        stack.get_rel_pos(torch.empty((1, length, 1), device=device))


def untrained(config: PretrainedConfig) -> PreTrainedModel:
    """Return an encoder with random weights from its configuration."""
    with no_deprecation_warnings():
        # A copy: transformers sets the dtype on the configuration, which identifies an encoder.
        return transformers.AutoModel.from_config(
            copy.deepcopy(config), dtype=torch.float32, trust_remote_code=has_own_code(config)
        )


def _pretrained(source: Source, config: PretrainedConfig) -> PreTrainedModel:
    # Random weights that loading overwrites must not advance the random number generator.
    with no_deprecation_warnings(), torch.random.fork_rng(devices=[]):
        model, report = transformers.AutoModel.from_pretrained(
            source.place,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=source.trusted,
            output_loading_info=True,
        )
    if missing := sorted(k for k in report["missing_keys"] if not k.startswith("pooler.")):
        heading = f"The weights of '{source.name}' are not complete."
        raise UserError(listed(f"{heading} These would be initialised randomly:", missing[:5]))
    return model


@contextlib.contextmanager
def no_deprecation_warnings() -> Iterator[None]:
    """Ignore warnings that DeBERTa's module uses functions that torch has deprecated."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*torch\.jit\.script", DeprecationWarning)
        yield


# Structure of encoders.


def import_model(source: Source) -> None:
    """Import the module of the encoder's model type without building an encoder. Code that comes
    with an encoder is imported when it is built."""
    if has_own_code(source.config):
        return
    transformers.AutoModel._model_mapping[type(source.config)]


def outline(source: Source) -> PreTrainedModel:
    """Return the encoder on the meta device: modules and shapes without weights."""
    with torch.device("meta"):
        model = untrained(source.config)
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model


def layer_list(encoder: nn.Module) -> tuple[str, nn.ModuleList]:
    """Return name and list of the layers: the longest ModuleList of modules of one type."""
    lists = [
        (name, module)
        for name, module in encoder.named_modules()
        if isinstance(module, nn.ModuleList) and len({type(child) for child in module}) == 1
    ]
    if not lists:
        raise UserError(f"{type(encoder).__name__} has no stack of layers.")
    return max(lists, key=lambda item: len(item[1]))


def depth_of(encoder: nn.Module) -> dict[str, int]:
    """Return the depth of each parameter: 0 for embeddings, i for layer i, counted from 1, and
    the depth of the last layer for parameters after the layers."""
    stack, layers = layer_list(encoder)
    tables = {f"{n}.weight" for n, m in encoder.named_modules() if isinstance(m, nn.Embedding)}
    depths: dict[str, int] = {}
    for name, _ in encoder.named_parameters():
        if name.startswith(f"{stack}."):
            depths[name] = int(name[len(stack) + 1 :].split(".")[0]) + 1
        elif name in tables or "embed" in name or "rel_" in name or name in _OF_POSITIONS:
            depths[name] = 0
        else:
            depths[name] = len(layers)
    return depths


def freeze(encoder: nn.Module, layers: int) -> None:
    """Freeze the embeddings and the first `layers` layers; 0 freezes nothing. A smaller encoder is
    frozen as a whole: a space may have encoders of several sizes."""
    if layers:
        depths = depth_of(encoder)
        for name, parameter in encoder.named_parameters():
            parameter.requires_grad_(depths[name] > layers)
