"""A Trainer without what belongs to one process: its model, its devices, its accelerator.

detached(trainer)   in the program: picklable while the search runs, as before afterwards
attached(trainer)   in a cell: gives it devices and an accelerator of this process
Pristine(trainer)   in a cell: copies for several trials
"""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Iterator
from typing import Any

import cloudpickle

OF_A_PROCESS = (
    "accelerator",
    "model",
    "model_wrapped",
    "optimizer",
    "lr_scheduler",
    "deepspeed",
    "gather_function",
    "_memory_tracker",
)
"""Attributes of a Trainer that are made anew in every cell."""
OF_THE_HANDLER = ("model", "optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader")
OF_THE_DEVICES = ("_setup_devices", "_n_gpu", "distributed_state")
"""Attributes of TrainingArguments that name the devices of this process."""


@contextlib.contextmanager
def detached(trainer: Any) -> Iterator[None]:
    """Take what belongs to this process from a Trainer, and move its weights to host memory: the
    cells need the GPU. Afterwards the Trainer is as it was."""
    moved = [(module, device) for module in _modules(trainer) if (device := _device_of(module))]
    handler = getattr(trainer, "callback_handler", None)
    with contextlib.ExitStack() as stack:
        for module, device in moved:
            module.to("cpu")
            stack.callback(module.to, device)
        _empty_cache()
        stack.enter_context(_without(trainer, OF_A_PROCESS))
        stack.enter_context(_without(handler, OF_THE_HANDLER))
        stack.enter_context(_without(getattr(trainer, "args", None), OF_THE_DEVICES, remove=True))
        yield


def attached(trainer: Any) -> None:
    """Give an unpickled Trainer the devices of this process."""
    from transformers.trainer_utils import TrainerMemoryTracker

    trainer._memory_tracker = TrainerMemoryTracker(trainer.args.skip_memory_metrics)
    trainer.create_accelerator_and_postprocess()


class Pristine:
    """State of a Trainer before its first trial, for a process that runs several. Its data sets
    are shared: they are large, and trials do not change them."""

    def __init__(self, trainer: Any) -> None:
        data = [getattr(trainer, name, None) for name in ("train_dataset", "eval_dataset")]
        self._shared = [each for each in data if each is not None]  # some have no truth value
        buffer = io.BytesIO()
        _Pickler(buffer, self._shared).dump(trainer)
        self._data = buffer.getvalue()

    def copy(self) -> Any:
        return _Unpickler(io.BytesIO(self._data), self._shared).load()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickler that writes the places of shared objects in a list."""

    def __init__(self, file: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(file)
        self._places = {id(value): place for place, value in enumerate(shared)}

    def persistent_id(self, value: Any) -> int | None:
        return self._places.get(id(value))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, place: int) -> Any:
        return self._shared[place]


@contextlib.contextmanager
def _without(owner: Any, names: tuple[str, ...], *, remove: bool = False) -> Iterator[None]:
    """Set attributes to None, or remove them, and restore them at the end."""
    there = vars(owner) if owner is not None else {}
    saved = {name: there[name] for name in names if name in there}
    for name in saved:
        if remove:
            del vars(owner)[name]
        else:
            vars(owner)[name] = None
    try:
        yield
    finally:
        if saved:
            vars(owner).update(saved)


def _modules(trainer: Any) -> list[Any]:
    """Return the models and loss functions of a Trainer, each once."""
    import torch

    found = {id(v): v for v in vars(trainer).values() if isinstance(v, torch.nn.Module)}
    return list(found.values())


def _device_of(module: Any) -> Any:
    """Return the GPU that a module is on; None: it is on the CPU, on several devices, or cannot
    be moved."""
    devices = {value.device for value in (*module.parameters(), *module.buffers())}
    if len(devices) != 1 or getattr(module, "is_quantized", False):
        return None
    device = devices.pop()
    return device if device.type not in ("cpu", "meta") else None


def _empty_cache() -> None:
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
