"""Atomic writes, and files and folders that only their owner can read."""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from supermax.errors import EnvironmentFault, UserError

_OTHERS = 0o077
"""Permission bits of the group and of other users."""
OTHERS_WRITE = 0o022
"""Bits that let the group or other users write."""


def write_whole(path: Path, content: str | bytes, *, shared: bool = False) -> None:
    """Write a file atomically, also across a crash of the machine. With `shared`, other users may
    read it as far as the umask allows; otherwise only its owner may."""
    data = content.encode() if isinstance(content, str) else content
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if shared:
            Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def open_private(path: Path, mode: str) -> IO[Any]:
    """Open a file that only its owner can read, whatever the umask is. Symbolic links are not
    followed: in a folder that others can write, a link could lead to any file of this user."""
    return open(path, mode, opener=_private)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def make_private(folder: Path, *, trusted: int | None = None) -> None:
    """Create a folder, and missing parents, for this user alone. The permissions of an existing
    folder and its content are restricted: call it only for folders that belong to Supermax.

    Raises EnvironmentFault where another user, other than `trusted` (a user id), may have created
    the folder: its owner could read and forge its content.
    """
    make_trusted(folder, trusted=trusted)
    found = folder.stat()
    if found.st_uid == os.geteuid() and found.st_mode & _OTHERS:
        tighten(folder.resolve())


def make_trusted(folder: Path, *, trusted: int | None = None) -> None:
    """Create a folder as `make_private` does, but leave the permissions of an existing one."""
    make_folder(folder)
    known = (0, os.geteuid(), trusted)
    for place in (folder.absolute(), folder.resolve()):  # a link, and its target
        owner = place.lstat().st_uid
        if owner not in known and _planted(place):
            raise EnvironmentFault(
                f"{folder} belongs to {user_name(owner)}, who could read and change its "
                f"content. Have it removed, or use another folder: --storage and --set "
                f"cache=FOLDER of `supermax tune`, run_dir= of supermax.optimize."
            )


@contextlib.contextmanager
def writing(place: Path, advice: str) -> Iterator[None]:
    """Turn errors of writing to a place that the user has named into a UserError."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise UserError(f"{place} cannot be written ({why}). {advice}") from None


def _planted(place: Path) -> bool:
    """Return True if the owner may have created it in a folder that several users can write: the
    first parent of another owner decides. Inside a home all folders have one owner, so that root
    in a container can work there."""
    owner = place.lstat().st_uid
    above = next((p.stat() for p in place.parents if p.stat().st_uid != owner), None)
    return above is not None and bool(above.st_mode & OTHERS_WRITE)


def user_name(uid: int) -> str:
    """Return "the user NAME", or the number of a user without a name."""
    try:
        return f"the user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the user with number {uid}"


def make_folder(folder: Path) -> None:
    """Create a folder, and missing parents, that only this user can read."""
    try:
        folder.mkdir(0o700)
    except FileNotFoundError:
        make_folder(folder.parent)
        folder.mkdir(0o700, exist_ok=True)
    except FileExistsError:
        if not folder.is_dir():
            raise


def tighten(path: Path) -> None:
    """Remove the permissions of other users from a file, or from a folder and its content.

    Files of other users and links, symbolic or hard, are left alone: a link may be to any file.
    """
    for each in (path, *_inside(path)):
        with contextlib.suppress(OSError):  # another user's, or gone
            found = each.lstat()
            linked = stat.S_ISLNK(found.st_mode) or (each.is_file() and found.st_nlink > 1)
            if stat.S_IMODE(found.st_mode) & _OTHERS and not linked:
                each.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)


def _inside(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        yield from (Path(place) / name for name in (*folders, *files))


def user_folder(variable: str, *parts: str) -> Path:
    """Return a folder of the user by the XDG convention: the value of `variable`, if it is an
    absolute path, or else `parts` in the home folder. Without a home folder, the path does not
    exist and writing to it fails."""
    if (base := Path(os.environ.get(variable, ""))).is_absolute():
        return base
    try:
        return Path.home().joinpath(*parts)
    except RuntimeError:  # HOME is not set and the user is not in the password database
        return Path("/nonexistent").joinpath(*parts)


def _umask() -> int:
    umask = os.umask(0o022)
    os.umask(umask)
    return umask
