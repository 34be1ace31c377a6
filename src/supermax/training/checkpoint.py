"""Checkpoints that resume a training bitwise, written atomically while training continues."""

from __future__ import annotations

import os
import pickle
import random
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from supermax._util.attributes import STATE
from supermax._util.files import open_private


def random_states() -> dict[str, Any]:
    """Return the states of all random generators that a step may draw from."""
    numpy_state = np.random.get_state()
    states: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (numpy_state[0], numpy_state[1].tolist(), *numpy_state[2:]),  # type: ignore[index]
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def restore_random(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])


def copied(
    weights: dict[str, torch.Tensor], into: dict[str, torch.Tensor], on_host: bool = False
) -> dict[str, torch.Tensor]:
    """Copy the weights into an earlier copy, or into new tensors if `into` is empty.

    New tensors are on the device of the weights, which needs no CPU–GPU synchronisation, or on the
    CPU with `on_host`.
    """
    if not into:
        copy: dict[str, torch.Tensor] = (
            on_cpu(weights)
            if on_host
            else {name: weight.detach().clone() for name, weight in weights.items()}
        )
        return copy
    for name, weight in weights.items():
        into[name].copy_(weight)
    return into


def on_cpu(value: Any) -> Any:
    """Return a copy on the CPU of all tensors in nested dicts, lists and tuples."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: on_cpu(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(on_cpu(item) for item in value)
    return value


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
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

    def load(self) -> dict[str, Any] | None:
        return read_checkpoint(self._path)

    def save(self, state: dict[str, Any]) -> None:
        self.wait()
        snapshot = on_cpu(state)
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

    def _write(self, state: dict[str, Any]) -> None:
        try:
            write_checkpoint(self._path, state)
        except BaseException as error:  # raised by the next wait() of the training thread
            self._error = error
