"""What trials were seen to take, kept across studies: estimates get better with every trial.

    finished trial ──note()──▶ file ──known()──▶ Correction, paces

One file for each encoder, versions of the libraries and device; a line for each measurement. A
line that cannot be read is left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from supermax.files import make_private, open_private, user_folder, write_whole
from supermax.memory.estimate import Correction, Split, need
from supermax.memory.facts import Spec
from supermax.memory.speed import Pace

_MOST = 200
"""Measurements that count: the latest."""
_ENOUGH = 4
"""Measurements from which on they alone say what the worst is."""
_PRIOR = 2
"""How many measurements the estimate itself is worth."""
_USUAL = 0.95
"""The share of measurements whose slack must do: one of a kind does not count."""
_READ, _LONGEST = 256 << 10, 1 << 20
"""Bytes of a file that are read: its end; and from which on it is cut to that."""
Count = Annotated[int, Field(ge=0, lt=1 << 50)]
Times = Annotated[int, Field(ge=1, lt=1 << 30)]


@dataclass(frozen=True)
class Measured:
    """What a trial, or a probe, took. `at_least`: it ran out of memory, and would have needed
    more. Nothing allocated: only its time was looked at."""

    micro_batch: Times
    checkpointing: bool
    length: Times
    effective_batch: Times
    allocated: Count
    reserved: Count
    seconds: Annotated[float, Field(gt=0, lt=1e6)] | None = None
    """Of a micro-step of `tokens` tokens, where it was long enough to tell."""
    tokens: Count = 0
    at_least: bool = False
    probe: bool = False
    """Of a few steps alone, without the data and the copies of weights that a trial keeps."""
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
        path = self._path(spec)
        with contextlib.suppress(OSError):
            make_private(self.folder)
            line = json.dumps({**asdict(measured), "traits": _traits(spec)}) + "\n"
            if path.exists() and path.stat().st_size > _LONGEST:
                write_whole(path, "\n".join(_end(path)) + "\n")
            with open_private(path, "ab") as file:
                file.write(line.encode())

    def known(self, spec: Spec) -> Known:
        path = self._path(spec)
        try:
            found = path.stat()
        except OSError:
            return Known()
        if not stat.S_ISREG(found.st_mode):
            return Known()
        size = found.st_size
        key = f"{path.name} {_traits(spec)}"
        if key not in self._cache or self._cache[key][0] != size:
            self._cache[key] = (size, learnt(spec, list(_lines(path))))
        return self._cache[key][1]

    def _path(self, spec: Spec) -> Path:
        encoders = " ".join(encoder.fingerprint for encoder in spec.encoders)
        mark = hashlib.sha256(f"{self._mark} {encoders} {spec.half}".encode()).hexdigest()
        return self.folder / f"{mark[:24]}.jsonl"


def learnt(spec: Spec, measurements: list[Measured]) -> Known:
    """From measurements of the same encoder to what they say of its estimates."""
    ratios, extras, paces = [1.0] * _PRIOR, [0], []
    highest = []
    for one in measurements:
        if one.seconds is not None and one.tokens > 0:
            paces.append(Pace(one.tokens, one.checkpointing, one.seconds))
        if one.allocated and (ratio := _ratio(spec, one)) is not None:
            highest.append(ratio)
            if not one.at_least:
                ratios.append(ratio)
                extras.append(one.reserved - one.allocated)
    scale = sorted(ratios)[len(ratios) // 2]
    extra = sorted(extras)[math.ceil(_USUAL * len(extras)) - 1]
    worst = max(scale, *highest, *([1.0] if len(highest) < _ENOUGH else []))
    return Known(Correction(scale, worst, max(0, extra)), tuple(paces), len(highest))


def _ratio(spec: Spec, one: Measured) -> float | None:
    """What was measured of the part that varies, over its estimate; None where it says of itself
    what cannot be."""
    try:
        guess = need(_like(spec, one), Split(one.micro_batch, one.checkpointing, evaluated=0))
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError):
        return None
    varying = guess.varying + max(0, guess.other_moments)
    kept = guess.saved + guess.data if one.probe else 0
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


_MEASURED = TypeAdapter(Measured)
_TRAITS = (
    "optimizer",
    "frozen",
    "dropout",
    "attention_dropout",
    "head",
    "token_width",
    "data",
    "captured",
)


def _traits(spec: Spec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in _TRAITS}


def _lines(path: Path) -> Iterator[Measured]:
    with contextlib.suppress(OSError):
        for line in _end(path):
            with contextlib.suppress(ValidationError):
                yield _MEASURED.validate_json(line, strict=True)


def _end(path: Path) -> list[str]:
    """The last lines."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _READ))
        return file.read().decode("utf-8", errors="replace").splitlines()[-_MOST:]


def default_folder() -> Path:
    """Of this user, across studies."""
    return user_folder("XDG_CACHE_HOME", ".cache") / "supermax" / "memory"
