"""Imports: bytecode cached where an installation has none, garbage collector paused."""

from __future__ import annotations

import gc
import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supermax._util.importing import cache_bytecode, gc_paused

PROGRAM = """
import json, os, sys
from supermax._util.importing import cache_bytecode
from supermax.engine.processes.fork_server import command
cache_bytecode("heavy")
import heavy
print(json.dumps({
    "cached": heavy.__cached__,
    "kept": os.path.exists(heavy.__cached__),
    "silent": "-B" in command("fork_server"),
    "prefix": next((flag for flag in command("fork_server") if flag.startswith("pycache")), None),
    "told": [os.environ.get(n) for n in ("PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE")],
}))
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    (tmp_path / "site" / "heavy").mkdir(parents=True)
    (tmp_path / "site" / "heavy" / "__init__.py").write_text("")
    return tmp_path / "site"


def start(packages: Path, **variables: str) -> Any:
    env = {n: v for n, v in os.environ.items() if not n.startswith(("PYTHON", "XDG_"))}
    path = os.pathsep.join([str(packages), *sys.path])
    env |= {"PYTHONPATH": path, "HOME": str(packages.parent)} | variables
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, stdout=-1, check=True)
    return json.loads(done.stdout)


def test_bytecode_is_cached_where_python_would_write_none(packages: Path) -> None:
    found = start(packages, PYTHONDONTWRITEBYTECODE="1")
    kept = packages.parent / ".cache" / "supermax" / "bytecode"
    assert found["cached"].startswith(str(kept))
    assert found["kept"]
    assert not found["silent"]
    assert found["told"] == [str(kept), None]  # for processes that this one starts
    assert kept.stat().st_mode & 0o777 == 0o700
    assert not (packages / "heavy" / "__pycache__").exists()


def test_python_writes_bytecode_itself_where_it_can(packages: Path) -> None:
    found = start(packages)
    assert found["cached"].startswith(str(packages))
    assert found["told"] == [None, None]
    again = start(packages, PYTHONDONTWRITEBYTECODE="1")  # it is there now
    assert again["told"] == [None, "1"]
    assert again["silent"]


def test_flags_that_ignore_the_environment_change_nothing(packages: Path) -> None:
    code = f"import sys; sys.path[:0] = {[str(packages), *sys.path]!r}\n{PROGRAM}"
    home = {"HOME": str(packages.parent), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-E", "-B", "-c", code], env=home, stdout=subprocess.PIPE, check=True
    )
    kept = packages.parent / ".cache" / "supermax" / "bytecode"
    assert json.loads(done.stdout)["prefix"] == f"pycache_prefix={kept}"


@pytest.mark.parametrize("cache", ["relative", "~/cache"])
def test_only_an_absolute_path_names_the_cache(packages: Path, cache: str) -> None:
    found = start(packages, PYTHONDONTWRITEBYTECODE="1", XDG_CACHE_HOME=cache)
    assert found["told"][0] == str(packages.parent / ".cache" / "supermax" / "bytecode")


def test_nothing_is_cached_on_a_nearly_full_disk(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setenv("HOME", str(packages.parent))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=(1 << 30) - 1))
    monkeypatch.syspath_prepend(packages)
    cache_bytecode("heavy")
    assert sys.pycache_prefix is None


def copy_bytecode(kept: Path) -> None:
    """Copy what is compiled already: a program with an empty cache compiles for ten seconds."""
    importlib.import_module("supermax.ui.cli")
    for module in list(sys.modules.values()):
        cached, source = getattr(module, "__cached__", None), getattr(module, "__file__", None)
        if not isinstance(cached, str) or not isinstance(source, str):
            continue  # of torch.ops, every attribute is another kind of object
        if "torch" not in source and Path(cached).exists():
            place = kept / Path(source).parent.relative_to("/")
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy2(cached, place)


@pytest.mark.slow
def test_truncated_bytecode_is_deleted(tmp_path: Path) -> None:
    """As left by a disk that fills up during the write."""
    kept = tmp_path / "supermax" / "bytecode"
    env = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(kept)

    def version() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "supermax", "--version"]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    copy_bytecode(kept)
    assert version().returncode == 0
    [file] = kept.rglob("supermax/ui/cli/arguments.*.pyc")
    file.write_bytes(file.read_bytes()[:100])
    damaged = version()
    assert (damaged.returncode, damaged.stdout) == (3, "")
    assert damaged.stderr.startswith("Cached bytecode was damaged and has been deleted.")
    assert version().returncode == 0


def test_a_folder_that_others_can_write_is_not_used(packages: Path) -> None:
    kept = packages.parent / "cache" / "supermax" / "bytecode"
    kept.mkdir(parents=True)
    kept.chmod(0o777)
    cache = str(packages.parent / "cache")
    found = start(packages, PYTHONDONTWRITEBYTECODE="1", XDG_CACHE_HOME=cache)
    assert found["told"] == [None, "1"]
    assert not list(kept.iterdir())


def test_a_folder_that_others_can_replace_is_not_used(packages: Path) -> None:
    shared = packages.parent / "shared"
    (shared / "supermax").mkdir(parents=True)
    shared.chmod(0o777)
    found = start(packages, PYTHONDONTWRITEBYTECODE="1", XDG_CACHE_HOME=str(shared))
    assert found["told"] == [None, "1"]
    shared.chmod(0o1777)  # as /tmp: there others cannot move what is not theirs
    (shared / "supermax").chmod(0o700)
    found = start(packages, PYTHONDONTWRITEBYTECODE="1", XDG_CACHE_HOME=str(shared))
    assert found["told"] == [str(shared / "supermax" / "bytecode"), None]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_bytecode_is_cached_where_packages_are_read_only(packages: Path) -> None:
    (packages / "heavy").chmod(0o500)
    assert start(packages)["told"][0] is not None


def test_without_a_home_nothing_changes(packages: Path) -> None:
    found = start(packages, PYTHONDONTWRITEBYTECODE="1", HOME="/proc/nowhere")
    assert found["told"] == [None, "1"]


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_restored_after_the_imports(enabled: bool) -> None:
    before = gc.isenabled()
    try:
        gc.enable() if enabled else gc.disable()
        with gc_paused():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        gc.enable() if before else gc.disable()
