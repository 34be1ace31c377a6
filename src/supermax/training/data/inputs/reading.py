"""Reader of all data: a path, a name or an object becomes rows with their places.

file.csv, .jsonl, .conll (.gz), … ───┐
file.parquet, saved dataset, hub:…  ├─read_rows()─▶ Rows ─▶ guessing, tables, scores
folder of texts, of train.csv, …    │
DataFrame, Dataset, DatasetDict ────┘
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from supermax.errors import UserError
from supermax.training.data.bad_rows import BadRows
from supermax.training.data.files import read_contents, require_readable, stem_of, suffix_of
from supermax.training.data.inputs import hf_datasets, text_folders
from supermax.training.data.inputs.arrow import read_parquet
from supermax.training.data.inputs.conll_files import looks_like_conll, read_conll
from supermax.training.data.inputs.csv_files import read_csv
from supermax.training.data.inputs.frames import is_frame, read_frame
from supermax.training.data.inputs.jsonl_files import read_jsonl
from supermax.training.data.inputs.stored import SUFFIX, read_stored
from supermax.training.data.rows import Rows

Source = str | Path | Any
"""Path of a file or folder; `hub:NAME`; or a data frame or dataset in memory."""


def read_rows(source: Source, bad: BadRows, encoding: str | None = None) -> Rows:
    """Read data of any format. Bad rows are added to `bad`.

    Files are CSV (.csv, .tsv, .txt), JSONL (.jsonl, .ndjson), CoNLL (.conll, .bio and others, and
    .tsv or .txt that looks like it), all also with gzip (.csv.gz), and Parquet (.parquet). Folders
    are of text files by class, of one such file for each split, or written by `save_to_disk` of a
    Hugging Face dataset. `encoding` is that of text files; None detects it. Raises UserError.
    """
    if is_frame(source):
        return read_frame(source, bad)
    if hf_datasets.is_dataset(source):
        return hf_datasets.read_dataset(source, bad)
    if not isinstance(source, str | Path):
        raise UserError(
            f"Data of the type {type(source).__name__} cannot be read: give a path, a data frame "
            f"of pandas or polars, or a dataset of the package datasets."
        )
    if hf_datasets.is_hub(source):
        return hf_datasets.read_hub(str(source), bad)
    path = Path(source).expanduser()
    if not path.is_dir():
        return _read_file(path, bad, encoding)
    try:
        return _read_folder(path, bad, encoding)
    except OSError as error:  # of a folder or a file in it
        named = error.filename or path
        raise UserError(f"{named} cannot be read: {error.strerror}.") from None


def _read_file(path: Path, bad: BadRows, encoding: str | None) -> Rows:
    suffix = suffix_of(path)
    if suffix == SUFFIX:
        return read_stored(path)
    if path.suffix.lower() in _PARQUET:
        return read_parquet(path, bad)
    reader = _TEXTS.get(suffix)
    if reader is None:
        if (hint := hf_datasets.hub_hint(str(path))) and not path.exists():
            raise UserError(f"There is no file {path}.{hint}")
        require_readable(path)
        raise UserError(
            f"{path} is neither CSV nor JSONL nor Parquet by its name; name it .csv, .jsonl or "
            f".parquet (.csv.gz and .jsonl.gz, if it is compressed), or .conll for a tag on each "
            f"line.{_LISTS.get(suffix, '')}"
        )
    contents = read_contents(path, encoding)
    if not contents.data.strip():
        raise UserError(f"{path} is empty.")
    return replace(reader(path.name, contents.data, bad), encoding=contents.encoding)


def _read_folder(folder: Path, bad: BadRows, encoding: str | None) -> Rows:
    next(folder.iterdir(), None)  # raises if it cannot be read
    if hf_datasets.is_saved(folder):
        return hf_datasets.read_saved(folder, bad)
    if files := text_folders.data_files(folder, is_table):
        return text_folders.read_data_files(folder, files, bad, encoding, _read_file)
    if text_folders.is_text_folder(folder):
        return text_folders.read_text_folder(folder, bad, encoding)
    raise UserError(
        f"{folder} is not a folder of data: it has neither a folder of text files for each class, "
        f"nor train.csv (.jsonl, .parquet), nor a dataset that save_to_disk has written. It is "
        f"not a folder of ReDSM5, with neither redsm5_posts.csv nor redsm5_annotations.csv. For a "
        f"file, name the file itself."
    )


def is_table(path: Path) -> bool:
    """Return True for the name of a CSV, JSONL, CoNLL or Parquet file."""
    return suffix_of(path) in _TEXTS or path.suffix.lower() in _PARQUET


def is_in_memory(source: Source) -> bool:
    """Return True for a data frame or a dataset."""
    return is_frame(source) or hf_datasets.is_dataset(source)


def source_stem(source: str | Path) -> str:
    """Return the name of a file, a folder or a dataset, from which a study is named."""
    if hf_datasets.is_hub(source):
        return hf_datasets.hub_stem(str(source))
    path = Path(source).expanduser()
    return path.resolve().name if path.is_dir() else stem_of(path)


def _read_text(file: str, data: bytes, bad: BadRows) -> Rows:
    """Read CSV, or CoNLL if the text looks like it."""
    return (read_conll if looks_like_conll(data) else read_csv)(file, data, bad)


_TEXTS: dict[str, Callable[[str, bytes, BadRows], Rows]] = {
    ".csv": read_csv,
    ".tsv": _read_text,
    ".txt": _read_text,
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    **dict.fromkeys((".conll", ".bio", ".iob", ".iob2", ".bioes"), read_conll),
}
_PARQUET = (".parquet", ".pq")
_LISTS = {".json": " If each of its lines is one object, name it .jsonl."}
