"""Pack of a long search's folder, from which another machine resumes it.

folder ──pack()──▶ FILE.tar.gz ──unpack()──▶ folder, without weights and checkpoints
"""

from __future__ import annotations

import sqlite3
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

LARGEST = 16 << 20
"""Bytes that a pack should not exceed, since some machines return no larger files."""
_SUFFIXES = {".jsonl", ".json", ".yaml", ".csv", ".log", ".txt"}
_LEFT_OUT = {"cache", "checkpoint", "bytecode", "bar.json", "status.json"}
"""Folders that are made again, checkpoints, and files that describe weights or a living run."""


def pack(folder: Path, file: Path) -> int:
    """Write a pack. Return 1 if it is larger than `LARGEST`, else 0."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as copies, tarfile.open(file, "w:gz") as archive:
        for path in sorted(_packed(folder)):
            name = path.relative_to(folder)
            if path.suffix == ".db":
                copy = Path(copies) / path.name
                _copy_database(path, copy)
                path = copy
            archive.add(path, name)
    size = file.stat().st_size
    print(f"{file}: {size / 2**20:.1f} MiB")
    if size > LARGEST:
        print(f"It is larger than {LARGEST >> 20} MiB.", file=sys.stderr)
        return 1
    return 0


def unpack(file: Path, folder: Path) -> None:
    """Fill an empty folder from a pack."""
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"{folder} is not empty: leave out --unpack to resume what is there.")
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file) as archive:
        archive.extractall(folder, filter="data")


def _packed(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name in _LEFT_OUT or path.is_symlink():
            continue
        if path.is_dir():
            yield from _packed(path)
        elif path.suffix in _SUFFIXES or path.suffix == ".db":
            yield path


def _copy_database(path: Path, copy: Path) -> None:
    """Copy a study consistently, with what is still in its write-ahead log."""
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
