"""Optimizers by their names in the space; one that cannot run is an error, never replaced.

adamw       torch.optim.AdamW
adafactor   torch.optim.Adafactor without CPU-GPU synchronisations, with absolute steps and the
            paper's eps1 (see below)
lion        pytorch_optimizer.Lion
adamw_8bit  bitsandbytes.optim.AdamW8bit: on the CPU, CUDA and XPU

The updates of the first three can be captured as CUDA graphs: their learning rate may be a tensor
on the device, and they read nothing back from it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import warnings
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch

from supermax.errors import EnvironmentFault, UserError
from supermax.training.config import OptimConfig
from supermax.training.optim.adafactor import DeviceAdafactor

Groups = list[dict[str, Any]]

_PACKAGES = {
    "lion": ("pytorch_optimizer", "pytorch-optimizer"),
    "adamw_8bit": ("bitsandbytes", "bitsandbytes"),
}
_8BIT_DEVICES = ("cpu", "cuda", "xpu")  # with an 8-bit update in bitsandbytes


def parameter_groups(
    model: torch.nn.Module, config: OptimConfig, layers_above: Mapping[str, int]
) -> Groups:
    """Return the trained parameters, grouped by learning rate and weight decay in a fixed order.

    `layers_above`: number of layers above a parameter in its encoder. A parameter that is missing
    there belongs to a head and has the full learning rate, like an encoder's last layer. Biases
    and norms, which have one dimension, have no weight decay.
    """
    members: dict[tuple[int, bool], list[torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            above = layers_above.get(name, 0) if config.layer_decay < 1 else 0
            members.setdefault((above, parameter.ndim > 1), []).append(parameter)
    if not members:
        raise UserError("The model has no parameters to train: all of them are frozen.")
    return [
        {
            "params": members[above, decayed],
            "lr": config.lr * config.layer_decay**above,
            "weight_decay": config.weight_decay if decayed else 0.0,
        }
        for above, decayed in sorted(members, reverse=True)
    ]


def unavailable(device_type: str) -> dict[str, str]:
    """Return the optimizers that cannot run on this type of device, each with the reason."""
    reasons = {}
    for name, (module, package) in _PACKAGES.items():
        if importlib.util.find_spec(module) is None:
            reasons[name] = (
                f"The optimizer {name} needs the package {package}, which is not installed: "
                f"'pip install {package}', or leave {name} out of the space."
            )
    if "adamw_8bit" not in reasons and device_type not in _8BIT_DEVICES:
        reasons["adamw_8bit"] = (
            f"The optimizer adamw_8bit does not run on {device_type}: bitsandbytes has it for "
            f"{', '.join(_8BIT_DEVICES)} only. Leave it out of the space."
        )
    return reasons


def make_optimizer(
    groups: Groups, config: OptimConfig, device: torch.device | str
) -> torch.optim.Optimizer:
    """Return the configured optimizer. Raises UserError where it cannot run here."""
    device = torch.device(device)
    if reason := unavailable(device.type).get(config.name):
        raise UserError(reason)
    betas = (config.beta1, config.beta2)
    made: torch.optim.Optimizer
    if config.name == "lion":
        made = _load("lion").Lion(groups, lr=config.lr, betas=betas)
    elif config.name == "adamw_8bit":
        # Parameters with fewer than 4,096 elements keep a 32-bit state, as by default.
        kind = _load("adamw_8bit").optim.AdamW8bit
        made = kind(groups, lr=config.lr, betas=betas, eps=config.eps)
    elif config.name == "adafactor":
        # Torch multiplies the learning rate by the RMS of the parameter: with a rate that suits
        # AdamW, weights with an RMS of 0.04 would move by a 25th of it. Absolute steps use the
        # rate as it is. Torch's default for eps1, 1.2e-7, also bounds the mean square of a
        # gradient from below. That is an RMS of 3e-4, more than is usual in fine-tuning, so
        # updates would grow as gradients shrink. The paper adds 1e-30 to squares; torch squares
        # eps1.
        made = DeviceAdafactor(groups, lr=config.lr, eps=(1e-15, 1e-3), absolute=True)
    else:
        fused = device.type in ("cpu", "cuda")  # one kernel call for many parameters
        made = torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.eps, fused=fused)
    return made


@functools.cache
def check_grad_scale(device: str) -> None:
    """Raise EnvironmentFault unless torch's fused AdamW divides gradients by `grad_scale`.

    Gradients are clipped through that attribute (`TrainingStep`). It is not documented, and a
    torch that no longer read it would train without clipping and without an error. So one step on
    one weight is tried, once per device and process.
    """
    weight = torch.nn.Parameter(torch.zeros(1, device=device))
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW([weight], lr=0.0, betas=(0.5, 0.5), fused=True)
    optimizer.grad_scale = torch.full((), 4.0, device=device)  # type: ignore[attr-defined]
    optimizer.step()
    mean = float(optimizer.state[weight]["exp_avg"])
    if not math.isclose(mean, (1 - 0.5) / 4, rel_tol=1e-3):
        raise EnvironmentFault(
            f"Gradients would not be clipped: fused AdamW of torch {torch.__version__} ignores "
            "grad_scale on this device. Install a version that reads it: "
            "pip install 'torch==2.13.*'."
        )


def _load(name: str) -> ModuleType:
    module, package = _PACKAGES[name]
    with warnings.catch_warnings():
        # Both packages import parts of torch that are deprecated.
        warnings.filterwarnings("ignore", r".*torch\.jit\.script", DeprecationWarning)
        try:
            return importlib.import_module(module)
        except Exception as error:
            raise UserError(
                f"The optimizer {name} cannot be used: the package {package} is installed, but "
                f"does not load ({type(error).__name__}: {error})."
            ) from error
