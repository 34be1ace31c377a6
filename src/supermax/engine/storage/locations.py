"""Location of a study: address of its storage, and default run folder.

study ──▶ storage's address (no password) ──▶ run folder beside it, or in the user's data folder
"""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import shutil
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study

from supermax._util.files import user_folder
from supermax._util.text import masked_addresses, masked_query
from supermax.engine.storage import journal, rdb, sqlite
from supermax.engine.storage.run_folder import StudyFolder


@dataclass(frozen=True)
class Location:
    """Storage and default run folder of a study."""

    address: str
    """Storage URL or path without password; the same in every process."""
    run_dir: Path
    file: Path | None
    """File that holds the study; None: a server, or memory."""
    volatile: bool
    """True: the study is in the memory of this process."""
    shared: bool = False
    """True: a database server, on which several runs work on one study."""

    @property
    def lock(self) -> Path:
        """Lock file in the default run folder, which other commands check."""
        return self.run_dir / "lock"


def find_location(study: Study) -> Location:
    """Return where a study is stored, and its default run folder. Creates nothing."""
    return locate(study._storage, study.study_name)


def locate(storage: BaseStorage, study_name: str) -> Location:
    """Return where a study of this name is, or would be, in a storage. Creates nothing."""
    storage = rdb.uncached(storage)
    name = file_name(study_name)
    file = _file_of(storage)
    if file is not None:
        return Location(str(file), _beside(file) / name, file, False)
    if isinstance(storage, InMemoryStorage) or sqlite.is_sqlite(storage):
        # The study lives in this object, so its folder is remembered there.
        folder = vars(storage).get("_supermax") or _temporary_folder()
        vars(storage)["_supermax"] = folder
        return Location("memory", folder / name, None, True)
    raw = _address(storage)
    address = masked_query(masked_addresses(raw))
    folder, legacy = (data_folder() / _digest(text) for text in (address, raw))
    if legacy.is_dir() and not folder.is_dir():  # earlier versions hashed the password too
        folder = legacy
    if rdb.server_of(storage) is None:
        return Location(address, folder / name, None, False)
    return Location(address, _folder_of_host(folder / name), None, False, shared=True)


def _folder_of_host(folder: Path) -> Path:
    """Return the run folder of this machine: the home directory may be shared by many. Earlier
    versions had one for all."""
    if StudyFolder(folder).is_of_this_host():
        return folder
    return folder / "hosts" / file_name(platform.node())


def data_folder() -> Path:
    """Return the folder of the run folders of studies whose storage is not a file."""
    return user_folder("XDG_DATA_HOME", ".local", "share") / "supermax"


def _digest(address: str) -> str:
    return hashlib.sha256(address.encode()).hexdigest()[:12]


def _beside(file: Path) -> Path:
    """Return the folder for run folders beside a study's file. If it belongs to another user, in
    which this one cannot or should not write, return one with the uid in its name."""
    usual = file.with_name(f"{file.name}.supermax")
    try:
        owner = usual.lstat().st_uid
        trusted = owner == file.stat().st_uid and os.access(usual, os.R_OK | os.W_OK | os.X_OK)
    except OSError:  # it does not exist yet, or the study's file is gone
        return usual
    usable = owner == os.geteuid() or trusted
    return usual if usable else file.with_name(f"{file.name}.supermax-{os.geteuid()}")


def key_of(study: Study, location: Location, identity: str) -> str:
    """Return a key of the study that does not depend on the path or server name by which it is
    opened. A copied file has the same identity, but another key."""
    file = sqlite.SameFile(location.file).key if location.file is not None else None
    return f"{file}-{study._study_id}" if file else identity


def _temporary_folder() -> Path:
    """Return a folder for a study in memory. It is deleted when the program exits, unless it holds
    faults or checkpoints."""
    folder = Path(tempfile.gettempdir()) / f"supermax-{uuid.uuid4().hex[:12]}"
    creator = os.getpid()

    def clean_up() -> None:
        ledgers = folder.glob("*/trials/*/ledger.jsonl")
        faulty = any('"fault"' in ledger.read_text(errors="replace") for ledger in ledgers)
        checkpoints = any(folder.glob("*/trials/*/checkpoint/*"))
        if os.getpid() == creator and not faulty and not checkpoints:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(clean_up)
    return folder


def prepare_location(storage: BaseStorage) -> None:
    """Prepare a storage for a run: write-ahead logging for SQLite, keepalives for servers, repair
    of a journal's torn last line."""
    storage = rdb.uncached(storage)
    if isinstance(storage, RDBStorage) and sqlite.is_sqlite(storage):
        sqlite.use_wal(storage)
    if (server := rdb.server_of(storage)) is not None:
        rdb.enable_keepalives(server)
    if isinstance(storage, JournalStorage):
        journal.repair(storage)


def _file_of(storage: BaseStorage) -> Path | None:
    if isinstance(storage, JournalStorage):
        if isinstance(storage._backend, JournalFileBackend):
            return Path(storage._backend._file_path).resolve()
        return None
    return sqlite.database_file(storage)


def _address(storage: BaseStorage) -> str:
    if isinstance(storage, RDBStorage):
        return str(storage.engine.url.set(password=None).render_as_string(hide_password=True))
    if isinstance(storage, JournalStorage):
        return f"journal {type(storage._backend).__name__} {getattr(storage._backend, '_url', '')}"
    host, port = getattr(storage, "_host", ""), getattr(storage, "_port", "")
    return f"{type(storage).__name__} {host}:{port}"


def checkpoint_folder(place: str, study_name: str, identity: str) -> str:
    """Return the folder or URL of a study's checkpoints at a shared place."""
    return f"{place.rstrip('/')}/{file_name(study_name)}-{identity[:8]}"


def file_name(study_name: str) -> str:
    """Return a study's name as a file name: readable, safe and unique."""
    name = quote(study_name, safe=" ,=@+")
    if len(name) > 100 or name in ("", ".", ".."):
        name = f"{name[:80]}~{hashlib.sha256(study_name.encode()).hexdigest()[:12]}"
    return name
