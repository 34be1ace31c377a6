"""Files that are there whole or not at all, and files that only their owner can read."""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from supermax.errors import EnvironmentFault

_OTHERS = 0o077
"""Permissions of the group and of everybody else."""
OTHERS_WRITE = 0o022


def write_whole(path: Path, content: str | bytes, *, shared: bool = False) -> None:
    """All of it or nothing, whenever this process or the machine stops. `shared`: others may read
    it, as they may any file that a program makes; the files of a run are their owner's."""
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
    """Open a file that only its owner can read, whatever the umask is. A symbolic link is not
    followed: in a folder that others can write it could lead to any file of this user's."""
    return open(path, mode, opener=_private)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def make_private(folder: Path, *, trusted: int | None = None) -> None:
    """Make a folder, and the parents it lacks, for this user alone. One that is there already is
    tightened with all that is in it: call it for folders that belong to Supermax by their name.

    Raises EnvironmentFault where another user may have put the folder there, unless that is the
    user with the number `trusted`: whoever owns it could read and forge what is in it.
    """
    make_folder(folder)
    known = (0, os.geteuid(), trusted)
    for place in (folder.absolute(), folder.resolve()):  # a link, and what it leads to
        owner = place.lstat().st_uid
        if owner not in known and _planted(place):
            raise EnvironmentFault(
                f"{folder} belongs to {user_name(owner)}, who could read and change what is kept "
                f"there. Have it removed, or use another place: --storage and --set cache=FOLDER "
                f"of `supermax tune`, run_dir= of supermax.optimize."
            )
    found = folder.stat()
    if found.st_uid == os.geteuid() and found.st_mode & _OTHERS:
        tighten(folder.resolve())


def _planted(place: Path) -> bool:
    """Return whether its owner could have made it where several users can write: look up to the
    first folder of somebody else's. All folders of a home are the same user's, and so root in a
    container can work there."""
    owner = place.lstat().st_uid
    above = next((p.stat() for p in place.parents if p.stat().st_uid != owner), None)
    return above is not None and bool(above.st_mode & OTHERS_WRITE)


def user_name(uid: int) -> str:
    try:
        return f"the user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the user with number {uid}"


def make_folder(folder: Path) -> None:
    """Make a folder, and the parents it lacks, that only this user can read."""
    try:
        folder.mkdir(0o700)
    except FileNotFoundError:
        make_folder(folder.parent)
        folder.mkdir(0o700, exist_ok=True)
    except FileExistsError:
        if not folder.is_dir():
            raise


def tighten(path: Path) -> None:
    """Take all permissions of others from a file, or from a folder and all that is in it.

    Files of other users stay as they are, and so do links: what a symbolic link leads to, or a
    hard link is another name of, may be anything.
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
    """A folder of the user's by the XDG convention: what `variable` says, if that is an absolute
    path, or else `parts` in the home folder. A user without one is told so when something is
    written there, not before."""
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
