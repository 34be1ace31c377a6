"""Detection of encodings: only where the bytes are clear, since a wrong guess garbles texts.

byte order mark ▶ UTF-16 (null bytes) ▶ UTF-8 ▶ Windows-1252 ▶ other scripts ▶ UTF-8 with errors
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

UTF8 = "utf-8"
NOT_UTF8 = "this is not UTF-8 text"
NAME_IT = (
    "If the file has another encoding, name it: --encoding to init or predict, "
    "--set data.encoding=NAME to search."
)
"""Advice for lines that are not UTF-8."""
_MARKS = {
    codecs.BOM_UTF8: UTF8,
    codecs.BOM_UTF32_LE: "utf-32",  # starts with the mark of UTF-16
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_WESTERN = "cp1252"
_SCRIPTS = [
    "cp1251", "cp1253", "cp1255", "cp1256", "cp874", "koi8_r", "cp932", "euc_jp", "gb18030",
    "big5", "cp949",
]  # fmt: skip
"""Encodings of other scripts, in which tables are saved. Those of Latin script (cp1250, cp1254,
cp1257) cannot be told from each other and are not guessed."""
_SAMPLED = 2000  # lines
_LETTERS = frozenset("àáâãäåæçèéêëìíîïñòóôõöøùúûüýÿœßÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕÖØÙÚÛÜÝŒŸ")
_MARKS_OF_TEXT = frozenset("‘’‚“”„–—…•«»‹›¡¿€£¥¢°·©®™§±²³¹½¼¾×÷ªº´`µ\xa0\xad")
_ODD_PLACE = re.compile(r"[^\W\d_][¡¿]|[¹²³ªº¼¾][^\W\d_]|[^\W\d_a-zA-Z]{3,}")
"""Rare in Western languages: a mark within a word, three letters with accents in a row."""
_PLAUSIBLE = 0.95
"""Share of plausible characters beyond ASCII from which a text is Western."""
_AHEAD = 0.05
"""Coherence by which one encoding of another script must be ahead of all others."""
_TOUCHING = 0.3
"""Share of letters beside letters of ASCII above which a text is of Latin script."""


def marked(data: bytes) -> str | None:
    """Return the encoding of the byte order mark; None without one."""
    return next((encoding for mark, encoding in _MARKS.items() if data.startswith(mark)), None)


def detect(data: bytes) -> str:
    """Return the encoding of data without a byte order mark. UTF-8, possibly with damaged lines,
    if no other one is clear."""
    if (utf16 := utf16_of(data)) is not None:
        return utf16
    non_ascii = [line for line in data.splitlines() if not line.isascii()]
    wrong = [line for line in non_ascii if not is_utf8(line)]
    if 2 * len(wrong) <= len(non_ascii):  # UTF-8 with damaged lines
        return UTF8
    sample = b"\n".join(wrong[:_SAMPLED])
    if _is_western(sample):
        return _WESTERN
    return _other_script(sample) or UTF8


def utf16_of(data: bytes) -> str | None:
    """Return the UTF-16 in which every second byte of ASCII characters is 0; None: it is none."""
    even, odd = data[::2].count(0), data[1::2].count(0)
    if even + odd > len(data) / 8 and max(even, odd) > 9 * min(even, odd):
        return "utf-16-be" if even > odd else "utf-16-le"
    return None


def _is_western(data: bytes) -> bool:
    """Return True if nearly all characters, and their places in words, are those of texts in
    Western European languages."""
    try:
        text = data.decode(_WESTERN)
    except UnicodeError:
        return False
    beyond = [char for char in text if not char.isascii()]
    known = sum(char in _LETTERS or char in _MARKS_OF_TEXT for char in beyond)
    odd = sum(sum(not c.isascii() for c in found.group()) for found in _ODD_PLACE.finditer(text))
    return known - odd >= _PLAUSIBLE * len(beyond)


def _other_script(data: bytes) -> str | None:
    """Return the encoding in which the data is text of another script; None if it is not clear."""
    from charset_normalizer import from_bytes  # slow to import, and rarely needed

    found = sorted(from_bytes(data, cp_isolation=_SCRIPTS), key=lambda match: -match.coherence)
    if not found or (len(found) > 1 and found[0].coherence < found[1].coherence + _AHEAD):
        return None
    best = found[0]
    touching = list(_touching(data.decode(best.encoding)))
    clear = bool(touching) and sum(touching) <= _TOUCHING * len(touching)
    return best.encoding if clear else None


def _touching(text: str) -> Iterator[bool]:
    """Tell for each letter beyond ASCII whether a letter of ASCII is beside it."""
    for found in re.finditer(r"([a-zA-Z]?)([^\W\d_a-zA-Z]+)(?=([a-zA-Z]?))", text):
        before, letters, after = found.groups()
        yield from (bool(before or after) for _ in letters)


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


def is_encodable(text: str) -> bool:
    """Return True if the text can be written as UTF-8: it holds no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
