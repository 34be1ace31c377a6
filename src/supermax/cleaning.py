"""What of a storage's run files could go without losing a trial, and how much it frees.

studies ──leftovers()──▶ Leftover… ──remove()──▶ bytes freed

Never a study, never what a trial came to, never the weights of the best trials.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from optuna.study import Study

from supermax.engine.home import find_home
from supermax.engine.logs import tail_of
from supermax.naming import HALF_WRITTEN, STATE, WEIGHTS
from supermax.records import StudyRecord, read

MADE_ANEW = ("tokens", "tokenizers")
"""Of a cache; the refits in it are hours of work."""


@dataclass(frozen=True)
class Leftover:
    what: str
    path: Path
    size: int


def leftovers(studies: Sequence[Study], *, top: int, cache: Path | None) -> list[Leftover]:
    """All that could go. `studies`: every one of a storage, or the run files of the others would
    be taken for those of deleted ones. `cache`: what is only there to save time."""
    found: list[Leftover] = []
    homes: set[Path] = set()
    root: Path | None = None
    for study in studies:
        home = find_home(study)
        homes.add(home.run_dir)
        root = home.run_dir.parent
        found += _of_study(read(study), top)
    if root is not None:
        found += _of_deleted(root, homes)
    for place in [cache / name for name in MADE_ANEW] if cache is not None else []:
        if place.is_dir() and not place.is_symlink():
            found.append(_leftover(f"{place}: made anew when it is needed", place))
    return [item for item in found if item.size]


def _of_study(record: StudyRecord, top: int) -> Iterator[Leftover]:
    best = {trial.number for trial in record.ranking()[:top]}
    for trial in record.trials:
        folder, ended = trial.folder.path, trial.trial.state.is_finished()
        if ended and trial.number not in best and (folder / WEIGHTS).exists():
            yield _leftover(f"weights that are not among the best {top}", folder / WEIGHTS)
        if ended and (folder / HALF_WRITTEN).exists():
            yield _leftover("weights that were not written to their end", folder / HALF_WRITTEN)
        state = trial.folder.checkpoint / STATE
        if ended and state.exists():
            yield _leftover("states of trials that have ended", state)
    for old in sorted(record.run_dir.glob("old-*")):
        yield _leftover("run files of a deleted study of the same name", old)


def _of_deleted(root: Path, homes: set[Path]) -> Iterator[Leftover]:
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        is_run = (folder / "run.json").is_file() and (folder / "trials").is_dir()
        if is_run and folder not in homes and '"study"' in tail_of(folder / "run.json"):
            yield _leftover("run files of deleted studies", folder)


def remove(items: list[Leftover]) -> tuple[int, list[str]]:
    """Bytes freed, and what could not be removed."""
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
