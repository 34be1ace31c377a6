"""Outages around a contender: its disk is full for a while, or its database is gone."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

DISK = 1 << 30
"""Bytes of the file system that is filled."""
SCENARIOS = ("clean", "faults", "disk", "database", "occupied")
"""Runs of a contender: nothing happens, the faults of the plan and kills of the driver, its disk
is full, its database is gone, its GPU's memory is taken."""


class Outage(Protocol):
    """Something that is taken from a run and given back."""

    def begin(self) -> None: ...

    def end(self) -> None: ...


@dataclass(frozen=True)
class Surroundings:
    """What a run stands on."""

    home: Path
    """Folder in which a contender keeps all of its files."""
    url: str
    """Storage of a contender that takes one."""
    outage: Outage | None = None


@dataclass(frozen=True)
class FullDisk:
    """File system without a free byte."""

    folder: Path

    def begin(self) -> None:
        block = bytes(1 << 20)
        with (self.folder / "ballast").open("wb", buffering=0) as file:
            for size in (len(block), 4096, 1):
                with contextlib.suppress(OSError):
                    while file.write(block[:size]):
                        pass

    def end(self) -> None:
        (self.folder / "ballast").unlink()


class DatabaseServer(Protocol):
    """PostgreSQL server that can be stopped and started again."""

    path: str

    def start(self) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True)
class StoppedDatabase:
    """PostgreSQL server that is down."""

    server: DatabaseServer

    def begin(self) -> None:
        self.server.stop()

    def end(self) -> None:
        self.server.start()


@contextlib.contextmanager
def surroundings(scenario: str, folder: Path) -> Iterator[Surroundings]:
    """Prepare what a run of the scenario stands on, in `folder`."""
    home = folder / "home"
    home.mkdir()
    url = f"sqlite:///{home}/study.db"
    if scenario == "disk":
        with mounted(home):
            yield Surroundings(home, url, FullDisk(home))
    elif scenario == "database":
        with _server() as server:
            host = Path(server.path).parent
            url = f"postgresql+psycopg://postgres@/postgres?host={host}"
            yield Surroundings(home, url, StoppedDatabase(server))
    elif scenario == "occupied":
        from gpu_work import OccupiedGpu

        yield Surroundings(home, url, OccupiedGpu())
    else:
        yield Surroundings(home, url)


@contextlib.contextmanager
def mounted(folder: Path) -> Iterator[None]:
    """Mount a file system of `DISK` bytes, in memory, at a folder."""
    if os.geteuid() != 0:
        raise PermissionError(
            errno.EPERM,
            "a file system can be mounted by root only: run this as "
            "`unshare --map-root-user --mount python benchmarks/faults/…`",
        )
    options = f"size={DISK}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextlib.contextmanager
def _server() -> Iterator[DatabaseServer]:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.engine.storage.postgres import restartable_server

    with restartable_server() as server:
        yield server
