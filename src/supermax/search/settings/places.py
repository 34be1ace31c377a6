"""Files of earlier studies, as settings name them."""

from __future__ import annotations

from pathlib import Path

from supermax._util.attributes import STORAGE


def storage_file(text: str, folder: Path = Path()) -> Path | None:
    """Return the file of a storage: the path itself, relative to `folder`, or the database in a
    folder that `outdir` has named. None: there is none, and the text may be a study's name."""
    if not text:
        return None
    try:
        path = folder / Path(text).expanduser()
        if path.is_dir():
            path /= STORAGE
        return path if path.is_file() else None
    except (OSError, RuntimeError, ValueError):  # too long, no such user after ~, a null byte
        return None
