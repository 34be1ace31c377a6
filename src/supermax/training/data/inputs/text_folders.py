"""Reader of folders: of text files by class, and of one data file for each split."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from supermax.errors import UserError
from supermax.training.data.bad_rows import BadRows
from supermax.training.data.encodings import (
    NAME_IT,
    NOT_UTF8,
    UTF8,
    detect,
    first_wrong_byte,
    is_utf8,
    marked,
)
from supermax.training.data.files import read_contents
from supermax.training.data.inputs.parts import joined_parts, part_name
from supermax.training.data.places import FILE, Place
from supermax.training.data.rows import Row, Rows

_TEXTS = (".txt", ".text", ".md", "")
_UNLABELLED = ("unsup", "unlabeled", "unlabelled")
"""Folders whose texts have no class."""
FOLDER = "folder of text files"
ReadFile = Callable[[Path, BadRows, str | None], Rows]


def read_data_files(
    folder: Path, files: dict[str, list[Path]], bad: BadRows, encoding: str | None, read: ReadFile
) -> Rows:
    """Read the data files of each split, by its name, with one reader for each file."""
    parts: dict[str, Rows] = {}
    for name, paths in files.items():
        tables = [read(path, bad, encoding) for path in paths]
        columns = tuple(dict.fromkeys(name for table in tables for name in table.columns))
        rows = tuple(row for table in tables for row in table.rows)
        remarks = [line for table in tables for line in (*table.remarks, *_read_as(table))]
        whole = replace(tables[0], columns=columns, rows=rows, remarks=tuple(remarks))
        parts[name] = replace(whole, encoding=encoding or UTF8)
    return joined_parts(folder.name, parts)


def _read_as(table: Rows) -> Iterator[str]:
    """Name the detected encoding of a file: each file of a folder may have its own."""
    if table.encoding != UTF8:
        yield f"{table.file} is not UTF-8. It is read as {table.encoding}."


def data_files(folder: Path, is_table: Callable[[Path], bool]) -> dict[str, list[Path]]:
    """Return the files of each split: train.csv, or train-00000-of-00002.parquet and others."""
    found: dict[str, list[Path]] = {}
    for path in _visible(folder):
        part = part_name(path.name.partition(".")[0])
        if part is not None and path.is_file() and is_table(path):
            found.setdefault(part, []).append(path)
    for part, paths in found.items():
        if len({_without_shard(path) for path in paths}) > 1:
            names = " and ".join(path.name for path in paths[:2])
            raise UserError(
                f"{folder} has several files of {part}, {names}, which may hold the same rows. "
                f"Leave one of them in it; shards are named like train-00000-of-00002.csv."
            )
    return found


def _without_shard(path: Path) -> str:
    """Return the name of a file without the number of its shard."""
    return re.sub(r"-\d{5}(?=-of-\d{5})", "", path.name)


def is_text_folder(folder: Path) -> bool:
    """Return True if most of the files in the folders of a folder are text files by their name."""
    inside = [path for path in _visible(folder) if path.is_dir()]
    files = [path for _, path, _ in _files(folder, "", inside, itertools.count())]
    return 2 * sum(path.suffix.lower() in _TEXTS for path in files) > len(files)


def read_text_folder(folder: Path, bad: BadRows, encoding: str | None = None) -> Rows:
    """Read a folder with a folder of text files for each class; or with the folders train,
    validation and test, each with such folders.

    The columns are text, label, and id, the path of the file within the folder.
    """
    inside = [path for path in _visible(folder) if path.is_dir()]
    parts = {path: part_name(path.name) for path in inside}
    if not all(parts.values()):
        some = [path.name for path, part in parts.items() if part]
        if some:
            odd = ", ".join(path.name for path, part in parts.items() if not part)
            raise UserError(
                f"{folder} has folders of splits ({', '.join(some)}) beside others ({odd}), so it "
                f"is unclear which are classes. Move or rename the others."
            )
        return _read(folder, {"": inside}, bad, encoding)
    of_parts = {path.name: [p for p in _visible(path) if p.is_dir()] for path in inside}
    return _read(folder, of_parts, bad, encoding)


def _read(
    folder: Path, classes: dict[str, list[Path]], bad: BadRows, encoding: str | None
) -> Rows:
    name = folder.resolve().name
    numbers = itertools.count(1)
    files = {p: [*_files(folder, name, inside, numbers)] for p, inside in classes.items()}
    if not any(files.values()):
        raise UserError(
            f"{folder} has no text files in folders of classes, such as {folder}/CLASS/1.txt or "
            f"{folder}/train/CLASS/1.txt."
        )
    detected = _detected([path for found in files.values() for _, path, _ in found])
    parts = {
        part: _rows(name, [(p, _text(p, path, encoding, detected, bad), c) for p, path, c in each])
        for part, each in files.items()
    }
    return replace(joined_parts(name, parts), encoding=encoding or detected)


def _rows(name: str, found: list[tuple[Place, str | None, str]]) -> Rows:
    rows = tuple(
        Row(place, {"text": text, "label": label or None, "id": place.file})
        for place, text, label in found
        if text is not None
    )
    return Rows(name, ("text", "label", "id"), rows, form=FOLDER)


def _files(
    folder: Path, name: str, classes: list[Path], numbers: Iterator[int]
) -> Iterator[tuple[Place, Path, str]]:
    """Yield place, path and class of each file."""
    for inside in classes:
        label = "" if inside.name.lower() in _UNLABELLED else inside.name
        for path in sorted(_walked(inside)):
            file = path.relative_to(folder).as_posix()
            yield Place(name, next(numbers), FILE, file), path, label


def _walked(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, without hidden ones. Raises OSError for a folder that cannot
    be read: its texts would be missing."""
    for place, folders, files in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found = (Path(place) / name for name in files if not name.startswith("."))
        yield from (path for path in found if path.is_file())  # no pipes, which would block


def _raise(error: OSError) -> None:
    raise error


def _text(place: Place, path: Path, given: str | None, detected: str, bad: BadRows) -> str | None:
    """Return the text of a file; None if it is bad."""
    if path.suffix.lower() not in _TEXTS:
        bad.add(place, "this is not a .txt file")
        return None
    own = _encoding_of(path.read_bytes(), given, detected)
    try:
        data = read_contents(path, own).data
    except UserError:
        bad.add(place, "this is not text that can be read")
        return None
    if (byte := first_wrong_byte(data)) is not None:
        bad.add(place, NOT_UTF8, byte.replace(" of the line", ""), advice=NAME_IT)
        return None
    return data.decode(UTF8)


def _encoding_of(data: bytes, given: str | None, detected: str) -> str | None:
    """Return the encoding of one file; None: as detected for it alone. Beside files in another
    encoding, one that is UTF-8 stays UTF-8: by accident, no text with accents is valid UTF-8."""
    if not data.isascii() and is_utf8(data):
        return UTF8
    return given or (None if detected == UTF8 or marked(data) else detected)


def _detected(paths: list[Path]) -> str:
    """Detect the encoding of all files together: one alone may be too short."""
    texts = [path.read_bytes() for path in paths if path.suffix.lower() in _TEXTS]
    return detect(b"\n".join(data for data in texts if b"\0" not in data))


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
