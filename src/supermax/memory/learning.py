"""What trials were seen to take, kept across studies: estimates get better with every trial.

    finished trial ──note()──▶ file ──known()──▶ Correction, paces

One file for each encoder, versions of the libraries and device; a line for each measurement. A
line that cannot be read is left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from supermax.memory.estimate import Correction, Split, need
from supermax.memory.facts import Spec
from supermax.memory.speed import Pace

_MOST = 200
"""Measurements that count: the latest."""
_ENOUGH = 4
"""Measurements from which on they alone say what the worst is."""
_PRIOR = 2
"""How many measurements the estimate itself is worth."""


@dataclass(frozen=True)
class Measured:
    """What a trial, or a probe, took. `at_least`: it ran out of memory, and would have needed
    more. Nothing allocated: only its time was looked at."""

    micro_batch: int
    checkpointing: bool
    length: int
    effective_batch: int
    allocated: int
    reserved: int
    seconds: float | None = None
    """Of a micro-step of `tokens` tokens, where it was long enough to tell."""
    tokens: int = 0
    at_least: bool = False
    probe: bool = False
    """Of a few steps alone, without the copies of weights that a trial keeps."""
    traits: dict[str, Any] = field(default_factory=dict)
    """Of the Spec, which the estimate depends on."""


@dataclass(frozen=True)
class Known:
    correction: Correction = field(default_factory=Correction)
    paces: tuple[Pace, ...] = ()
    measurements: int = 0
    """Of memory."""


class Book:
    """The measurements of one device with one set of versions."""

    def __init__(self, folder: Path, device: str, versions: str) -> None:
        self.folder = folder
        self._mark = f"{device} {versions}"
        self._cache: dict[str, tuple[int, Known]] = {}

    def note(self, spec: Spec, measured: Measured) -> None:
        """Remember it. What cannot be written is forgotten: it only makes plans better."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            line = json.dumps({**asdict(measured), "traits": _traits(spec)}) + "\n"
            with self._path(spec).open("a", encoding="utf-8") as file:
                file.write(line)

    def known(self, spec: Spec) -> Known:
        path = self._path(spec)
        try:
            size = path.stat().st_size
        except OSError:
            return Known()
        key = f"{path.name} {_traits(spec)}"
        if key not in self._cache or self._cache[key][0] != size:
            self._cache[key] = (size, learnt(spec, list(_lines(path))[-_MOST:]))
        return self._cache[key][1]

    def _path(self, spec: Spec) -> Path:
        encoders = " ".join(encoder.fingerprint for encoder in spec.encoders)
        mark = hashlib.sha256(f"{self._mark} {encoders} {spec.precision}".encode()).hexdigest()
        return self.folder / f"{mark[:24]}.jsonl"


def learnt(spec: Spec, measurements: list[Measured]) -> Known:
    """From measurements of the same encoder to what they say of its estimates."""
    ratios, extra, paces = [1.0] * _PRIOR, 0, []
    seen = sum(one.allocated > 0 for one in measurements)
    worst = 1.0 if seen < _ENOUGH else 0.0
    for one in measurements:
        if one.seconds is not None and one.tokens > 0:
            paces.append(Pace(one.tokens, one.checkpointing, one.seconds))
        if not one.allocated:
            continue
        ratio = _ratio(spec, one)
        worst = max(worst, ratio)
        if not one.at_least:
            ratios.append(ratio)
            extra = max(extra, one.reserved - one.allocated)
    scale = sorted(ratios)[len(ratios) // 2]
    return Known(Correction(scale, max(scale, worst), extra), tuple(paces), seen)


def _ratio(spec: Spec, one: Measured) -> float:
    """What was measured of the part that varies, over its estimate."""
    like = _like(spec, one)
    guess = need(like, Split(one.micro_batch, one.checkpointing, evaluated=0))
    varying = guess.varying + max(0, guess.other_moments)
    kept = guess.saved if one.probe else 0
    measured = one.allocated - (guess.allocated - varying - kept)
    return min(4.0, max(0.25, measured / max(1, varying)))


def _like(spec: Spec, one: Measured) -> Spec:
    kept = {k: v for k, v in one.traits.items() if k in _TRAITS}
    return Spec(
        **{
            **{name: getattr(spec, name) for name in spec.__dataclass_fields__},
            **kept,
            "length": one.length,
            "effective_batch": one.effective_batch,
        }
    )


_TRAITS = ("optimizer", "frozen", "dropout", "attention_dropout", "head", "token_width")


def _traits(spec: Spec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in _TRAITS}


def _lines(path: Path) -> Iterator[Measured]:
    with contextlib.suppress(OSError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, TypeError):
                yield Measured(**json.loads(line))


def default_folder() -> Path:
    """Of this user, across studies."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "supermax" / "memory"
