"""Log of measured memory and step times, across studies, which improves later estimates.

    finished trial ──note()──▶ file ──known()──▶ Correction, speeds

There is one JSONL file for each encoder, device and set of library versions, with a line for each
measurement. Lines that cannot be read are skipped.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from supermax._util.files import make_private, open_private, user_folder, write_whole
from supermax.memory.estimate import Correction, Split, need
from supermax.memory.facts import Spec
from supermax.memory.speed import StepSpeed

_MAX_MEASUREMENTS = 200
"""Number of latest measurements that are used."""
_ENOUGH = 4
"""Number of measurements from which on the worst ratio ignores the estimate itself."""
_PRIOR = 2
"""Number of measurements that the uncorrected estimate counts as."""
_SLACK_QUANTILE = 0.95
"""Quantile of the measured slack that is reserved, so that outliers do not count."""
_READ_BYTES, _MAX_FILE_BYTES = 256 << 10, 1 << 20
"""Bytes read from the end of a file, and the size above which a file is cut to these."""
Count = Annotated[int, Field(ge=0, lt=1 << 50)]
Times = Annotated[int, Field(ge=1, lt=1 << 30)]


@dataclass(frozen=True)
class Measured:
    """Measured memory and time of a trial or a probe."""

    micro_batch: Times
    checkpointing: bool
    length: Times
    effective_batch: Times
    allocated: Count
    """Peak bytes of tensors; 0: only the time was measured."""
    reserved: Count
    """Peak bytes reserved by the allocator."""
    seconds: Annotated[float, Field(gt=0, lt=1e6)] | None = None
    """Time of a micro-step of `tokens` tokens; None: it was too short to measure."""
    tokens: Count = 0
    at_least: bool = False
    """True after an out-of-memory error: the need exceeds what was measured."""
    probe: bool = False
    """Measured in a probe, without the data set and the copies of weights that a trial has."""
    traits: dict[str, Any] = field(default_factory=dict)
    """Fields of the Spec that the estimate depends on."""


@dataclass(frozen=True)
class Known:
    """Result of the measurements of an encoder."""

    correction: Correction = field(default_factory=Correction)
    speeds: tuple[StepSpeed, ...] = ()
    measurements: int = 0
    """Number of measurements of memory."""


class MeasurementLog:
    """Measurements on one device with one set of library versions."""

    def __init__(self, folder: Path, device: str, versions: str) -> None:
        self.folder = folder
        self._mark = f"{device} {versions}"
        self._cache: dict[str, tuple[int, Known]] = {}

    def note(self, spec: Spec, measured: Measured) -> None:
        """Append a measurement. Errors of the disk are ignored: plans work without it."""
        path = self._path(spec)
        with contextlib.suppress(OSError):
            make_private(self.folder)
            line = json.dumps({**asdict(measured), "traits": _traits(spec)}) + "\n"
            if path.exists() and path.stat().st_size > _MAX_FILE_BYTES:
                write_whole(path, "\n".join(_last_lines(path)) + "\n")
            with open_private(path, "ab") as file:
                file.write(line.encode())

    def known(self, spec: Spec) -> Known:
        """Return the corrections for a trial, from all measurements of its encoders so far."""
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
            self._cache[key] = (size, corrections_from(spec, list(_read(path))))
        return self._cache[key][1]

    def _path(self, spec: Spec) -> Path:
        encoders = " ".join(encoder.fingerprint for encoder in spec.encoders)
        mark = hashlib.sha256(f"{self._mark} {encoders} {spec.half}".encode()).hexdigest()
        return self.folder / f"{mark[:24]}.jsonl"


def corrections_from(spec: Spec, measurements: list[Measured]) -> Known:
    """Return the correction and step times that follow from measurements of the same encoder."""
    ratios, extras, speeds = [1.0] * _PRIOR, [0], []
    all_ratios = []  # lower bounds included
    for one in measurements:
        if one.seconds is not None and one.tokens > 0:
            speeds.append(StepSpeed(one.tokens, one.checkpointing, one.seconds))
        if one.allocated and (ratio := _ratio(spec, one)) is not None:
            all_ratios.append(ratio)
            if not one.at_least:
                ratios.append(ratio)
                extras.append(one.reserved - one.allocated)
    scale = sorted(ratios)[len(ratios) // 2]
    extra = sorted(extras)[math.ceil(_SLACK_QUANTILE * len(extras)) - 1]
    worst = max(scale, *all_ratios, *([1.0] if len(all_ratios) < _ENOUGH else []))
    return Known(Correction(scale, worst, max(0, extra)), tuple(speeds), len(all_ratios))


def _ratio(spec: Spec, one: Measured) -> float | None:
    """Return the inexact part as measured, relative to its estimate; None where the measurement
    has impossible traits."""
    try:
        estimate = need(
            _measured_spec(spec, one), Split(one.micro_batch, one.checkpointing, evaluated=0)
        )
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError):
        return None
    varying = estimate.varying + max(0, estimate.other_moments)
    absent = estimate.saved + estimate.data if one.probe else 0
    measured = one.allocated - (estimate.allocated - varying - absent)
    return min(4.0, max(0.25, measured / max(1, varying)))


def _measured_spec(spec: Spec, one: Measured) -> Spec:
    """Return the Spec of the trial that was measured."""
    traits = {k: v for k, v in one.traits.items() if k in _TRAITS}
    return replace(spec, **traits, length=one.length, effective_batch=one.effective_batch)


_MEASURED = TypeAdapter(Measured)
_TRAITS = (
    "optimizer",
    "frozen",
    "adapter",
    "adapter_bytes",
    "dropout",
    "attention_dropout",
    "head",
    "token_width",
    "data",
    "captured",
)


def _traits(spec: Spec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in _TRAITS}


def _read(path: Path) -> Iterator[Measured]:
    with contextlib.suppress(OSError):
        for line in _last_lines(path):
            with contextlib.suppress(ValidationError):
                yield _MEASURED.validate_json(line, strict=True)


def _last_lines(path: Path) -> list[str]:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _READ_BYTES))
        return file.read().decode("utf-8", errors="replace").splitlines()[-_MAX_MEASUREMENTS:]


def default_folder() -> Path:
    """Return the folder of this user's measurements, across studies."""
    return user_folder("XDG_CACHE_HOME", ".cache") / "supermax" / "memory"
