"""File locks that prevent two concurrent runs on one study.

    one user:    run folder/lock, and a file named after the study in a folder of the user
    all users:   a file beside the study's file, for all users who may write that

A lock is an flock: the kernel releases it when its process ends, however that happens. Folders may
be shared with others, so links are never followed, and nothing is written before the lock is held,
or into a file that was not created as a lock.
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

from supermax._util.files import OTHERS_WRITE, make_folder, user_name
from supermax.errors import EnvironmentFault, UserError

_MAX_TRIES = 1000
_OTHER_TMPDIR = "mkdir -p -m 700 ~/.supermax-tmp && export TMPDIR=~/.supermax-tmp"


class Lock:
    """Lock that is held from construction until release().

    `wait`: block while another process holds it; otherwise raise UserError. `like`: the file whose
    writers may all take this lock; None: it is private to this user, and its file has the pid of
    the holder. `advice`: what to do when another process holds it.
    """

    def __init__(
        self,
        path: Path,
        study_name: str,
        *,
        like: Path | None = None,
        wait: bool = False,
        advice: str | None = None,
    ) -> None:
        self._path = path
        self._like = like
        self._advice = advice or "Wait for it or stop it, then call again."
        self._fd = -1
        try:
            if like is None:
                make_folder(path.parent)
            elif not _owner_can_write(path, like):  # must not block those who can
                with contextlib.suppress(OSError):
                    path.unlink()
                if os.path.lexists(path):
                    return  # in a sticky folder like /tmp it cannot be removed: run without it
            for _ in range(_MAX_TRIES):
                if self._acquire(study_name, wait):
                    break
                self.close()  # its last holder removed it between open and flock
            else:
                raise FileExistsError(None, "it is replaced again and again")
        except OSError as error:
            self.close()
            raise EnvironmentFault(_cannot(path, error)) from error
        _held.add(self)
        if like is None:
            with contextlib.suppress(OSError):  # a full disk: the lock holds without its pid
                os.ftruncate(self._fd, 0)
                os.pwrite(self._fd, str(os.getpid()).encode(), 0)

    def _acquire(self, study_name: str, wait: bool) -> bool:
        """Open the file and lock it; return False if it is not at its path any more."""
        self._fd = _open(self._path, self._like)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            holder = os.pread(self._fd, 20, 0).decode(errors="replace").strip()
            self.close()
            owner = f"process {holder or 'unknown'}"
            if self._like is not None:
                owner = "another user's, or one in another container"
            raise UserError(
                f"Another run is at work on the study '{study_name}' on this machine ({owner}). "
                f"{self._advice}"
            ) from None
        return _is_at(self._fd, self._path)

    def release(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # in /tmp only its owner may remove it
                self._path.unlink()
        self.close()

    def close(self) -> None:
        """Close the descriptor. In a forked copy of this process the parent keeps the lock."""
        _held.discard(self)
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1


def _open(path: Path, like: Path | None) -> int:
    """Open a lock file, or create it, without writing to it.

    Creation is a separate call: in sticky folders like /tmp the kernel rejects O_CREAT on an
    existing file of another user (fs.protected_regular).
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, flags)
            found = os.fstat(fd)
            if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
                return fd
            os.close(fd)
            raise FileExistsError(None, "it is a link or a device, not a lock file")
        with contextlib.suppress(FileExistsError):
            fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
            if like is not None:
                _share(fd, like)
            return fd


def _share(fd: int, like: Path) -> None:
    """Give the lock file the writers of `like`: a user who can only read that must not be able to
    block them."""
    with contextlib.suppress(OSError):
        found = like.stat()
        writers = found.st_mode & OTHERS_WRITE
        if found.st_gid != os.fstat(fd).st_gid:
            os.fchown(fd, -1, found.st_gid)
        os.fchmod(fd, 0o600 | writers | writers << 1)


def _owner_can_write(path: Path, like: Path) -> bool:
    """Return whether the owner of the lock file can write `like`; True if there is no file."""
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
    except KeyError:  # a user of another container, whose groups are unknown
        return True
    return found.st_gid in os.getgrouplist(user.pw_name, user.pw_gid)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except OSError:
        return False


def _cannot(path: Path, error: OSError) -> str:
    try:
        linked, there = path.is_symlink(), os.path.lexists(path)
    except PermissionError:  # in a private folder of another user
        linked, there = False, False
    why = "it is a symbolic link" if linked else error.strerror or str(error)
    if there:
        advice = f"If no run is at work on the study, remove it: rm -f {shlex.quote(str(path))}"
    elif _is_of_another_user(path.parent):
        advice = "Its folder belongs to another user: name one of your own as run_dir (--run-dir)."
    else:
        advice = f"Make its folder writable: chmod u+rwx {shlex.quote(str(path.parent))}"
    return (
        f"The lock file {path} cannot be used ({why}). It prevents two concurrent runs on one "
        f"study. {advice}"
    )


def _is_of_another_user(folder: Path) -> bool:
    try:
        return folder.stat().st_uid != os.geteuid()
    except OSError:
        return False


def own_folder() -> Path:
    """Return the folder of this user's locks; create it if necessary.

    It is in the folder for temporary files, which is the same for all runs of the machine. All
    users may write there, so another one may have created it: then raise EnvironmentFault.
    """
    try:
        folder = _folder()
        with contextlib.suppress(FileExistsError):
            folder.mkdir(0o700)
        found = folder.lstat()
    except OSError as error:
        raise EnvironmentFault(
            f"No folder for locks can be created in the folder for temporary files "
            f"({error.strerror or error}). Choose another one for all your runs: {_OTHER_TMPDIR}"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise EnvironmentFault(
            f"{folder} is the folder for locks of your runs, but {user_name(found.st_uid)} has "
            f"created it and could destroy your files with links there. Have it removed, or "
            f"choose another folder for temporary files for all your runs: {_OTHER_TMPDIR}"
        )
    if found.st_mode & OTHERS_WRITE:
        raise EnvironmentFault(
            f"Other users can write to {folder}, the folder for locks of your runs, and could "
            f"destroy your files with links there. Make it private: "
            f"chmod 700 {shlex.quote(str(folder))}"
        )
    return folder


def _folder() -> Path:
    return Path(tempfile.gettempdir()) / f"supermax-locks-{os.geteuid()}"


def own_path(key: str) -> Path:
    """Return the path of a lock of this user. The folder is neither created nor checked."""
    return _folder() / key


def beside(file: Path, what: str) -> Path:
    """Return the path of the lock that all users of a study's file share."""
    return file.with_name(f".{file.name}.{what}.lock")


def holder(*paths: Path) -> int | None:
    """Return the pid of the live process that holds one of these locks; None: there is none.

    It only reads: trying to lock would, for that moment, prevent a run from starting.
    """
    return next((pid for path in paths if (pid := _holder(path)) is not None), None)


def _holder(path: Path) -> int | None:
    try:
        process = psutil.Process(int(path.read_text()))
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        # The pid of a killed holder may have been reused.
        held = any(_same_file(opened.path, path) for opened in process.open_files())
    except psutil.AccessDenied:  # another user's process: it lives, more cannot be seen
        return process.pid
    except (OSError, ValueError, psutil.Error):
        return None
    return process.pid if held else None


def _same_file(one: str, other: Path) -> bool:
    try:
        return other.samefile(one)
    except OSError:
        return False


# A process that the user's program forks must not hold the lock after the program has exited.
_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _close_in_child() -> None:
    for lock in list(_held):
        lock.close()


os.register_at_fork(after_in_child=_close_in_child)
