"""`supermax.open_study`: open a study of a search space, and the storages that studies are in."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import optuna
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage
from optuna.study import Study, StudyDirection
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from supermax._util.attributes import is_race, metric_names, race_name
from supermax._util.text import is_url, masked, masked_query, masked_url
from supermax.engine.run.session import IDENTITY
from supermax.engine.sharing.shared_run import runs_of
from supermax.engine.storage import journal, locks, rdb, servers, sqlite
from supermax.engine.storage.locations import find_location, key_of, locate, prepare_location
from supermax.engine.storage.network_disk import refuse_sqlite_on_network_disk
from supermax.engine.storage.servers import NothingStored
from supermax.errors import EnvironmentFault, SupermaxError, UserError
from supermax.space import Opened, Space, find_versions, load, open_version, space_of
from supermax.space.migration.versions import OpenOptions

JOURNAL = "journal:///"
"""URL prefix of an Optuna journal file, as sqlite:/// is of a database."""
_MIN_FREE_DISK = 1 << 20  # bytes that a database needs to be opened at all
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
    """Open the study of a space, new or resumed, or its next version if the space has changed.

    Args:
        space: A Space, the path of a space file, or the name of a space of the package.
        storage: The path of an SQLite file or, with the suffix .journal or .log, of an Optuna
            journal; or, as in Optuna, a URL, a storage object, or None for a study in memory.
        name: The study's name. Default: the space's name.
        sampler: An Optuna sampler, or "tpe" (the default), "prior", "random", "gp", "cmaes",
            "qmc", "nsgaii". It is wrapped to draw feasible configurations only. "prior" is
            `supermax.PriorSampler`, which starts from the enqueued configurations.
        pruner: An Optuna pruner.
        direction: "minimize" (the default) or "maximize".
        directions: A list of these, for several objectives.
        on_change: Action if the space differs from the one the study was created with.
            "migrate": open the next version (`name@2`) with every trial that is valid in it;
            "new": open the next version without trials; "stop": raise UserError with the
            differences.
        seed: Seed of a sampler that is given by name.
        quiet: Do not print what changed and which trials were carried over.

    In the objective, ``space.sample(trial)`` returns the configuration.
    """
    try:
        if not isinstance(space, Space):
            space = load(Path(space) if isinstance(space, os.PathLike) else space)
        opened = open_locked(
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
        raise error.with_traceback(None) from None  # the message alone
    if not quiet:
        for line in opened.lines():
            print(line)
    return opened.study


def open_locked(
    space: Space, storage: Storage, *, quiet: bool = False, **options: Unpack[OpenOptions]
) -> Opened:
    """Call open_version under a lock, with a progress bar where many trials are copied.

    Raises UserError where trials would be copied while a run is active on the study."""
    backend = make_storage(storage)
    with explain_write_errors(backend):
        prepare_location(backend)
    name = options.get("name") or space.name
    with (
        explain_write_errors(backend),
        opening_lock(backend, name),
        _progress_bar(quiet) as progress,
        _optuna_warnings_only(),
    ):
        return open_version(
            space,
            storage=backend,
            progress=progress,
            before_carrying=refuse_while_running,
            **options,
        )


def open_race(study: Study, folds: int | None = None) -> Study:
    """Open the study of the race of a study, new or resumed: over seeds, or over `folds`."""
    storage = study._storage
    with explain_write_errors(storage), _optuna_warnings_only():
        race = optuna.create_study(
            storage=storage,
            study_name=race_name(study.study_name, folds),
            sampler=optuna.samplers.RandomSampler(),  # nothing is sampled
            pruner=optuna.pruners.NopPruner(),
            directions=study.directions,
            load_if_exists=True,
        )
        if names := metric_names(study):
            name_values(race, names)
        return race


def name_values(study: Study, names: Sequence[str]) -> None:
    """Set the names under which Optuna and its dashboard show the values, unless they are set."""
    if not metric_names(study):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            study.set_metric_names(list(names))


@contextlib.contextmanager
def _progress_bar(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that draws a progress bar on the terminal from its first call on."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    bar = Progress(*columns, console=Console(file=sys.stderr), transient=True)
    task = bar.add_task("", visible=False)
    enabled = not quiet and sys.stderr.isatty()

    def progress(what: str, done: int, total: int) -> None:
        if enabled:
            bar.start()
            bar.update(task, description=what, completed=done, total=total, visible=True)

    try:
        yield progress
    finally:
        bar.stop()


@contextlib.contextmanager
def _optuna_warnings_only() -> Iterator[None]:
    """Suppress Optuna's INFO lines, such as that of a new study, which would break the bar."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(before, optuna.logging.WARNING))
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


@contextlib.contextmanager
def opening_lock(storage: BaseStorage, name: str) -> Iterator[None]:
    """Hold the lock under which a study is opened: one process of this machine at a time, so that
    the next one finds the study instead of creating it again."""
    location = locate(storage, name)
    if location.volatile:
        yield
        return
    if location.file is not None:
        path = locks.beside(location.file, "opening")
    else:
        key = hashlib.sha256(f"{location.address} {name}".encode()).hexdigest()[:24]
        path = locks.own_folder() / f"opening-{key}"
    lock = locks.Lock(path, name, like=location.file, wait=True)
    try:
        yield
    finally:
        lock.release()


class CannotOpen(EnvironmentFault):
    """Error: a storage cannot be opened."""

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(f"{what} {advice}")
        self.what = what
        """Message without the advice, which is for the study of the command."""


def connect(storage: Storage) -> BaseStorage:
    """Return Optuna's storage at a URL, or at the path of an SQLite file or of a journal."""
    return _connect(_parse(storage))


def _connect(address: _Address, *, create: bool = True) -> BaseStorage:
    """Connect. `create`: create the tables of a database server that has none."""
    where, file = address.where, address.file
    try:
        if file is not None and address.is_journal:
            return journal.open_journal(file)
        if (url := _server_url(address)) is not None:
            return servers.connect_server(url, create=create)
        return optuna.storages.get_storage(where)
    except SupermaxError:
        raise
    except Exception as error:  # each database driver has its own
        shown = without_password(where) if isinstance(where, str) else type(where).__name__
        why = _disk_problem(file) or _journal_damage(address) or servers.why(error)
        raise CannotOpen(f"The storage {shown} cannot be opened: {why}.", _advice(file)) from None


def _server_url(address: _Address) -> URL | None:
    """Return the URL of a database server; None: a file, memory, a storage object, or SQLite."""
    if not isinstance(address.where, str) or address.file is not None:
        return None
    try:
        url = make_url(address.where)
    except (ArgumentError, ValueError):  # their messages quote parts of the password
        raise _not_a_url(address.where) from None
    if "@" in (url.host or ""):
        raise UserError(
            f"{masked_url(address.where)} has several @. In a password, write %40 for @."
        )
    return None if url.get_backend_name() == "sqlite" else url


def _not_a_url(text: str) -> UserError:
    return UserError(
        f"{masked_url(text)} is not the URL of a storage. Write {servers.SUPPORTED}, "
        f"the port as a number, and in a password %40 for @, %3A for : and %2F for /."
    )


@contextlib.contextmanager
def explain_write_errors(storage: BaseStorage) -> Iterator[None]:
    """Turn the errors of a storage that is written into an EnvironmentFault with the reason."""
    try:
        yield
    except (StorageInternalError, SQLAlchemyError, OSError) as error:
        location = locate(storage, "")
        why = _disk_problem(location.file) or servers.why(error)
        raise EnvironmentFault(f"{location.address} cannot be written: {why}.") from None


def _disk_problem(file: Path | None) -> str | None:
    """Return why a database's folder cannot be written, which its own errors do not say; None: it
    can be, or the storage has no file."""
    if file is None:
        return None
    folder = file.absolute().parent
    try:
        disk = os.statvfs(folder)
    except OSError as error:
        return f"{folder} cannot be read ({error.strerror})"
    if disk.f_flag & os.ST_RDONLY:
        return f"{folder} is on a disk that is mounted read-only"
    if disk.f_bavail * disk.f_frsize < _MIN_FREE_DISK:
        return f"the disk of {folder} is full; free some space and run the same command again"
    if not os.access(folder, os.W_OK):
        return f"{folder} cannot be written by this user"
    return None


def _advice(file: Path | None) -> str:
    """Return what to do about a storage that cannot be opened. SQLite writes beside a database
    even where it only reads it."""
    if file is not None and os.access(file, os.R_OK) and not os.access(file.parent, os.W_OK):
        return (
            f"Copy {file.name} to a folder that you can write, and name the copy with --storage."
        )
    return "Name the studies' file or URL with --storage."


def existing(storage: str) -> BaseStorage:
    """Connect to a storage that must exist already; raise UserError instead of creating one."""
    address = _parse(storage)
    file = address.file
    _refuse_pipe(file)
    if file is not None and not file.is_file():
        raise NothingStored(
            f"There is no file {masked(str(file))}. Name the studies' file or URL with "
            f"--storage, or in SUPERMAX_STORAGE."
        )
    has_studies = _is_optuna_journal if address.is_journal else _has_study_table
    if file is not None and not has_studies(file):
        raise NothingStored(
            f"{file} holds no studies: it is empty, or some other program's. Name the studies' "
            f"file or URL with --storage."
        )
    return _connect(address, create=False)


def check_storage(storage: str) -> None:
    """Raise UserError or EnvironmentFault where a run could not use a storage: a network disk, a
    missing driver, a server that rejects the connection. Creates nothing."""
    address = _parse(storage)
    if address.file is None:
        with contextlib.suppress(NothingStored):
            if (server := rdb.server_of(existing(storage))) is not None:
                server.engine.dispose()
    elif not address.is_journal:
        refuse_sqlite_on_network_disk(address.file)


def stored_space(storage: str, study: str) -> Space | None:
    """Return the space that the newest version of a study has stored; None: it has none, or there
    is no such study."""
    try:
        backend = existing(storage)
    except NothingStored:
        return None
    versions = find_versions(backend, study)
    space = space_of(versions[-1]) if versions else None
    if (server := rdb.server_of(backend)) is not None:
        server.engine.dispose()
    return space


def all_studies(storage: BaseStorage, *, races: bool = False) -> list[Study]:
    """Return all studies of a storage, all versions included, sorted by name. `races`: with the
    studies of races, which users do not see as studies."""
    found = sorted(summary.study_name for summary in storage.get_all_studies())
    names = [name for name in found if races or not is_race(name)]
    return [optuna.load_study(study_name=name, storage=storage) for name in names]


def _is_optuna_journal(file: Path) -> bool:
    return file.stat().st_size > 0 and not journal.is_foreign(file)


def _has_study_table(file: Path) -> bool:
    """Return True if a database has Optuna's tables. Reads only: Optuna itself would create its
    tables in any database that it opens."""
    try:
        with contextlib.closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as db:
            query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'studies'"
            return db.execute(query).fetchone() is not None
    except (sqlite3.Error, ValueError):
        return True  # connect raises the error


def make_storage(storage: Storage) -> BaseStorage:
    """Connect to a storage, creating it and the folder of its file where they do not exist."""
    address = _parse(storage)
    file = address.file
    _refuse_pipe(file)
    if file is not None:
        if not address.is_journal:
            refuse_sqlite_on_network_disk(file)
        _make_folder(file)
        if address.is_journal and journal.is_foreign(file):
            raise UserError(
                f"{file} is not an Optuna journal but some other program's. Name another file."
            )
    try:
        return _connect(address)
    except EnvironmentFault as error:
        # Another process created the tables at the same time. Databases share no code for this.
        if "already exists" not in str(error):
            raise
        return _connect(address)


def _refuse_pipe(file: Path | None) -> None:
    """Raise UserError for a pipe or a device, which would block until its other end is opened."""
    if file is not None and file.exists() and not (file.is_file() or file.is_dir()):
        raise UserError(f"{file} is a pipe or a device. Studies need a file of their own.")


def _journal_damage(address: _Address) -> str | None:
    """Return which line of a journal is damaged, which Optuna's own error does not say."""
    if address.file is not None and address.is_journal:
        with contextlib.suppress(OSError):
            if line := journal.damaged_line(address.file):
                return f"line {line} of the journal is damaged"
    return None


def _make_folder(file: Path) -> None:
    folder = file.absolute().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(
            f"The folder {folder} cannot be created ({error.strerror})."
        ) from error


@dataclass(frozen=True)
class _Address:
    """Storage as the caller names it."""

    where: str | BaseStorage | None
    """URL, or a storage object, or None: in memory."""
    file: Path | None = None
    """File that the URL names, with links unresolved; None: a server, memory, or invalid."""

    @property
    def is_journal(self) -> bool:
        return isinstance(self.where, str) and self.where.startswith(JOURNAL)


def _parse(storage: Storage) -> _Address:
    """Return the address of a storage; raise UserError for a path that no URL can express."""
    if isinstance(storage, str) and is_url(storage) and "://" not in storage:
        raise _not_a_url(storage)
    if isinstance(storage, os.PathLike) or (isinstance(storage, str) and "://" not in storage):
        path = Path(storage).expanduser().absolute()
        if journal.is_journal(path):
            return _Address(f"{JOURNAL}{path}", path)
        if "?" in str(path) or "#" in str(path):
            raise UserError(f"A database's file cannot have ? or # in its name: {path}")
        storage = f"sqlite:///{path}"
    if not isinstance(storage, str):
        return _Address(storage)
    if storage.startswith(JOURNAL):
        return _Address(storage, Path(storage.removeprefix(JOURNAL)).expanduser().absolute())
    if storage.lower().startswith("journal://"):
        raise UserError(
            f"{masked_url(storage)} is not the URL of a journal. Write {JOURNAL}PATH, in lower "
            f"case and with three slashes."
        )
    if storage.startswith("sqlite"):
        with contextlib.suppress(ArgumentError, ValueError):  # connecting raises the error
            return _Address(storage, sqlite.file_of_url(make_url(storage)))
    return _Address(storage)


def file_of(storage: Storage) -> Path | None:
    """Return the file of a storage, with links unresolved; None for a server and for memory."""
    return _parse(storage).file


def without_password(url: str) -> str:
    """Return the URL with its password masked."""
    try:
        return masked_query(make_url(url).render_as_string(hide_password=True))
    except (ArgumentError, ValueError):
        return masked_url(url)


def locks_of(study: Study) -> list[Path]:
    """Return the paths of the locks that a run of this user on this machine holds. Creates
    none."""
    location = find_location(study)
    identity = study._storage.get_study_system_attrs(study._study_id).get(IDENTITY)
    return [location.lock, locks.own_path(key_of(study, location, str(identity)))]


def refuse_while_running(study: Study, what: str = "change its space") -> None:
    """Raise UserError if a run is active on the study on this machine. Creates no file.

    `what` completes the message: It cannot {what} meanwhile."""
    for run in runs_of(study):
        if run.info.alive:
            raise UserError(
                f"A run is at work on the study '{study.study_name}' on {run.info.host} (process "
                f"{run.info.pid}). It cannot {what} meanwhile."
            )
    file = find_location(study).file
    shared = [locks.beside(file, str(study._study_id))] if file is not None else []
    for path in (*locks_of(study), *shared):
        if not path.exists():
            continue
        try:
            locks.Lock(path, study.study_name, like=file if path in shared else None).release()
        except UserError as error:
            raise UserError(f"{error} It cannot {what} meanwhile.") from None
