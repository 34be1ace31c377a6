"""Share of a GPU's multiprocessors for each cell under CUDA MPS: used only if products are right.

    share ──matrix_products.py, in a process with it──▶ right: used; wrong: the whole GPU instead

A verdict is kept for a GPU, its driver, the version of torch and the share.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from supermax._util.files import make_private, write_whole
from supermax._util.text import one_line
from supermax.engine.processes.mps import SHARE, share_in_use
from supermax.errors import EnvironmentFault
from supermax.memory.devices import gpus
from supermax.memory.measurements import default_folder
from supermax.training.steps.matrix_products import ProductCheck

_TIMEOUT = 180.0
"""Seconds for a check, imports included."""
_CHECK = TypeAdapter(ProductCheck)


def check_share(devices: list[str], tell: Callable[[str], None], *, given: bool) -> None:
    """Check matrix products with the share that MPS is about to give to cells; where some are
    wrong, give them the whole GPU.

    `devices`: GPUs of the run; none: those that are visible. `given`: the share is the user's,
    from the environment or a daemon of theirs. Then EnvironmentFault is raised instead.
    """
    share = share_in_use()
    if share >= 100:
        return
    environment = dict(os.environ)
    if devices:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    try:
        found = _checked(environment, share, tell)
    except (OSError, subprocess.SubprocessError, ValidationError) as error:
        tell(f"Matrix products with {share:g} % of the GPU could not be checked: {error}")
        return
    if not found.wrong:
        return
    wrong = (
        f"With {share:g} % of the GPU's multiprocessors, {found.wrong} of {found.checked} matrix "
        f"products are wrong ({found.example})"
    )
    if not given:
        os.environ[SHARE] = "100"
        tell(f"{wrong}, so each cell may use all of them.")
        return
    way = (
        f"unset {SHARE}, or set it to 100"
        if SHARE in os.environ
        else "set the daemon's default with: echo set_default_active_thread_percentage 100 | "
        "nvidia-cuda-mps-control"
    )
    raise EnvironmentFault(f"{wrong}: trainings would fail or learn badly. To go on, {way}.")


def _checked(
    environment: Mapping[str, str], share: float, tell: Callable[[str], None]
) -> ProductCheck:
    """Return the verdict of an earlier run, or of a check now."""
    file = _file(environment, share)
    with contextlib.suppress(OSError, ValidationError):
        return _CHECK.validate_json(file.read_bytes())
    tell(f"Checking matrix products with {share:g} % of the GPU, once for this version of torch.")
    found = check_in_process(environment)
    with contextlib.suppress(OSError, EnvironmentFault):
        make_private(file.parent)
        write_whole(file, json.dumps(asdict(found)))
    return found


def _file(environment: Mapping[str, str], share: float) -> Path:
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    found = sorted(f"{gpu.index} {gpu.uuid} {gpu.name} {gpu.driver}" for gpu in gpus())
    mark = f"{found} {visible} {version('torch')} {share}"
    name = hashlib.sha256(mark.encode()).hexdigest()[:24]
    return default_folder() / f"matrix-products-{name}.json"


def check_in_process(environment: Mapping[str, str]) -> ProductCheck:
    """Check matrix products in a process with this environment."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "supermax.training.steps.matrix_products"],
        env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )
    if done.returncode:
        raise OSError(one_line(done.stderr, 200) or f"code {done.returncode}")
    return _CHECK.validate_json(done.stdout)
