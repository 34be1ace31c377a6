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
from supermax.training.data.names import nearest_column

UTF8 = "utf-8"
NOT_UTF8 = "this is not UTF-8 text"
_MARKS = {
    codecs.BOM_UTF8: UTF8,
    codecs.BOM_UTF32_LE: "utf-32",  # starts with the mark of UTF-16
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
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
_WESTERN = "cp1252"
_CANDIDATES = [
    _WESTERN, "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp874",
    "koi8_r", "cp932", "euc_jp", "gb18030", "big5", "cp949",
]  # fmt: skip
"""Encodings that tables are saved in. With all codecs, a few quotation marks are detected as
Korean."""
_SAMPLED = 2000  # lines
_ALIKE = 0.02
"""Difference in coherence below which two encodings are equally likely."""


@dataclass(frozen=True)
class Contents:
    data: bytes
    """UTF-8. Damaged lines of a UTF-8 file are left as they are."""
    encoding: str
    """Encoding of the file itself."""


def read_contents(path: Path, encoding: str | None = None) -> Contents:
    """Read a file. `encoding` is that of the file; None detects it.

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
    if many and marked(data) is None and _utf16(data) is None:
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


def marked(data: bytes) -> str | None:
    """Return the encoding of the byte order mark; None without one."""
    return next((encoding for mark, encoding in _MARKS.items() if data.startswith(mark)), None)


def _utf16(data: bytes) -> str | None:
    """Return the UTF-16 in which every second byte of ASCII characters is 0; None: it is none."""
    even, odd = data[::2].count(0), data[1::2].count(0)
    if even + odd > len(data) / 8 and max(even, odd) > 9 * min(even, odd):
        return "utf-16-be" if even > odd else "utf-16-le"
    return None


def detect(data: bytes) -> str:
    """Guess the encoding: UTF-16, UTF-8 with few damaged lines, or one of the candidates."""
    if (utf16 := _utf16(data)) is not None:
        return utf16
    non_ascii = [line for line in data.splitlines() if not line.isascii()]
    wrong = [line for line in non_ascii if not is_utf8(line)]
    if 2 * len(wrong) <= len(non_ascii):  # UTF-8 with damaged lines
        return UTF8
    from charset_normalizer import from_bytes  # slow to import, and rarely needed

    found = from_bytes(b"\n".join(wrong[:_SAMPLED]), cp_isolation=_CANDIDATES)
    best = found.best()
    if best is None:
        return UTF8
    western = next((match for match in found if match.encoding == _WESTERN), None)
    if _decodes_alike(wrong, best.encoding) or (
        western is not None
        and western.chaos <= best.chaos
        and western.coherence >= best.coherence - _ALIKE
    ):
        return _WESTERN  # the most common one, unless another is clearly likelier
    return best.encoding


def _decodes_alike(lines: list[bytes], encoding: str) -> bool:
    """Return True if the lines decode to the same text as in the Western encoding."""
    data = b"\n".join(lines)
    try:
        return data.decode(_WESTERN) == data.decode(encoding)
    except UnicodeError:
        return False


def first_wrong_byte(line: bytes) -> str | None:
    """Return the first byte that is not UTF-8, with its place, as a detail of a message; None
    without one."""
    try:
        line.decode(UTF8)
    except UnicodeDecodeError as error:
        return f" (byte {error.start + 1} of the line, 0x{line[error.start]:02x})"
    return None


def is_utf8(line: bytes) -> bool:
    return first_wrong_byte(line) is None
