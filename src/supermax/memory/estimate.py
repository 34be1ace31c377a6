"""Estimate of a trial's peak memory, item by item.

Spec, Split ──need()──▶ Need
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from supermax.memory import saved_activations
from supermax.memory.facts import Spec

MIB = 1 << 20
_LIBRARY = {"cuda": 66 * MIB, "cpu": 8 * MIB}
"""Bytes of the workspace of the matrix libraries for each stream (on a GPU, of cuBLAS)."""
CONTEXT = {"cuda": 800 * MIB, "cpu": 64 * MIB}
"""Bytes of a process beside its tensors: on a GPU, the CUDA context."""
STATE = {"adamw": 8.0, "adamw_8bit": 2.05, "adafactor": 0.02, "lion": 4.0}
"""Bytes of optimizer state for each trained element."""
UNCAPTURED = ("adamw_8bit",)
"""Optimizers whose updates are not captured in CUDA graphs."""
_TOKEN = 8  # bytes: its id, and its share of the lengths, labels and predictions of a sequence
EVALUATED = 1 << 14
"""Tokens of a batch of evaluation, where memory allows."""


@dataclass(frozen=True)
class Split:
    """Execution of an effective batch in micro-batches."""

    micro_batch: int
    """Sequences of a micro-batch."""
    checkpointing: bool = False
    """Activation checkpointing."""
    evaluated: int = EVALUATED
    """Tokens of a batch of evaluation; 0: training alone."""
    best_on_host: bool = False
    """Keep the best epoch's weights in host memory, which is slower."""


@dataclass(frozen=True)
class Need:
    """Bytes of device memory at the peak, by purpose."""

    weights: int
    gradients: int
    optimizer: int
    half_copies: int
    """bf16 or fp16 copies of the matrices."""
    activations: int
    attention: int
    loss: int
    workspace: int
    """Workspace of the libraries, and temporary tensors of one layer."""
    other_moments: int
    """Bytes by which the optimizer's step, or evaluation, exceeds the backward pass; below 0 where
    gradients reuse the memory of freed activations."""
    saved: int
    """Copies of the weights: the best epoch's and, on a CPU, the training state that is written.
    On a GPU that state is in host memory."""
    data: int
    """Tokenized data set, where it is on the device."""
    slack: int
    """Fragmentation of the allocator, and error of the estimate."""
    context: int
    """Process beside its tensors: on a GPU, the CUDA context."""

    @property
    def allocated(self) -> int:
        """Bytes of tensors (torch.cuda.max_memory_allocated)."""
        return self.total - self.slack - self.context

    @property
    def reserved(self) -> int:
        """Bytes that the process's own limit must allow (torch.cuda.max_memory_reserved)."""
        return self.total - self.context

    @property
    def total(self) -> int:
        """Bytes of the device."""
        return sum(self.items().values())

    @property
    def varying(self) -> int:
        """Bytes that the configuration alone does not determine exactly."""
        return self.activations + self.attention + self.loss + self.workspace

    def items(self) -> dict[str, int]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class Correction:
    """Correction of an encoder's estimates from measurements: the inexact part is multiplied by
    `scale`, and the slack covers the worst measurement."""

    scale: float = 1.0
    worst: float = 1.0
    """Highest measured ratio; at least `scale`."""
    extra: int = 0
    """Measured bytes that the allocator reserves beyond the tensors."""


PLAIN = Correction()


def need(spec: Spec, split: Split, correction: Correction = PLAIN) -> Need:
    """Estimate the peak memory of a trial."""
    micro = min(split.micro_batch, spec.effective_batch)
    kind = "cpu" if spec.device == "cpu" else "cuda"
    found = Need(
        weights=4 * (spec.parameters + spec.adapter),
        gradients=4 * spec.trained,
        optimizer=int(STATE[spec.optimizer] * spec.trained),
        **_forward(spec, micro, split.checkpointing, correction.scale),
        other_moments=0,
        saved=_saved(spec, split),
        data=_TOKEN * spec.data if spec.captured and not split.checkpointing else 0,
        slack=0,
        context=CONTEXT[kind],
    )
    return replace(
        found,
        # CUDA graphs run on a stream of their own. A process keeps the workspaces of all streams.
        workspace=found.workspace + _LIBRARY[kind] * (2 if spec.captured else 1),
        other_moments=_other_moments(found, spec, split, micro),
        slack=_slack(found, spec, correction),
    )


def _forward(spec: Spec, batch: int, checkpointing: bool, scale: float) -> dict[str, int]:
    """Return what is allocated when the backward pass begins. With activation checkpointing, that
    is the inputs of all layers and all activations of one; the bf16 copies of the other layers'
    matrices are freed by then, those of frozen ones already in the forward pass."""
    tokens, square = batch * spec.length, batch * spec.length**2
    layers = [(e, saved_activations.layer_of(e, spec), spec.active(e)) for e in spec.encoders]
    adapter = spec.adapter_bytes / sum(e.layers for e in spec.encoders)
    fused_qkv = spec.captured and not checkpointing and not spec.adapter
    linear_parts = [
        (saved_activations.by_token(layer, e, spec, fused_qkv) + adapter) * tokens
        for e, layer, _ in layers
    ]
    quadratic_parts = [
        saved_activations.attention(layer, e, spec, batch, spec.length) for e, layer, _ in layers
    ]
    embeddings = sum(saved_activations.base(e, spec) for e in spec.encoders) * tokens
    linear, quadratic = 0.0, 0.0
    half = 0 if checkpointing and spec.adapter else _autocast_copies(spec)
    if checkpointing:
        linear = sum(4 * e.hidden * e.layers for e in spec.encoders) * tokens
        copies = (2 * e.matrices * spec.half for e in spec.encoders)
        recomputed = max(zip(linear_parts, quadratic_parts, copies, strict=True), key=sum)
        quadratic = square
        if sum(recomputed) > half:
            linear, quadratic = linear + recomputed[0], quadratic + recomputed[1]
            half = int(recomputed[2])
    else:
        counts = [count for _, _, count in layers]
        linear = sum(n * part for n, part in zip(counts, linear_parts, strict=True))
        quadratic = sum(n * part for n, part in zip(counts, quadratic_parts, strict=True))
    transient = max(
        saved_activations.transient(e, spec, batch, checkpointing) for e in spec.encoders
    )
    return {
        "half_copies": int(half),
        "activations": int(scale * (linear + embeddings)),
        "attention": int(scale * quadratic),
        "loss": int(scale * tokens * (64 + 15 * spec.token_width)),
        "workspace": int(scale * transient),
    }


def _autocast_copies(spec: Spec) -> int:
    """Return the bytes of the half-precision copies that autocast makes during a forward pass, of
    all matrices with a backward pass. Under an adapter that has the frozen ones too: the gradient
    of their inputs needs them."""
    return sum(2 * spec.active(e) * e.matrices for e in spec.encoders) if spec.half else 0


def _saved(spec: Spec, split: Split) -> int:
    """Return the bytes of the best weights; on a CPU also of the training state that is written,
    which holds them too."""
    if spec.device != "cpu":
        return 0 if split.best_on_host else 4 * spec.stored
    return int(12 * spec.stored + STATE[spec.optimizer] * spec.trained)


def _other_moments(found: Need, spec: Spec, split: Split, micro: int) -> int:
    """Return the bytes by which the peak differs from the start of the backward pass with all
    gradients allocated.

    Gradients are allocated throughout where micro-batches accumulate them. A parameter's new
    gradient is then allocated beside its sum. In a captured CUDA graph the bf16 copies are
    persistent, and so are their gradients."""
    activations = found.half_copies + found.varying
    captured = spec.captured and not split.checkpointing
    # The gradients of an update outside the CUDA graph are kept between steps.
    persistent = captured and spec.optimizer in UNCAPTURED
    accumulated = micro < spec.effective_batch or persistent
    backward = activations + (found.gradients if accumulated else 0)
    copies = (2 * spec.adapter if spec.adapter else found.half_copies) if captured else 0
    accumulation = found.gradients + 2 * copies + (4 * spec.largest if accumulated else 0)
    update = found.gradients + copies + _update_workspace(spec, captured)
    tokens = max(split.evaluated, spec.length)
    evaluation = sum(
        saved_activations.evaluation(e, spec, tokens, spec.length) for e in spec.encoders
    )
    evaluating = _autocast_copies(spec) + evaluation if split.evaluated else 0.0
    peak: float = max(backward, accumulation, update)
    if captured:
        peak += evaluating  # the CUDA graphs keep their memory pool during evaluation
    return int(max(peak, evaluating) - found.gradients - activations)


def _update_workspace(spec: Spec, captured: bool) -> int:
    """Return the bytes of temporary tensors of the optimizer's step. Lion allocates its update a
    second time, times the learning rate, where that is a tensor on the device."""
    if spec.optimizer == "lion":
        return (8 if captured else 4) * spec.trained
    return 6 * spec.largest if spec.optimizer == "adafactor" else 0


def _slack(found: Need, spec: Spec, correction: Correction) -> int:
    """Return the bytes for fragmentation (about one block of the largest parameter and a share of
    the activations) and for the error of this encoder's estimates so far."""
    error = found.varying * (correction.worst / correction.scale - 1)
    share = 0.4 if spec.device == "cpu" else 0.03
    usual = 192 * MIB + 4 * spec.largest + share * found.varying
    return int(max(usual, correction.extra) + error)
