"""Everything a trial needs to go on to the bit: written atomically, beside training."""

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

from supermax.files import open_private
from supermax.naming import STATE


def random_states() -> dict[str, Any]:
    """Every generator that a step may draw from."""
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
    """The weights as they are now, where they are, so that no device has to wait; or on the host.
    An earlier copy is overwritten."""
    if not into:
        kept: dict[str, torch.Tensor] = (
            on_cpu(weights)
            if on_host
            else {name: weight.detach().clone() for name, weight in weights.items()}
        )
        return kept
    for name, weight in weights.items():
        into[name].copy_(weight)
    return into


def on_cpu(value: Any) -> Any:
    """A copy that training does not change any more."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: on_cpu(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(on_cpu(item) for item in value)
    return value


def write_whole(path: Path, state: dict[str, Any]) -> None:
    """The file is there with all of it, or as it was before."""
    temporary = path.with_suffix(".tmp")
    with open_private(temporary, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_whole(path: Path) -> dict[str, Any] | None:
    """What was written; None where there is nothing, or nothing that can be read any more."""
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (EOFError, RuntimeError, pickle.UnpicklingError, zipfile.BadZipFile):
        return None
    return state


class Saver:
    """Writes states in a thread of its own, one at a time. A state is a copy, so training goes
    on meanwhile."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / STATE
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def load(self) -> dict[str, Any] | None:
        return read_whole(self._path)

    def save(self, state: dict[str, Any]) -> None:
        self.wait()
        copied = on_cpu(state)
        self._thread = threading.Thread(target=self._write, args=(copied,), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until the last state is on disk. Raises what kept it from getting there."""
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
            write_whole(self._path, state)
        except BaseException as error:  # reported by the next call, in the thread that trains
            self._error = error
