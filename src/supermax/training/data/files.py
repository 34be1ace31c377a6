"""Reading of text files as UTF-8: gzip is decompressed, other encodings are converted."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from supermax._util.text import ended
from supermax.errors import UserError
from supermax.training.data.encodings import UTF8, detect, marked, utf16_of
from supermax.training.data.names import nearest_column

_BINARY = {
    b"PK\x03\x04": ("a ZIP archive or a workbook", "Save its table as CSV."),
    b"\xd0\xcf\x11\xe0": ("a workbook or a document of Office", "Save its table as CSV."),
    b"PAR1": ("Parquet", "Name it .parquet."),
    b"ARROW1": ("an Arrow file", "Save its table as Parquet."),
    b"\x1f\x8b": ("a gzip file", "Add .gz to its name."),
    b"%PDF": ("a PDF", "Save its text as CSV or JSONL."),
    b"SQLite format 3": ("a database", "Export its table as CSV."),
}
"""Formats that are not text, by their first bytes, each with advice."""
_MOST_NULLS = 0.01
"""Share of null bytes above which data is not text."""
_ALWAYS_UTF8 = (".jsonl", ".ndjson")


@dataclass(frozen=True)
class Contents:
    data: bytes
    """UTF-8. Damaged lines of a UTF-8 file are left as they are."""
    encoding: str
    """Encoding of the file itself."""


def read_contents(path: Path, encoding: str | None = None) -> Contents:
    """Read a file. `encoding` is that of the file; None detects it (`detect`).

    Raises UserError if the file cannot be read or decoded.
    """
    data = _bytes(path)
    if path.suffix.lower() == ".gz":
        data = _decompressed(path, data)
    _refuse_binary(path, data)
    always = UTF8 if suffix_of(path) in _ALWAYS_UTF8 else None
    found = encoding or marked(data) or always or detect(data)
    if _known(found) == UTF8:
        while data.startswith(codecs.BOM_UTF8):  # some programs write it twice
            data = data.removeprefix(codecs.BOM_UTF8)
        return Contents(data, UTF8)
    try:
        return Contents(data.decode(found).removeprefix("\ufeff").encode(UTF8), found)
    except UnicodeDecodeError as error:
        line = data[: error.start].decode(found, errors="ignore").count("\n") + 1
        raise UserError(
            f"{path} is not {found} text: byte {error.start + 1:,} of the file (0x"
            f"{data[error.start]:02x}, in line {line:,}) has no meaning there. Name its encoding, "
            f"or save it as UTF-8."
        ) from None
    except UnicodeError:
        raise UserError(
            f"{path} is not {found} text. Name its encoding, or save it as UTF-8."
        ) from None


def suffix_of(path: Path) -> str:
    """Return the extension of the format: that of notes.csv.gz is .csv."""
    return _without_gz(path).suffix.lower()


def stem_of(path: Path) -> str:
    """Return the name without the extensions of the format and of gzip."""
    return _without_gz(path).stem


def _without_gz(path: Path) -> Path:
    return path.with_suffix("") if path.suffix.lower() == ".gz" else path


def require_readable(path: Path) -> None:
    """Raise UserError if there is no such file or it cannot be opened."""
    with _explained(path):
        path.open("rb").close()


def _bytes(path: Path) -> bytes:
    with _explained(path):
        return path.read_bytes()


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Raise UserError for an OSError; if the file is missing, name the most similar one."""
    try:
        yield
    except FileNotFoundError:
        folder = path.parent
        others = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
        raise UserError(
            ended(f"There is no file {path}{nearest_column(path.name, others)}")
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None


def _decompressed(path: Path, data: bytes) -> bytes:
    try:
        return gzip.decompress(data)
    except EOFError:
        raise UserError(
            f"{path} is not a whole gzip file: its end is missing. Copy or download it again."
        ) from None
    except (OSError, zlib.error):
        raise UserError(
            f"{path} is not a whole gzip file. If it is not compressed, name it without .gz; "
            f"otherwise copy or download it again."
        ) from None


def _refuse_binary(path: Path, data: bytes) -> None:
    """Raise UserError for known formats that are not text, and for data with many null bytes."""
    for start, (what, advice) in _BINARY.items():
        if data.startswith(start):
            raise UserError(f"{path} is not text but {what}. {advice}")
    many = data.count(0) > _MOST_NULLS * len(data)
    if many and marked(data) is None and utf16_of(data) is None:
        first = data.index(0)
        raise UserError(
            f"{path} is not text: byte {first + 1:,} and others are null bytes. Save the data as "
            f"CSV, JSONL or Parquet."
        )


def _known(encoding: str) -> str:
    """Return the canonical name of a text encoding. Raises UserError if there is none."""
    try:
        "".encode(encoding)  # some codecs are not of text
        return codecs.lookup(encoding).name
    except LookupError:
        raise UserError(
            f"There is no encoding {encoding!r:.40}. Common ones: utf-8, cp1252 (Western European "
            f"Windows), latin-1, utf-16."
        ) from None
