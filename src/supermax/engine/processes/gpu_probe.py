"""Probe of a GPU in a fresh process, with a time limit: does it still work?

    probe_gpu(device) ──▶ process: cuda_check.py ──▶ Probe ──loss()──▶ why the GPU is lost, or None

A device-side assert, or another error that a trial causes, ends with its process: a fresh process
can use the GPU. A GPU that has fallen off the bus cannot be used by any.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from supermax.engine.processes import cuda_check
from supermax.engine.processes.mps import PIPE

TIMEOUT = 60.0
"""Seconds for a probe. Starting CUDA on a machine with many GPUs can take ten."""
PAUSE = 2.0
"""Seconds between a probe that failed and the one that confirms it."""
_LOST = {
    -1: "its memory does not hold what is written to it",
    100: "CUDA finds no GPU there",
    101: "CUDA does not know it any more",
    214: "it has an uncorrectable ECC error",
    220: "it has an uncorrectable NVLink error",
    304: "CUDA reports an error of the operating system",
    700: "it reports an illegal address for a plain copy",
    702: "a plain copy on it times out",
    714: "it reports a hardware stack error for a plain copy",
    715: "it reports an illegal instruction for a plain copy",
    717: "it reports an invalid address space for a plain copy",
    718: "it reports an invalid program counter for a plain copy",
    719: "it reports a launch failure for a plain copy",
    802: "the system of GPUs is not ready",
    803: "the driver was replaced and does not fit its library",
    999: "CUDA reports an unknown error",
}
"""Result codes of CUDA's driver that mean that a GPU cannot be used. Others, such as a GPU that is
full or reserved for another process, do not."""


@dataclass(frozen=True)
class Probe:
    """Result of a probe."""

    codes: tuple[int, ...] | None = None
    """Result code of CUDA for each visible GPU; None: it said nothing."""
    hung: bool = False


def loss(result: Probe) -> str | None:
    """Return why the probed GPU is lost; None: it works, or the probe cannot tell."""
    if result.hung:
        return f"a check of it did not end within {TIMEOUT:.0f} s"
    if not result.codes or not all(code in _LOST for code in result.codes):
        return None
    return f"{_LOST[result.codes[0]]} (code {result.codes[0]})"


def probe_gpu(device: str | None, tag: Mapping[str, str]) -> Probe:
    """Probe a GPU, named as in CUDA_VISIBLE_DEVICES; None: those that this process sees. A loss is
    confirmed by a second probe. `tag`: environment by which the process is found."""
    first = _probe_once(device, tag)
    if loss(first) is None:
        return first
    time.sleep(PAUSE)
    return _probe_once(device, tag)


def _probe_once(device: str | None, tag: Mapping[str, str]) -> Probe:
    # Without MPS: its server may be in a fault of its own, which ends with its clients.
    env = {**os.environ, **tag, PIPE: os.devnull}
    if device is not None:
        env["CUDA_VISIBLE_DEVICES"] = device
    command = [sys.executable, "-I", str(Path(cuda_check.__file__))]
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        except OSError:  # no process or memory is left: that says nothing about the GPU
            return Probe()
        try:
            process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)  # one that hangs in the driver cannot be killed
            return Probe(hung=True)
        output.seek(0)
        return _parsed(output.read())


def _parsed(output: bytes) -> Probe:
    try:
        codes = json.loads(output.splitlines()[-1])
        return Probe(tuple(map(int, codes)))
    except (IndexError, TypeError, ValueError):  # it crashed, or there is no driver library
        return Probe()
