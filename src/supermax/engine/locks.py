"""Locks that keep two runs from working on one study at a time.

    one user:    run folder/lock, and a file named after the study in a folder of the user's own
    all users:   a file beside the study's own file, for whoever may write that

A lock is the kernel's (flock): it ends with the process that holds it, however that dies. Folders
may be shared with others, so a link is never followed, and nothing is written before the lock is
held, or into a file that was not made as a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shlex
import stat
import tempfile
import weakref
from pathlib import Path

import psutil

from supermax.errors import EnvironmentFault, UserError
from supermax.files import OTHERS_WRITE, make_folder, user_name

_TRIES = 1000
_OTHER = "mkdir -p -m 700 ~/.supermax-tmp && export TMPDIR=~/.supermax-tmp"


class Lock:
    """Held from the moment it is made until release().

    `wait`: for as long as another process holds it; otherwise UserError. `like`: the file whose
    writers may all take this lock; without it the lock is this user's alone and says which
    process holds it.
    """

    def __init__(
        self, path: Path, study_name: str, *, like: Path | None = None, wait: bool = False
    ) -> None:
        self._path = path
        self._like = like
        self._fd = -1
        try:
            if like is None:
                make_folder(path.parent)
            elif not _owner_can_write(path, like):  # and must not block those who can
                with contextlib.suppress(OSError):
                    path.unlink()
                if os.path.lexists(path):
                    return  # in a folder like /tmp it cannot be removed: go on without the lock
            for _ in range(_TRIES):
                if self._taken(study_name, wait):
                    break
                self.let_go()  # its last holder removed it between the two steps
            else:
                raise FileExistsError(None, "it is replaced again and again")
        except OSError as error:
            self.let_go()
            raise EnvironmentFault(_cannot(path, error)) from error
        _held.add(self)
        if like is None:
            with contextlib.suppress(OSError):  # a full disk: it holds, it just says not whose
                os.ftruncate(self._fd, 0)
                os.pwrite(self._fd, str(os.getpid()).encode(), 0)

    def _taken(self, study_name: str, wait: bool) -> bool:
        """Open the file and lock it; False when it is not at its path any more."""
        self._fd = _opened(self._path, self._like)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            holder = os.pread(self._fd, 20, 0).decode(errors="replace").strip()
            self.let_go()
            whose = f"process {holder or 'unknown'}"
            if self._like is not None:
                whose = "of another user, or in another container"
            raise UserError(
                f"Another run is at work on the study '{study_name}' on this machine ({whose}). "
                f"Wait for it or stop it; one run at a time keeps the study whole."
            ) from None
        return _is_at(self._fd, self._path)

    def release(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # in /tmp only who made it may remove it
                self._path.unlink()
        self.let_go()

    def let_go(self) -> None:
        """Close it. In a forked copy of this process the lock stays where it is."""
        _held.discard(self)
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1


def _opened(path: Path, like: Path | None) -> int:
    """Open a lock file without changing anything in it. It is made with an open of its own: to
    ask for both is refused in folders like /tmp when the file is another user's."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, flags)
            found = os.fstat(fd)
            if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
                return fd
            os.close(fd)
            raise FileExistsError(None, "it is a link or a device, and not a lock's file")
        with contextlib.suppress(FileExistsError):
            fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
            if like is not None:
                _share(fd, like)
            return fd


def _share(fd: int, like: Path) -> None:
    """Let the users who can write `like` lock the file. A user who can only read it must not be
    able to block them."""
    with contextlib.suppress(OSError):
        found = like.stat()
        writers = found.st_mode & OTHERS_WRITE
        if found.st_gid != os.fstat(fd).st_gid:
            os.fchown(fd, -1, found.st_gid)
        os.fchmod(fd, 0o600 | writers | writers << 1)


def _owner_can_write(path: Path, like: Path) -> bool:
    """Return whether the owner of the lock file can write `like`; True where there is no file."""
    try:
        owner, found = path.lstat().st_uid, like.stat()
    except OSError:
        return True
    if owner in (0, os.geteuid(), found.st_uid) or found.st_mode & stat.S_IWOTH:
        return True
    if not found.st_mode & stat.S_IWGRP:
        return False
    try:
        user = pwd.getpwuid(owner)
    except KeyError:  # of another container: their groups are not known
        return True
    return found.st_gid in os.getgrouplist(user.pw_name, user.pw_gid)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except OSError:
        return False


def _cannot(path: Path, error: OSError) -> str:
    why = "it is a symbolic link" if path.is_symlink() else error.strerror or str(error)
    if path.is_symlink() or path.exists():
        advice = f"When no run is at work on the study, remove it: rm -f {shlex.quote(str(path))}"
    else:
        advice = f"Make its folder writable: chmod u+rwx {shlex.quote(str(path.parent))}"
    return (
        f"The lock file {path} cannot be used ({why}). It keeps two runs from working on one "
        f"study. {advice}"
    )


# Where they are.


def own_folder() -> Path:
    """The folder of this user's locks, in the folder for temporary files, which is the same for
    all runs of the machine. Everybody may write there, so that somebody else may have made it."""
    try:
        folder = _folder()
        with contextlib.suppress(FileExistsError):
            folder.mkdir(0o700)
        found = folder.lstat()
    except OSError as error:
        raise EnvironmentFault(
            f"No folder for locks can be made in the one for temporary files "
            f"({error.strerror or error}). Name another one, the same for all your runs: {_OTHER}"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise EnvironmentFault(
            f"{folder} is where your runs lock their studies, but {user_name(found.st_uid)} has "
            f"made it, who could destroy files of yours by links there. Have it removed, or name "
            f"another folder for temporary files, the same for all your runs: {_OTHER}"
        )
    if found.st_mode & OTHERS_WRITE:
        raise EnvironmentFault(
            f"Others can write in {folder}, the folder of your locks, and could destroy files of "
            f"yours with links there. Close it: chmod 700 {shlex.quote(str(folder))}"
        )
    return folder


def _folder() -> Path:
    return Path(tempfile.gettempdir()) / f"supermax-locks-{os.geteuid()}"


def own_path(key: str) -> Path:
    """Return the path of a lock of this user's. The folder is neither made nor checked."""
    return _folder() / key


def beside(file: Path, what: str) -> Path:
    """The lock that all users of a study's file share."""
    return file.with_name(f".{file.name}.{what}.lock")


def holder(*paths: Path) -> int | None:
    """The living process that holds one of these locks, if there is one.

    It looks and touches nothing: to try a lock would, for that moment, keep a run from starting.
    """
    return next((pid for path in paths if (pid := _holder(path)) is not None), None)


def _holder(path: Path) -> int | None:
    try:
        process = psutil.Process(int(path.read_text()))
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        # Another process may have got the number of one that was killed.
        held = any(_same_file(opened.path, path) for opened in process.open_files())
    except psutil.AccessDenied:  # somebody else's: all that can be seen is that it lives
        return process.pid
    except (OSError, ValueError, psutil.Error):
        return None
    return process.pid if held else None


def _same_file(one: str, other: Path) -> bool:
    try:
        return other.samefile(one)
    except OSError:
        return False


# A process that the user's program forks must not keep the lock when the program is gone.
_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _let_go() -> None:
    for lock in list(_held):
        lock.let_go()


os.register_at_fork(after_in_child=_let_go)
