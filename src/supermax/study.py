"""`supermax.open_study`: a study of a space, where the space and the engine meet."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TypedDict, Unpack, cast
from urllib.parse import unquote, urlsplit

import optuna
from optuna.exceptions import StorageInternalError
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage
from optuna.study import Study, StudyDirection
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.util import asbool

from supermax.engine import journal, locks
from supermax.engine.home import find_home, key_of, prepare
from supermax.engine.optimize import IDENTITY
from supermax.errors import EnvironmentFault, SupermaxError, UserError
from supermax.space import Opened, Space, load, open_version
from supermax.words import in_short, masked, masked_query, masked_url

JOURNAL = "journal:///"
"""As sqlite:///, before the path of one of Optuna's journal files."""
_LIKE_JOURNAL = re.compile(r"(?i)journal://")
_LEAST_ROOM = 1 << 20  # bytes a database needs to be opened at all
Storage = str | os.PathLike[str] | BaseStorage | None


def open_study(
    space: Space | str | os.PathLike[str],
    *,
    storage: Storage,
    name: str | None = None,
    sampler: BaseSampler | str | None = None,
    pruner: BasePruner | None = None,
    direction: str | StudyDirection | None = None,
    directions: Sequence[str | StudyDirection] | str | None = None,
    on_change: str = "migrate",
    seed: int | None = None,
    quiet: bool = False,
) -> Study:
    """The study of a space: new, or going on, or its next version where the space has changed.

    Args:
        space: A Space, the path of a space file, or the name of a space of the package.
        storage: The path of an SQLite file or, named .journal or .log, of an Optuna journal; or
            as Optuna takes it: a URL, a storage, or None for a study in memory.
        name: The study's name; by default the space's.
        sampler: An Optuna sampler, or "tpe" (the default), "random", "gp", "cmaes", "qmc",
            "nsgaii". It is made to draw feasible configurations only.
        pruner: An Optuna pruner.
        direction: "minimize" (the default) or "maximize".
        directions: A list of these, for several objectives.
        on_change: What a space that differs from the one the study was made with does.
            "migrate": open the next version (`name@2`) with every trial that is valid in it;
            "new": open it empty; "stop": raise UserError, saying what differs.
        seed: For the sampler, when it is given by name.
        quiet: Do not print what changed and what was carried over.

    In the objective, ``space.sample(trial)`` gives the configuration.
    """
    try:
        if not isinstance(space, Space):
            space = load(Path(space) if isinstance(space, os.PathLike) else space)
        opened = open_with_care(
            space,
            storage,
            quiet=quiet,
            name=name,
            sampler=sampler,
            pruner=pruner,
            directions=directions or [direction or "minimize"],
            on_change=on_change,
            seed=seed,
        )
    except SupermaxError as error:
        raise error.with_traceback(None) from None  # the sentence, not our insides
    if not quiet:
        for line in opened.lines():
            print(line)
    return opened.study


class How(TypedDict, total=False):
    """What open_version is passed as it is."""

    name: str | None
    sampler: BaseSampler | str | None
    pruner: BasePruner | None
    directions: Sequence[str | StudyDirection] | str
    on_change: str
    seed: int | None


def open_with_care(
    space: Space, storage: Storage, *, quiet: bool = False, **how: Unpack[How]
) -> Opened:
    """open_version, not while a run is at work on the study, and with a bar for many trials."""
    backend = make_storage(storage)
    with in_words(backend):
        prepare(backend)
    name = how.get("name") or space.name
    with in_words(backend), _opening(backend, name), _bar(quiet) as progress, _hushed():
        return open_version(
            space,
            storage=backend,
            progress=progress,
            before_carrying=refuse_while_running,
            **how,
        )


@contextlib.contextmanager
def _bar(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on the terminal that is there only while there is something to wait for."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    bar = Progress(*columns, console=Console(file=sys.stderr), transient=True)
    task = bar.add_task("", visible=False)
    shown = not quiet and sys.stderr.isatty()

    def progress(what: str, done: int, total: int) -> None:
        if shown:
            bar.start()
            bar.update(task, description=what, completed=done, total=total, visible=True)

    try:
        yield progress
    finally:
        bar.stop()


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """What Optuna logs about a new study would smear the bar; we say it ourselves."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(before, optuna.logging.WARNING))
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


@contextlib.contextmanager
def _opening(storage: BaseStorage, name: str) -> Iterator[None]:
    """One opener at a time on this machine: others wait, and then find what it has made."""
    place = find_home(cast(Study, SimpleNamespace(_storage=storage, study_name=name)))
    if place.volatile:
        yield
        return
    if place.file is not None:
        path = locks.beside(place.file, "opening")
    else:
        key = hashlib.sha256(f"{place.address} {name}".encode()).hexdigest()[:24]
        path = locks.own_folder() / f"opening-{key}"
    lock = locks.Lock(path, name, like=place.file, wait=True)
    try:
        yield
    finally:
        lock.release()


def connect(storage: Storage) -> BaseStorage:
    """Optuna's storage at a URL; a path is that of an SQLite file or of a journal."""
    where = _url(storage)
    file = _file(where)
    try:
        if file is not None and _is_journal(where):
            return journal.open_journal(file)
        return optuna.storages.get_storage(where)
    except Exception as error:  # drivers raise what they like
        shown = without_password(where) if isinstance(where, str) else type(where).__name__
        why = _trouble(file) or _damage(where, file) or in_short(error)
        raise EnvironmentFault(f"The storage {shown} cannot be opened: {why}.") from None


@contextlib.contextmanager
def in_words(storage: BaseStorage) -> Iterator[None]:
    """What a storage raises while it is written, as a sentence."""
    try:
        yield
    except (StorageInternalError, SQLAlchemyError, OSError) as error:
        home = find_home(cast(Study, SimpleNamespace(_storage=storage, study_name="")))
        why = _trouble(home.file) or in_short(error.__cause__ or error)
        raise EnvironmentFault(f"{home.address} cannot be written: {why}.") from None


def _trouble(file: Path | None) -> str | None:
    """What a database's own words do not say: that its disk is full, or cannot be written."""
    if file is None:
        return None
    folder = file.absolute().parent
    try:
        disk = os.statvfs(folder)
    except OSError as error:
        return f"{folder} cannot be looked at ({error.strerror})"
    if disk.f_flag & os.ST_RDONLY:
        return f"{folder} is on a disk that is mounted read-only"
    if disk.f_bavail * disk.f_frsize < _LEAST_ROOM:
        return f"the disk of {folder} is full; make room, then the same command goes on"
    if not os.access(folder, os.W_OK):
        return f"{folder} cannot be written by this user"
    return None


def existing(storage: str) -> BaseStorage:
    """As connect, for a storage that must be there: looking must not make one."""
    where = _url(storage)
    file = _file(where)
    _refuse_pipe(file)
    if file is not None and not file.is_file():
        raise UserError(
            f"There is no file {masked(str(file))}. Name the studies' file or URL with "
            f"--storage, or in SUPERMAX_STORAGE."
        )
    holds = _is_a_journal if _is_journal(where) else _holds_studies
    if file is not None and not holds(file):
        raise UserError(
            f"{file} holds no studies: it is empty, or some other program's. Name the studies' "
            f"file or URL with --storage."
        )
    return connect(where)


def all_studies(storage: BaseStorage) -> list[Study]:
    """Every study of a storage, versions and all, by name."""
    names = sorted(summary.study_name for summary in storage.get_all_studies())
    return [optuna.load_study(study_name=name, storage=storage) for name in names]


def _is_a_journal(file: Path) -> bool:
    return file.stat().st_size > 0 and not journal.is_foreign(file)


def _holds_studies(file: Path) -> bool:
    """Asked without writing: Optuna would make its tables in whatever database it is shown."""
    try:
        with contextlib.closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as db:
            query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'studies'"
            return db.execute(query).fetchone() is not None
    except (sqlite3.Error, ValueError):
        return True  # connect will say what is wrong with it


def make_storage(storage: Storage) -> BaseStorage:
    """As connect, for a storage that is yet to be: the folder of its file is made."""
    where = _url(storage)
    file = _file(where)
    _refuse_pipe(file)
    if file is not None:
        _make_folder(file)
        if _is_journal(where) and journal.is_foreign(file):
            raise UserError(f"{file} is no journal but some other program's. Name another file.")
    try:
        return connect(where)
    except EnvironmentFault as error:
        if "already exists" not in str(error):  # another program has made it at the same time
            raise
        return connect(where)


def _refuse_pipe(file: Path | None) -> None:
    """Opening it would wait for whoever is at the other end."""
    if file is not None and file.exists() and not (file.is_file() or file.is_dir()):
        raise UserError(f"{file} is a pipe or a device. Studies need a file of their own.")


def _damage(where: object, file: Path | None) -> str | None:
    """What Optuna says of a line that it cannot read would help nobody."""
    if file is None or not _is_journal(where):
        return None
    with contextlib.suppress(OSError):
        if line := journal.damaged_line(file):
            return f"line {line} of the journal is damaged"
    return None


def _make_folder(file: Path) -> None:
    folder = file.absolute().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(
            f"The folder {folder} cannot be made ({error.strerror})."
        ) from error


def _url(storage: Storage) -> str | BaseStorage | None:
    if isinstance(storage, os.PathLike) or (isinstance(storage, str) and "://" not in storage):
        path = Path(storage).expanduser().absolute()
        if journal.is_meant(path):
            return f"{JOURNAL}{path}"
        if "?" in str(path) or "#" in str(path):
            raise UserError(f"A database's file cannot have ? or # in its name: {path}")
        return f"sqlite:///{path}"
    if isinstance(storage, str) and _LIKE_JOURNAL.match(storage) and not _is_journal(storage):
        raise UserError(
            f"A journal is named with small letters and three slashes, {JOURNAL}PATH, and not "
            f"{masked_url(storage)}."
        )
    return storage


def file_of(storage: Storage) -> Path | None:
    """The file that a storage is in, as it was named; None for a server and for memory."""
    return _file(_url(storage))


def _is_journal(where: object) -> bool:
    return isinstance(where, str) and where.startswith(JOURNAL)


def _file(where: object) -> Path | None:
    """The file that a URL means; None for a server, for memory, and for what is no URL."""
    if not isinstance(where, str) or not where.startswith((JOURNAL, "sqlite")):
        return None
    if _is_journal(where):
        return Path(where.removeprefix(JOURNAL)).expanduser().absolute()
    with contextlib.suppress(ArgumentError, ValueError):  # connect will say so
        url = make_url(where)
        name = url.database or ""
        if asbool(url.query.get("uri", False)) and name.startswith("file:"):
            name = "" if url.query.get("mode") == "memory" else _path_of(name)
        if name and not name.startswith(":memory:"):
            return Path(name).absolute()
    return None


def _path_of(uri: str) -> str:
    """Of file:x, file:/x and file:///x, as SQLite reads them."""
    return unquote(urlsplit(uri).path)


def without_password(url: str) -> str:
    """The URL as it may be shown."""
    try:
        return masked_query(make_url(url).render_as_string(hide_password=True))
    except (ArgumentError, ValueError):
        return masked_url(url)


def locks_of(study: Study) -> list[Path]:
    """The locks that a run of this user's on this machine holds; none is made."""
    place = find_home(study)
    identity = study._storage.get_study_system_attrs(study._study_id).get(IDENTITY)
    return [place.lock, locks.own_path(key_of(study, place, str(identity)))]


def refuse_while_running(study: Study, what: str = "change its space") -> None:
    """Raise UserError when a run is at work on the study on this machine. Makes no file."""
    file = find_home(study).file
    shared = [locks.beside(file, str(study._study_id))] if file is not None else []
    for path in (*locks_of(study), *shared):
        if not path.exists():
            continue
        try:
            locks.Lock(path, study.study_name, like=file if path in shared else None).release()
        except UserError as error:
            raise UserError(f"{error} It cannot {what} meanwhile.") from None
