"""LoRA adapters, by the package peft: injected into encoders, and merged into their weights.

    Model, AdapterConfig ──add_adapter()──▶ the encoders' weights frozen, low-rank matrices trained
    saved weights ──merged()──▶ weights of a model without an adapter

Heads, pooling and fusion are outside of the encoders and are trained as ever. peft is imported
where an adapter is used: it takes seconds, and loads bitsandbytes, which may use CUDA.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor, nn

from supermax._util.text import listed
from supermax.errors import UserError
from supermax.training.config import AdapterConfig
from supermax.training.models.assembly import Model
from supermax.training.models.encoders import layer_list

if TYPE_CHECKING:
    from peft import LoraConfig
    from peft.tuners.lora import LoraLayer

NAME = "default"
"""Name of the adapter in peft's modules."""
_ATTENTION = ("attention", "attn")
"""Parts of the names of attention modules, in all families."""


def check_installed() -> None:
    """Raise UserError unless peft is installed."""
    if importlib.util.find_spec("peft") is None:
        raise UserError(
            "adapter.name: lora needs the package peft, which is not installed: "
            "pip install 'supermax[lora]', or set adapter.name to none."
        )


def import_peft() -> ModuleType:
    """Import peft. Raises UserError where that fails."""
    check_installed()
    # It warns of missing 4-bit kernels, which are not used.
    log = logging.getLogger("bitsandbytes")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        import peft
    except Exception as error:
        raise UserError(
            "adapter.name: lora cannot be used: the package peft is installed, but does not load "
            f"({type(error).__name__}: {error}). Install it again (pip install --force-reinstall "
            "peft), or set adapter.name to none."
        ) from error
    finally:
        log.setLevel(level)
    return peft


def targets(encoder: nn.Module, kind: str, name: str) -> list[str]:
    """Return the names of the linear layers that an adapter of this kind changes.

    Raises UserError with the encoder's `name` if it has none.
    """
    stack, layers = layer_list(encoder)
    linear = [
        f"{i}.{path}"
        for i, layer in enumerate(layers)
        for path, module in layer.named_modules()
        if isinstance(module, nn.Linear)
    ]
    found = [path for path in linear if kind != "attention" or attention_of(path)]
    if found:
        return [f"{stack}.{path}" for path in found]
    kinds = sorted({type(m).__name__ for m in layers.modules() if not list(m.children())})
    where = "attention modules" if kind == "attention" else "layers"
    other = "adapter.target_modules: all-linear, or " if linear else ""
    raise UserError(
        listed(
            f"The encoder '{name}' has no linear layers in its {where}, which LoRA could adapt. "
            f"Set {other}adapter.name: none, or search another encoder. Its layers consist of:",
            kinds,
        )
    )


def attention_of(path: str) -> str:
    """Return the name of the attention module that a layer belongs to; "": it belongs to none."""
    parts = path.split(".")
    ends = [i for i, part in enumerate(parts) if any(word in part for word in _ATTENTION)]
    return ".".join(parts[: ends[0] + 1]) if ends else ""


def lora_config(config: AdapterConfig, target_modules: Sequence[str]) -> LoraConfig:
    """Return the settings of an adapter for peft."""
    whole = int(config.alpha) if config.alpha == int(config.alpha) else config.alpha
    made: LoraConfig = import_peft().LoraConfig(
        r=config.rank,
        lora_alpha=whole,
        lora_dropout=config.dropout,
        target_modules=list(target_modules),
    )
    return made


def add_adapter(model: Model, config: AdapterConfig, names: Sequence[str]) -> None:
    """Freeze the encoders and add the adapter to each of them; `names` are those of the encoders.

    Does nothing for `adapter.name: none`. The initial matrices are random, their product is 0.
    """
    if config.name == "none":
        return
    peft = import_peft()
    for encoder, name in zip(model.encoders, names, strict=True):
        wanted = targets(encoder.model, config.target_modules, name)
        peft.inject_adapter_in_model(lora_config(config, wanted), encoder.model, NAME)
    for _, layer in adapted(model):
        # Autocast casts as it does for every linear layer. A cast to fp32 before it would only
        # keep one more copy of each input for the backward pass.
        layer.cast_input_dtype_enabled = False
    model.has_adapter = True


def adapted(model: nn.Module) -> Iterator[tuple[str, LoraLayer]]:
    """Yield name and module of each linear layer that is adapted."""
    for name, module in model.named_modules():
        if _is_adapted(module):
            yield name, module


def _is_adapted(module: nn.Module) -> TypeGuard[LoraLayer]:
    """Return whether a module is a layer of peft; without importing peft where it is not used."""
    return hasattr(module, "lora_A")


def adapter_constants(layer: nn.Module) -> list[float]:
    """Return rank and scaling of the adapters in a layer: compiled code has them as constants."""
    scalings = [(m.r, m.scaling) for m in layer.modules() if _is_adapted(m)]
    return [number for pair in scalings for numbers in pair for number in numbers.values()]


def merged(model: Model, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of the model without its adapter, which is added to those that it adapts.

    `weights` replace the model's own; of a model with an adapter they may be those that are saved.
    """
    weights = {**model.state_dict(), **weights}
    if not model.has_adapter:
        return weights
    for name, layer in adapted(model):
        down, up = (weights.pop(f"{name}.lora_{part}.{NAME}.weight") for part in "AB")
        product = (up @ down) * layer.scaling[NAME]
        weights[f"{name}.base_layer.weight"] = weights[f"{name}.base_layer.weight"] + product
    return {name.replace(".base_layer.", "."): weight for name, weight in weights.items()}


@contextmanager
def merged_in_place(model: Model) -> Iterator[None]:
    """Compute with merged weights within the block, as an exported model does. Afterwards, the
    frozen weights are the same up to rounding."""
    layers = [layer for _, layer in adapted(model)] if model.has_adapter else []
    for layer in layers:
        layer.merge()
    try:
        yield
    finally:
        for layer in layers:
            layer.unmerge()
