"""The highest need of a trial, item by item.

Spec, Split ──need()──▶ Need
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from supermax.memory import kept
from supermax.memory.facts import Spec

MIB = 1 << 20
_LIBRARY = {"cuda": 66 * MIB, "cpu": 8 * MIB}
"""Room that the libraries for matrices keep for themselves."""
CONTEXT = {"cuda": 800 * MIB, "cpu": 64 * MIB}
"""What a process takes beside its tensors."""
STATE = {"adamw": 8.0, "adamw_8bit": 2.05, "adafactor": 0.02, "lion": 4.0}
"""Bytes an optimizer keeps for each number that is trained."""
UNRECORDED = ("adamw_8bit",)
"""Whose updates are no part of recorded steps."""
_TOKEN = 8  # bytes: its number, and its share of what is known and found of a sequence
EVALUATED = 1 << 14
"""Tokens that are evaluated at a time, where memory allows."""


@dataclass(frozen=True)
class Split:
    """How an effective batch is taken: so many sequences at a time."""

    micro_batch: int
    checkpointing: bool = False
    evaluated: int = EVALUATED
    """Tokens that are evaluated at a time."""
    best_on_host: bool = False
    """The best epoch's weights are kept in the host's memory, which takes longer."""


@dataclass(frozen=True)
class Need:
    """Bytes at the highest moment, by what they are for."""

    weights: int
    gradients: int
    optimizer: int
    half_copies: int
    """Of the matrices, for computing in half precision."""
    activations: int
    attention: int
    loss: int
    workspace: int
    """Of the libraries, and what one layer takes for a moment."""
    other_moments: int
    """What the optimizer's own step, or evaluation, takes more than the backward pass does; below
    0 where gradients take the place of activations as these go."""
    saved: int
    """Copies of the weights: the best epoch's, and the state to go on from, which on a GPU is in
    the host's memory and does not count."""
    data: int
    """The texts, as tokens."""
    slack: int
    """What the allocator holds on to, and what an estimate may lack."""
    context: int
    """What the process takes beside its tensors."""

    @property
    def allocated(self) -> int:
        """What tensors take."""
        return self.total - self.slack - self.context

    @property
    def reserved(self) -> int:
        """What the process's own limit must allow."""
        return self.total - self.context

    @property
    def total(self) -> int:
        """What it takes of the device."""
        return sum(self.items().values())

    @property
    def varying(self) -> int:
        """What is not exact from the configuration alone."""
        return self.activations + self.attention + self.loss + self.workspace

    def items(self) -> dict[str, int]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class Correction:
    """What measurements say of an encoder's estimates: the part that is not exact times `scale`,
    and so much slack as the worst of them needs."""

    scale: float = 1.0
    worst: float = 1.0
    """At least `scale`: the highest that was seen."""
    extra: int = 0
    """Bytes that the allocator was seen to hold on to."""


PLAIN = Correction()


def need(spec: Spec, split: Split, correction: Correction = PLAIN) -> Need:
    """What a trial takes at its highest."""
    micro = min(split.micro_batch, spec.effective_batch)
    kind = "cpu" if spec.device == "cpu" else "cuda"
    found = Need(
        weights=4 * spec.numbers,
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
        workspace=found.workspace + _LIBRARY[kind],
        other_moments=_other_moments(found, spec, split, micro),
        slack=_slack(found, spec, correction),
    )


def _forward(spec: Spec, batch: int, checkpointing: bool, scale: float) -> dict[str, int]:
    """What stands when the backward pass begins. Where layers are computed again, only what goes
    into them is kept, and one of them at a time as a whole; by then the copies of the others'
    matrices are gone."""
    tokens, square = batch * spec.length, batch * spec.length**2
    layers = [(e, kept.layer_of(e, spec), spec.active(e)) for e in spec.encoders]
    ones = [kept.by_token(layer, e, spec) * tokens for e, layer, _ in layers]
    squares = [kept.attention(layer, e, spec, batch, spec.length) for e, layer, _ in layers]
    begin = sum(kept.base(e, spec) for e in spec.encoders) * tokens
    linear, quadratic, half = 0.0, 0.0, _copies(spec)
    if checkpointing:
        linear = sum(4 * e.hidden * e.layers for e in spec.encoders) * tokens
        again = max(
            zip(ones, squares, (2 * e.matrices * spec.half for e in spec.encoders), strict=True),
            key=sum,
        )
        quadratic = square
        if sum(again) > half:
            linear, quadratic, half = linear + again[0], quadratic + again[1], again[2]
    else:
        linear = sum(n * one for (_, _, n), one in zip(layers, ones, strict=True))
        quadratic = sum(n * one for (_, _, n), one in zip(layers, squares, strict=True))
    fleeting = max(kept.fleeting(e, spec, batch, checkpointing) for e in spec.encoders)
    return {
        "half_copies": int(half),
        "activations": int(scale * (linear + begin)),
        "attention": int(scale * quadratic),
        "loss": int(scale * tokens * (64 + 15 * spec.token_width)),
        "workspace": int(scale * fleeting),
    }


def _copies(spec: Spec) -> int:
    """Of all matrices that are trained, which autocast keeps as long as a forward pass goes."""
    return sum(2 * spec.active(e) * e.matrices for e in spec.encoders) if spec.half else 0


def _saved(spec: Spec, split: Split) -> int:
    """The best weights; on a CPU also the state that is being written, which holds them too."""
    if spec.device != "cpu":
        return 0 if split.best_on_host else 4 * spec.numbers
    return int(12 * spec.numbers + STATE[spec.optimizer] * spec.trained)


def _other_moments(found: Need, spec: Spec, split: Split, micro: int) -> int:
    """How far the highest moment lies from the start of the backward pass with all gradients
    there, as they are where micro-batches add up. A whole parameter's gradient then stands beside
    the sum it is added to; where steps are recorded, the gradients of all halves do, and halves
    stay."""
    moving = found.half_copies + found.varying
    recorded = spec.captured and not split.checkpointing
    stays = recorded and spec.optimizer in UNRECORDED  # gradients wait where they are
    several = micro < spec.effective_batch or stays
    backward = moving + (found.gradients if several else 0)
    halves = found.half_copies if recorded else 0
    adding = found.gradients + 2 * halves + (4 * spec.largest if several else 0)
    stepping = found.gradients + halves + _stepping(spec, recorded)
    tokens = max(split.evaluated, spec.length)
    looking = sum(kept.looking(e, spec, tokens, spec.length) for e in spec.encoders)
    evaluating = _copies(spec) + looking
    highest: float = max(backward, adding, stepping)
    if recorded:
        highest += evaluating  # beside what the recordings have
    return int(max(highest, evaluating) - found.gradients - moving)


def _stepping(spec: Spec, recorded: bool) -> int:
    """Room the optimizer takes for its step. Lion's moves stand beside themselves times the rate
    where that is on the device."""
    if spec.optimizer == "lion":
        return (8 if recorded else 4) * spec.trained
    return 6 * spec.largest if spec.optimizer == "adafactor" else 0


def _slack(found: Need, spec: Spec, correction: Correction) -> int:
    """Blocks that are free but in the wrong place: about one of the largest parameter, and some
    of what comes and goes; and what an estimate of this encoder lacked so far."""
    lacking = found.varying * (correction.worst / correction.scale - 1)
    share = 0.4 if spec.device == "cpu" else 0.03
    usual = 192 * MIB + 4 * spec.largest + share * found.varying
    return int(max(usual, correction.extra) + lacking)
