"""torch.compile for the layers of encoders, where it is expected to save time.

    Model, Execution ──Compiler.offer()──▶ CompiledLayers, or None ──drop()──▶ layers as before

The layers of an encoder have the same code, so one compilation serves all of them, for every
sequence length, every dropout rate and later trials of this process. Compiled code is cached on
disk for other processes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from supermax._util.files import make_private
from supermax._util.text import in_short
from supermax.training.models.adapters import adapter_constants
from supermax.training.models.assembly import Model
from supermax.training.models.dropouts import constant_rates, use_tensor_rates
from supermax.training.models.encoders import DROPOUTS, layer_list
from supermax.training.steps.execution import Execution

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_COST = 20.0  # seconds to compile, including the import of the compiler
_CACHED_COST = 10.0  # seconds where the compiled code is in the cache on disk
_GAIN = 0.05  # fraction of the time of captured steps that is saved
_GAINS = {"deberta-v2": 0.2}  # for model types with a different gain
_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_CACHE_SET_BY_USER = _CACHE in os.environ
"""Read at import: torch itself sets the variable when it compiles for the first time."""
_RECOMPILE_LIMIT = 64
"""Variants of a layer that may be compiled, e.g. for other precisions, before compilation is given
up."""
_COMPILER_BYTES = 256 << 20  # CPU memory of the compiler; 141 MiB were measured
Forward = Callable[..., object]
Backend = str | Callable[..., object]
"""Backend of torch.compile, or its name."""


class CompiledLayers:
    """Layers that run compiled in training mode and eagerly in evaluation mode: evaluation is too
    rare to pay for compiling it too."""

    def __init__(self, layers: Mapping[str, Sequence[nn.Module]], backend: Backend) -> None:
        """`layers`: by the key of their compiled code (`_key`)."""
        self.keys = [*layers]
        self._layers = [layer for group in layers.values() for layer in group]
        self._failed: list[str] = []
        self._restore_dropouts = use_tensor_rates(self._layers)
        compiled = {
            kind: torch.compile(kind.forward, dynamic=True, backend=backend)
            for kind in {type(layer) for layer in self._layers}
        }
        for key, group in layers.items():
            on_failure = partial(self._failed.append, key)
            for layer in group:
                layer.forward = _forward(weakref.ref(layer), compiled[type(layer)], on_failure)

    @property
    def failed_keys(self) -> list[str]:
        """Keys of the layers that raised the last error; all keys where that is not known."""
        return self._failed or self.keys

    def drop(self) -> None:
        """Give the layers back their own forward methods and dropouts."""
        for layer in self._layers:
            del layer.forward
        self._restore_dropouts()


def _forward(
    layer_ref: weakref.ref[nn.Module], compiled: Forward, on_failure: Callable[[], None]
) -> Forward:
    """Return a forward method for one layer. It is an attribute of the layer, so a strong
    reference would be a cycle that keeps the weights alive after the trial."""

    def forward(*args: object, **named: object) -> object:
        layer = layer_ref()
        assert layer is not None
        if not layer.training:
            return type(layer).forward(layer, *args, **named)
        try:
            return compiled(layer, *args, **named)
        except Exception:
            on_failure()
            raise

    return forward


class Compiler:
    """Decides when torch.compile pays, and keeps compiled layers for later trials."""

    def __init__(self, backend: Backend = "inductor") -> None:
        self.folder: Path | None = None
        """Cache on disk, shared with other processes; None: torch's default folder."""
        self._backend = backend
        self._compiled: set[str] = set()
        self._broken: dict[str, str] = {}
        """Keys that cannot be compiled, with the reason."""
        self._missed: dict[str, float] = defaultdict(float)
        """Seconds that compiling would have saved in trials that ran without it, by key."""

    @property
    def size(self) -> int:
        """Bytes of CPU memory that the compiler and its code take, estimated."""
        return _COMPILER_BYTES if self._compiled else 0

    def broken(self, model: Model, execution: Execution) -> str | None:
        """Return why some encoder of the model cannot be compiled; None: no failure known."""
        keys = [_key(encoder.model, execution) for encoder in model.encoders]
        return next((self._broken[key] for key in keys if key in self._broken), None)

    def offer(self, model: Model, execution: Execution, seconds: float) -> CompiledLayers | None:
        """Compile layers, or reuse compiled ones, where that saves time in `seconds` of training.

        Decided for each encoder separately. None: no layer is to be compiled, or the compiler
        cannot be loaded (see `broken`).
        """
        chosen: dict[str, list[nn.Module]] = defaultdict(list)
        for encoder in model.encoders:
            key = _key(encoder.model, execution)
            gain = _GAINS.get(encoder.model.config.model_type, _GAIN)
            saved = gain * seconds / len(model.encoders)
            if self._should_compile(key, execution, saved):
                chosen[key] += _layers(encoder.model)
        if not chosen:
            return None
        try:
            _configure(self.folder)
            return CompiledLayers(chosen, self._backend)
        except Exception as error:
            self.failed(chosen, error)
            return None

    def _should_compile(self, key: str, execution: Execution, saved: float) -> bool:
        if key in self._broken or execution.compiled is False:
            return False
        marker = self._marker(key)
        cost = _CACHED_COST if marker is not None and marker.exists() else _COST
        cost = 0.0 if key in self._compiled else cost
        if execution.compiled or pays(saved, self._missed[key], cost):
            return True
        self._missed[key] += saved
        return False

    def _marker(self, key: str) -> Path | None:
        """Return the file that says that code for this key is in the cache."""
        return None if self.folder is None else self.folder / f"{key}.done"

    def worked(self, keys: Iterable[str]) -> None:
        """Note that layers with these keys ran compiled, also for other processes."""
        for key in keys:
            marker = self._marker(key)
            if key not in self._compiled and marker is not None:
                with contextlib.suppress(OSError):  # others then expect the full cost
                    marker.touch()
            self._compiled.add(key)

    def failed(self, keys: Iterable[str], error: Exception) -> None:
        """Note that these keys cannot be compiled; they are not tried again."""
        self._broken.update(dict.fromkeys(keys, in_short(error)))


COMPILER = Compiler()
"""Compiler of this process."""


def pays(saved: float, missed: float, cost: float) -> bool:
    """Return whether to compile a training, all arguments in seconds.

    `saved`: what compiling would save in this training; `missed`: what it would have saved in
    earlier ones that ran without it. As in the ski rental problem: compile once both together
    reach the cost. That loses at most `cost` against the best choice in hindsight.
    """
    return saved + missed >= cost


def _key(encoder: PreTrainedModel, execution: Execution) -> str:
    """Return a hash of all that the compiled layers of an encoder depend on. Not of dropout rates
    that are tensors, nor of the number of frozen layers: only of whether some are frozen."""
    config = {k: v for k, v in encoder.config.to_dict().items() if k not in DROPOUTS}
    layers = {
        (*(type(part).__name__ for part in layer.modules()),
         *(parameter.requires_grad for parameter in layer.parameters()), *constant_rates(layer),
         *adapter_constants(layer))
        for layer in _layers(encoder)
    }  # fmt: skip
    single = execution.micro_batch == 1  # torch.compile specialises on a size of 1
    facts = [config, execution.precision, execution.device, sorted(map(str, layers)), single]
    facts += ["halves", "packed"]  # version of the key: with bf16 copies and packed rows
    text = json.dumps([facts, torch.__version__], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _layers(encoder: PreTrainedModel) -> list[nn.Module]:
    return list(layer_list(encoder)[1])


def _configure(folder: Path | None) -> None:
    """Import and configure dynamo and inductor for this process."""
    if folder is not None:
        make_private(folder)
        if not _CACHE_SET_BY_USER:
            os.environ[_CACHE] = str(folder)
    with warnings.catch_warnings():
        # inductor uses functions that torch has deprecated.
        warnings.filterwarnings("ignore", r".*torch\.jit\.script", DeprecationWarning)
        import torch._dynamo
        import torch._inductor.compile_fx
        import torch.fx.experimental._config

    dynamo, inductor = torch._dynamo.config, torch._inductor.config
    shapes = torch.fx.experimental._config
    if hasattr(dynamo, "nested_graph_breaks"):  # not every torch has it
        # The code after the graph break at attention (dropouts.py) stays one graph.
        dynamo.nested_graph_breaks = True
    if hasattr(shapes, "use_duck_shape"):
        # Equal batch size and length are a coincidence, not a guard to compile for.
        shapes.use_duck_shape = False
    dynamo.recompile_limit = _RECOMPILE_LIMIT
    dynamo.fail_on_recompile_limit_hit = True
    # No pool of compile workers: processes that outlive a trial count as a leak of its cell.
    inductor.compile_threads = 1
