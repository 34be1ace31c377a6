"""Find and remove run files of a storage that no trial needs any more.

studies ──leftovers()──▶ Leftover… ──remove()──▶ bytes freed

Studies, results of trials and the weights of the best trials are never removed.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from optuna.study import Study

from supermax._util.attributes import HALF_WRITTEN, STATE, WEIGHTS
from supermax.engine.storage.locations import find_location
from supermax.engine.storage.logs import tail_of
from supermax.results.records import StudyRecord, read_record

REBUILT_CACHES = ("tokens", "tokenizers")
"""Folders of a cache that are rebuilt on demand; its refits are not, as they take hours."""


@dataclass(frozen=True)
class Leftover:
    """File or folder that can be removed."""

    what: str
    """Kind of the file, as it is shown."""
    path: Path
    size: int
    """Bytes that removing it frees."""


def leftovers(studies: Sequence[Study], *, top: int, cache: Path | None) -> list[Leftover]:
    """Return everything that can be removed.

    Args:
        studies: All studies of the storage. Run files of any other study are taken for those of a
            deleted one.
        top: Number of best trials of each study whose weights stay.
        cache: Cache folder to clear of what is rebuilt on demand; None: keep it.
    """
    found: list[Leftover] = []
    run_dirs: set[Path] = set()
    root: Path | None = None
    for study in studies:
        run_dir = find_location(study).run_dir
        run_dirs.add(run_dir)
        root = run_dir.parent
        found += _of_study(read_record(study), top)
    if root is not None:
        found += _of_deleted(root, run_dirs)
    for folder in [cache / name for name in REBUILT_CACHES] if cache is not None else []:
        if folder.is_dir() and not folder.is_symlink():
            found.append(_leftover(f"{folder}: rebuilt when needed", folder))
    return [item for item in found if item.size]


def _of_study(record: StudyRecord, top: int) -> Iterator[Leftover]:
    best = {trial.number for trial in record.ranking()[:top]}
    for trial in record.trials:
        folder, ended = trial.folder.path, trial.trial.state.is_finished()
        if ended and trial.number not in best and (folder / WEIGHTS).exists():
            yield _leftover(f"weights that are not among the best {top}", folder / WEIGHTS)
        if ended and (folder / HALF_WRITTEN).exists():
            yield _leftover("weights whose writing was interrupted", folder / HALF_WRITTEN)
        state = trial.folder.checkpoint / STATE
        if ended and state.exists():
            yield _leftover("training states of finished trials", state)
    for old in sorted(record.run_dir.glob("old-*")):
        yield _leftover("run files of a deleted study of the same name", old)


def _of_deleted(root: Path, run_dirs: set[Path]) -> Iterator[Leftover]:
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        is_run = (folder / "run.json").is_file() and (folder / "trials").is_dir()
        if is_run and folder not in run_dirs and '"study"' in tail_of(folder / "run.json"):
            yield _leftover("run files of deleted studies", folder)


def remove(items: list[Leftover]) -> tuple[int, list[str]]:
    """Remove the items. Return the bytes freed, and a message for each that cannot be removed."""
    freed, failed = 0, []
    for item in items:
        try:
            if item.path.is_dir():
                shutil.rmtree(item.path)
            else:
                item.path.unlink(missing_ok=True)
            freed += item.size
        except OSError as error:
            failed.append(f"{item.path}: {error.strerror}")
    return freed, failed


def _leftover(what: str, path: Path) -> Leftover:
    return Leftover(what, path, _size(path))


def _size(path: Path) -> int:
    total = 0
    for part in path.rglob("*") if path.is_dir() else [path]:
        with contextlib.suppress(OSError):
            total += part.stat().st_size if part.is_file() else 0
    return total
