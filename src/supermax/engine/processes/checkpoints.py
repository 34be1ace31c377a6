"""The folder of a trial's checkpoints: in the run folder, in a shared folder, or at a URL.

    run folder       trials/00042/checkpoint/
    shared folder    ROOT/00042/TOKEN/               used in place
    URL (fsspec)     ROOT/00042/TOKEN/COUNT/         uploaded after reports, from the run folder

TOKEN is the fencing token of the trial's lease. A run that has lost the trial may still write a
while: it writes to the folder of its own token, and the next owner starts with a copy.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, cast

from supermax._util.files import make_folder
from supermax._util.text import in_short, masked_url, mistyped_url
from supermax.errors import CheckpointUnavailable, UserError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_LATEST = "latest"
_PAUSES = (1.0, 5.0, 20.0)  # seconds between attempts at a download
_UPLOAD_SHARE = 10  # an upload may take a tenth of the time


def is_remote(place: str) -> bool:
    return "://" in place


def check_place(place: str) -> None:
    """Raise UserError for a URL whose `://` is mistyped."""
    if (why := mistyped_url(place)) is not None:
        raise UserError(f"checkpoints: {why}.")


def check_url(url: str) -> None:
    """Raise UserError for a URL that fsspec cannot open: a protocol it does not know, or one
    whose package is missing."""
    import fsspec

    try:
        fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise UserError(f"Checkpoints cannot be stored at {masked_url(url)}: {error}.") from error


def remove_checkpoints(root: str) -> None:
    """Remove the checkpoints of a trial, as far as possible."""
    with contextlib.suppress(Exception):  # each file system has its own errors
        if is_remote(root):
            import fsspec

            files, path = fsspec.core.url_to_fs(root)
            files.rm(path, recursive=True)
        else:
            shutil.rmtree(root)


class Checkpoints:
    """Checkpoint folder of one attempt. `local`: in the run folder. `root`: shared folder or URL
    of the trial, None: not shared."""

    def __init__(self, local: Path, root: str | None, token: int) -> None:
        self._local, self._root, self._token = local, root, token
        self._opened = False
        self._uploaded: dict[str, tuple[int, int]] = {}
        self._count = 0
        self._not_before = 0.0

    def open(self) -> Path:
        """Return the folder, created and filled from the newest checkpoint of an earlier owner."""
        shared = self._root is not None and not is_remote(self._root)
        folder = Path(cast(str, self._root)) / str(self._token) if shared else self._local
        if not self._opened:
            if shared and not folder.is_dir():
                self._copy_earlier(folder)
            elif self._root is not None and not shared:
                self._download_patiently()
            self._opened = True
        make_folder(folder)
        return folder

    def _copy_earlier(self, folder: Path) -> None:
        tokens = [int(p.name) for p in folder.parent.glob("*") if p.name.isdigit()]
        earlier = max((token for token in tokens if token < self._token), default=None)
        if earlier is None:
            return
        spare = folder.parent / f".{uuid.uuid4().hex}"
        shutil.copytree(folder.parent / str(earlier), spare)
        spare.rename(folder)

    # URLs.

    def _download_patiently(self) -> None:
        """Download, and retry after an error of the other side. Raise CheckpointUnavailable after
        the last one: starting without the checkpoint would lose it."""
        for pause in (*_PAUSES, None):
            try:
                return self._download()
            except Exception as error:  # each file system has its own errors
                if pause is None:
                    place = masked_url(cast(str, self._root))
                    raise CheckpointUnavailable(
                        f"The checkpoint at {place} cannot be read: {in_short(error)}."
                    ) from error
            time.sleep(pause)
        return None

    def _download(self) -> None:
        """Replace the local folder by the newest upload, unless this owner's is newer."""
        files, root = self._at_root()
        newest = None
        for entry in files.ls(root, detail=False) if files.isdir(root) else []:
            name = str(entry).rstrip("/").rpartition("/")[2]
            if name.isdigit() and int(name) <= self._token and files.isfile(f"{entry}/{_LATEST}"):
                newest = max(newest or 0, int(name))
        if newest is None:
            return
        count = int(files.cat_file(f"{root}/{newest}/{_LATEST}"))
        if newest == self._token:
            self._count = count
            if self._local.is_dir():  # an earlier attempt on this machine
                return
        spare = self._local.with_name(f".{uuid.uuid4().hex}")
        make_folder(spare)
        files.get(f"{root}/{newest}/{count}/", f"{spare}/", recursive=True)
        shutil.rmtree(self._local, ignore_errors=True)
        spare.rename(self._local)
        self._uploaded = self._listing() if newest == self._token else {}

    def upload(self, *, now: bool = False) -> None:
        """Upload the folder if it has changed. `now`: also if the last upload was only just. An
        error of the other side is left to the next upload: the trial goes on."""
        if self._root is None or not is_remote(self._root) or not self._opened:
            return
        if (not now and time.monotonic() < self._not_before) or not self._local.is_dir():
            return
        listing = self._listing()
        if listing == self._uploaded:
            return
        began = time.monotonic()
        with contextlib.suppress(Exception):  # each file system has its own errors
            self._put(listing)
        self._not_before = time.monotonic() + _UPLOAD_SHARE * (time.monotonic() - began)

    def _put(self, listing: dict[str, tuple[int, int]]) -> None:
        files, root = self._at_root()
        place = f"{root}/{self._token}"
        before, after = self._count, self._count + 1
        files.makedirs(f"{place}/{after}", exist_ok=True)
        for name in listing:
            target = f"{place}/{after}/{name}"
            files.makedirs(target.rpartition("/")[0], exist_ok=True)
            files.put_file(str(self._local / name), target)
        files.pipe_file(f"{place}/{_LATEST}", str(after).encode())
        self._count, self._uploaded = after, listing
        if before:
            with contextlib.suppress(FileNotFoundError):
                files.rm(f"{place}/{before}", recursive=True)

    def _listing(self) -> dict[str, tuple[int, int]]:
        """Return size and time of change of each file of the local folder."""
        found = {}
        for folder, _, names in os.walk(self._local):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    path = Path(folder, name)
                    state = path.stat()
                    key = str(path.relative_to(self._local))
                    found[key] = (state.st_size, state.st_mtime_ns)
        return found

    def _at_root(self) -> tuple[AbstractFileSystem, str]:
        import fsspec

        files, root = fsspec.core.url_to_fs(cast(str, self._root))
        return files, root.rstrip("/")
