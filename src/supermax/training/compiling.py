"""An encoder's layers, compiled: what they do in many small operations is done in few.

    Model, Execution ──Compiler.offer()──▶ Compiled, where it pays ──drop()──▶ layers as they were

Layers are alike, so one is compiled for all of them, for every width, every dropout and for later
trials of this process. What was compiled lies on disk, where other cells find it.
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
from typing import Any

import torch
from torch import nn

from supermax.files import make_private
from supermax.training.dropouts import loosened, tight
from supermax.training.encoders import DROPOUTS, layer_list
from supermax.training.models import Model
from supermax.training.steps import Execution
from supermax.words import in_short

_COST = 20.0  # seconds that compiling takes, with importing the compiler
_FOUND = 10.0  # where another process has done it before
_GAIN = 0.05  # of the time of recorded steps
_GAINS = {"deberta-v2": 0.2}  # of families with more to gain
_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_SOMEBODY_S_OWN = _CACHE in os.environ
"""Known now: with its first step torch names a folder of its own there."""
_VARIANTS = 64
"""Ways in which a layer may be compiled, for another precision say, before it is left as it is."""
_KEPT = 256 << 20  # bytes; 141 MiB were seen


class Compiled:
    """Layers that run compiled while they are trained, and as they are where they are not: looking
    is done too seldom to be compiled as well."""

    def __init__(
        self, layers: Mapping[str, Sequence[nn.Module]], backend: str | Callable[..., Any]
    ) -> None:
        """`layers`: by what they are known by."""
        self.keys = [*layers]
        self._layers = [layer for some in layers.values() for layer in some]
        self._failed: list[str] = []
        self._tighten = loosened(self._layers)
        fast = {kind: _compiled(kind, backend) for kind in {type(one) for one in self._layers}}
        for key, some in layers.items():
            failed = partial(self._failed.append, key)
            for layer in some:
                layer.forward = _forward(weakref.ref(layer), fast[type(layer)], failed)

    @property
    def culprits(self) -> list[str]:
        """After an error: those in which it was raised, or all, where that is not known."""
        return self._failed or self.keys

    def drop(self) -> None:
        for layer in self._layers:
            del layer.forward
        self._tighten()


def _compiled(kind: type[nn.Module], backend: str | Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(kind.forward, dynamic=True, backend=backend)


def _forward(
    of: weakref.ref[nn.Module], fast: Callable[..., Any], failed: Callable[[], None]
) -> Callable[..., Any]:
    """A layer that held itself would outlive its trial."""

    def forward(*args: Any, **named: Any) -> Any:
        layer = of()
        assert layer is not None
        if not layer.training:
            return type(layer).forward(layer, *args, **named)
        try:
            return fast(layer, *args, **named)
        except Exception:
            failed()
            raise

    return forward


class Compiler:
    """Of a process: what it has compiled, and how long it has trained without."""

    def __init__(self, backend: str | Callable[..., Any] = "inductor") -> None:
        self.folder: Path | None = None
        """Where what was compiled is kept for other processes."""
        self._backend = backend
        self._compiled: set[str] = set()
        self._broken: dict[str, str] = {}
        """What cannot be compiled, and why."""
        self._without: dict[str, float] = defaultdict(float)
        """Seconds that trainings without would have gained."""

    @property
    def size(self) -> int:
        """Bytes of the host that the compiler and what it made take, about."""
        return _KEPT if self._compiled else 0

    def broken(self, model: Model, execution: Execution) -> str | None:
        """Why something of it cannot be compiled."""
        keys = [_key(encoder.model, execution) for encoder in model.encoders]
        return next((self._broken[key] for key in keys if key in self._broken), None)

    def offer(self, model: Model, execution: Execution, seconds: float) -> Compiled | None:
        """Compile layers, or take what was compiled before, where that pays for a training of so
        many seconds: each encoder's for itself."""
        chosen: dict[str, list[nn.Module]] = defaultdict(list)
        for encoder in model.encoders:
            key = _key(encoder.model, execution)
            gained = _gain(encoder.model) * seconds / len(model.encoders)
            if self._wanted(key, execution, gained):
                chosen[key] += _layers(encoder.model)
        if not chosen:
            return None
        try:
            _get_ready(self.folder)
            return Compiled(chosen, self._backend)
        except Exception as error:
            self.failed(chosen, error)
            return None

    def _wanted(self, key: str, execution: Execution, gained: float) -> bool:
        if key in self._broken or execution.compiled is False:
            return False
        mark = self._mark(key)
        cost = _FOUND if mark is not None and mark.exists() else _COST
        cost = 0.0 if key in self._compiled else cost
        if execution.compiled or pays(gained, self._without[key], cost):
            return True
        self._without[key] += gained
        return False

    def _mark(self, key: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{key}.done"

    def worked(self, keys: Iterable[str]) -> None:
        """They have run. Other processes may know that they are on disk now."""
        for key in keys:
            mark = self._mark(key)
            if key not in self._compiled and mark is not None:
                with contextlib.suppress(OSError):  # then they find out for themselves
                    mark.touch()
            self._compiled.add(key)

    def failed(self, keys: Iterable[str], error: Exception) -> None:
        """They are not tried again."""
        self._broken.update(dict.fromkeys(keys, in_short(error)))


COMPILER = Compiler()
"""Of this process."""


def pays(gained: float, before: float, cost: float) -> bool:
    """Whether a training that would gain so many seconds should be compiled, after others of its
    kind would have gained so many `before`: as soon as that is together what it costs. So never
    more than that cost is lost against the best choice, which only who knows the future makes."""
    return gained + before >= cost


def _gain(encoder: Any) -> float:
    return _GAINS.get(encoder.config.model_type, _GAIN)


def _key(encoder: Any, execution: Execution) -> str:
    """Of all that an encoder's compiled layers depend on. Dropouts that are loose are no part of
    that, nor is how many of the layers are trained, only that some are and others are not."""
    config = {k: v for k, v in encoder.config.to_dict().items() if k not in DROPOUTS}
    layers = {
        (*(type(part).__name__ for part in layer.modules()),
         *(parameter.requires_grad for parameter in layer.parameters()), *tight(layer))
        for layer in _layers(encoder)
    }  # fmt: skip
    single = execution.micro_batch == 1  # torch takes a size of 1 for a constant
    facts = [config, execution.precision, execution.device, sorted(map(str, layers)), single]
    facts += ["halves", "packed"]  # earlier caches have neither bf16 copies nor packed rows
    words = json.dumps([facts, torch.__version__], sort_keys=True, default=str)
    return hashlib.sha256(words.encode()).hexdigest()[:24]


def _layers(encoder: Any) -> list[nn.Module]:
    return list(layer_list(encoder)[1])


def _get_ready(folder: Path | None) -> None:
    """One process compiles: a cell whose helpers outlive a trial would be taken for unclean."""
    if folder is not None:
        make_private(folder)
        if not _SOMEBODY_S_OWN:
            os.environ[_CACHE] = str(folder)
    with warnings.catch_warnings():
        # It uses what torch has come to advise against.
        warnings.filterwarnings("ignore", r".*torch\.jit\.script", DeprecationWarning)
        import torch._dynamo
        import torch._inductor.compile_fx
        import torch.fx.experimental._config

    dynamo: Any = torch._dynamo.config
    inductor: Any = torch._inductor.config
    shapes: Any = torch.fx.experimental._config
    if hasattr(dynamo, "nested_graph_breaks"):  # not every torch has it
        dynamo.nested_graph_breaks = True  # what comes after attention stays one piece
    if hasattr(shapes, "use_duck_shape"):
        shapes.use_duck_shape = False  # a batch as large as it is wide is a chance
    dynamo.recompile_limit = _VARIANTS
    dynamo.fail_on_recompile_limit_hit = True
    inductor.compile_threads = 1
