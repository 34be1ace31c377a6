"""Where a study lives: its storage's address, its default run folder, and both made ready.

study ──▶ storage's address (no password) ──▶ run folder beside it, or in the user's data folder
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study

from supermax.engine import journal, rdb, sqlite
from supermax.files import user_folder
from supermax.words import masked_addresses, masked_query


@dataclass(frozen=True)
class Home:
    """`address` is the same in every process that opens the storage, and holds no secret."""

    address: str
    run_dir: Path
    file: Path | None  # that the study is in
    volatile: bool  # the study is gone with this process

    @property
    def lock(self) -> Path:
        """The lock in the default run folder, which other commands look at."""
        return self.run_dir / "lock"


def find_home(study: Study) -> Home:
    storage = rdb.unwrapped(study._storage)
    name = _file_name(study.study_name)
    file = _file_of(storage)
    if file is not None:
        return Home(str(file), _beside(file) / name, file, False)
    if isinstance(storage, InMemoryStorage) or sqlite.is_sqlite(storage):
        # Found again for as long as the study lives, which is in this very object.
        somewhere = vars(storage).get("_supermax") or _somewhere()
        vars(storage)["_supermax"] = somewhere
        return Home("memory", somewhere / name, None, True)
    raw = _address(storage)
    address = masked_query(masked_addresses(raw))
    folder, older = (data_folder() / _digest(one) for one in (address, raw))
    if older.is_dir() and not folder.is_dir():  # it was named after the password too
        folder = older
    return Home(address, folder / name, None, False)


def data_folder() -> Path:
    """Run folders of studies whose storage is no file."""
    return user_folder("XDG_DATA_HOME", ".local", "share") / "supermax"


def _digest(address: str) -> str:
    return hashlib.sha256(address.encode()).hexdigest()[:12]


def _beside(file: Path) -> Path:
    """The folder of run files beside a study's. Where it is another user's, in which this one
    cannot or should not write, each user has one with a number of their own."""
    usual = file.with_name(f"{file.name}.supermax")
    try:
        owner = usual.lstat().st_uid
        trusted = owner == file.stat().st_uid and os.access(usual, os.R_OK | os.W_OK | os.X_OK)
    except OSError:  # it is not there yet, or the study's file is gone
        return usual
    mine = owner == os.geteuid() or trusted
    return usual if mine else file.with_name(f"{file.name}.supermax-{os.geteuid()}")


def key_of(study: Study, place: Home, identity: str) -> str:
    """A name of the study that is the same by whatever address it is reached: a link, another
    name of the server. A copied file is another study, of the same identity."""
    file = sqlite.SameFile(place.file).key if place.file is not None else None
    return f"{file}-{study._study_id}" if file else identity


def _somewhere() -> Path:
    """A folder for a study in memory, which goes with the program unless there is something in
    it that somebody may want to look at."""
    folder = Path(tempfile.gettempdir()) / f"supermax-{uuid.uuid4().hex[:12]}"
    maker = os.getpid()

    def tidy() -> None:
        ledgers = folder.glob("*/trials/*/ledger.jsonl")
        faulty = any('"fault"' in ledger.read_text(errors="replace") for ledger in ledgers)
        kept = any(folder.glob("*/trials/*/checkpoint/*"))
        if os.getpid() == maker and not faulty and not kept:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(tidy)
    return folder


def prepare(storage: BaseStorage) -> None:
    """Readers and one writer side by side on SQLite; servers that vanish are noticed; no torn line
    in a journal."""
    storage = rdb.unwrapped(storage)
    if isinstance(storage, RDBStorage) and sqlite.is_sqlite(storage):
        sqlite.use_wal(storage)
    if (server := rdb.server_of(storage)) is not None:
        rdb.notice_lost_servers(server)
    if isinstance(storage, JournalStorage):
        journal.mend(storage)


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


def _file_name(study_name: str) -> str:
    """A study's name as a file name: readable, safe and unique."""
    name = quote(study_name, safe=" ,=@+")
    if len(name) > 100 or name in ("", ".", ".."):
        name = f"{name[:80]}~{hashlib.sha256(study_name.encode()).hexdigest()[:12]}"
    return name
