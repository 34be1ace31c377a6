"""Checkpoints that resume a training bitwise, written atomically while training continues."""

from __future__ import annotations

import os
import pickle
import random
import threading
import zipfile
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

import numpy as np
import torch
from torch import Tensor

from supermax._util.attributes import STATE
from supermax._util.files import open_private
from supermax.training.steps.step import StepState


class RandomStates(TypedDict):
    """States of all random generators that a step may draw from."""

    torch: Tensor
    python: tuple[int, tuple[int, ...], float | None]
    numpy: tuple[str, list[int], int, int, float]
    cuda: NotRequired[list[Tensor]]
    """One for each GPU, if CUDA was initialised."""


class Checkpoint(TypedDict):
    """Everything that a training resumes from."""

    loop: dict[str, Any]
    """Fields of `loop.State`."""
    model: dict[str, Tensor]
    """Weights, with an adapter without the frozen ones."""
    base: NotRequired[list[object]]
    """Marks of the encoders whose frozen weights are missing in `model`; earlier versions have
    none."""
    step: StepState
    best: dict[str, Tensor]
    """Weights of the best epoch; empty while no value was finite."""
    random: RandomStates
    threads: int
    """Threads of torch on the CPU."""


def random_states() -> RandomStates:
    numpy_state = np.random.get_state(legacy=True)
    assert isinstance(numpy_state, tuple)
    name, keys, position, has_gauss, gauss = numpy_state
    states: RandomStates = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (name, keys.tolist(), position, has_gauss, gauss),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def restore_random(states: RandomStates) -> None:
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    name, keys, position, has_gauss, gauss = states["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, gauss))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])


def copied(
    weights: dict[str, Tensor], into: dict[str, Tensor], on_host: bool = False
) -> dict[str, Tensor]:
    """Copy the weights into an earlier copy, or into new tensors if `into` is empty.

    New tensors are on the device of the weights, which needs no CPU–GPU synchronisation, or on the
    CPU with `on_host`.
    """
    if not into:
        device = "cpu" if on_host else None
        into = {k: torch.empty_like(weight, device=device) for k, weight in weights.items()}
    for name, weight in weights.items():
        into[name].copy_(weight)
    return into


def _on_cpu(value: object) -> object:
    """Return a copy on the CPU of all tensors in nested dicts, lists and tuples."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _on_cpu(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_on_cpu(item) for item in value)
    return value


def write_checkpoint(path: Path, state: object) -> None:
    """Write a checkpoint atomically: after a crash the file is complete, or unchanged."""
    temporary = path.with_suffix(".tmp")
    with open_private(temporary, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """Return the checkpoint; None if there is none, or if the file is damaged."""
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (EOFError, RuntimeError, pickle.UnpicklingError, zipfile.BadZipFile):
        return None
    return state


class Saver:
    """Background writer of checkpoints, one at a time.

    Each is copied to the CPU before `save` returns, so training can change the weights meanwhile.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / STATE
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def load(self) -> Checkpoint | None:
        return cast("Checkpoint | None", read_checkpoint(self._path))

    def save(self, checkpoint: Checkpoint) -> None:
        self.wait()
        snapshot = _on_cpu(checkpoint)
        self._thread = threading.Thread(target=self._write, args=(snapshot,), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the last checkpoint is on disk. Raises the error that prevented it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def clear(self) -> None:
        self.wait()
        self._path.unlink(missing_ok=True)

    def _write(self, snapshot: object) -> None:
        try:
            write_checkpoint(self._path, snapshot)
        except BaseException as error:  # raised by the next wait() of the training thread
            self._error = error
