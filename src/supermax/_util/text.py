"""Text of messages: lists, suggestions, durations and sizes; masking of secrets and escapes."""

from __future__ import annotations

import difflib
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

SERVICE_PREFIX = "supermax-"
"""Start of the names of libpq services that `supermax database` defines."""
# No more than these: a pattern that removes a letter of "password" would unmask its value.
_SEQUENCES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[()][AB012]|\x1b[@-_]")
_PASSWORD = re.compile(r"(?<=://)([^\s/:@'\"]*):[^\s'\"]*@")
_STORAGE_URL = re.compile(r"(postgres(ql)?|mysql|mariadb|sqlite|journal)(\+\w+)?(:|//)", re.I)
_FOLDER_URL = re.compile(
    r"(s3a?|gs|gcs|az|abfss?|adl|hdfs|webhdfs|https?|s?ftp|ssh|smb|file|oss|oci|hf|memory)(:|//)",
    re.I,
)
_LOGIN = re.compile(r"(?<=://)[^\s/]+@")
# bob:secret@host/ without a scheme.
_BARE = re.compile(r"(?<![^\s/:@'\"])([^\s/:@'\"]+):(?!//)[^\s/'\"]+@(?=[\w.-]+[/:])")
_SECRETS = (
    r"password|passwd|passphrase|passcode|pwd|secret|token|credentials?|signature|odbc_connect"
    r"|(?:ssl|api|access|account|private)key|[_-]key"
)
"""Endings of the names of secrets."""
_SECRET = re.compile(rf"(?i)((?:{_SECRETS})['\"]?\s*(?:=|:|%3D)\s*)(?:'[^']*'|\"[^\"]*\"|\S+)")
_IN_QUERY = re.compile(rf"(?i)((?:{_SECRETS}|\b(?:pass|key|sig))(?:=|%3D))[^&]*")
_IN_TEXT = re.compile(
    rf"(?i)((?:{_SECRETS}|[?&](?:pass|key|sig))=)(?:'[^'\n]*'|\"[^\"\n]*\"|[^\s&'\"]+)"
)
_NAMES = re.compile(
    r"pass|pwd|secret|token|credential|signature|jwt|odbc_connect|key$|^(sig|auth)$"
)
"""Names of secrets in the query of a URL."""
_PAIR = re.compile(r"([^&=]*)=([^&]*)")
_LINK = "(Background on this error"  # SQLAlchemy's link to its documentation
_MAX_INPUT = 10_000  # characters that are processed: a message may have megabytes


def listed(head: str, items: Iterable[str]) -> str:
    """Return a head with a bulleted list; items of several lines are indented."""
    inner = [item.replace("\n", "\n    ") for item in items]
    return "\n".join([head, *(f"  - {item}" for item in inner)])


def nearest(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean …?" for a word close to a known one, else the known words, if few."""
    known = list(dict.fromkeys(known))
    lowered = {name.lower(): name for name in known}
    if match := difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.5):
        return f"; did you mean {one_line(lowered[match[0]])!r}?"
    tails = [name for name in known if name.split(".")[-1] == word.split(".")[-1]]
    if tails:
        return f"; did you mean {one_line(tails[0])!r}?"
    if known and len(known) <= 12:
        return f"; there are {', '.join(map(one_line, known))}"
    return ""


def in_short(error: object, most: int = 200) -> str:
    """Return an error's message on one line, shortened and without passwords."""
    return one_line(masked(str(error).partition(_LINK)[0][:_MAX_INPUT]), most).rstrip(".")


def printable(text: str) -> str:
    """Return the text without terminal escapes and unprintable characters; line breaks stay."""
    text = _SEQUENCES.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return text if text.isprintable() else "".join(map(_printable_char, text))


def _printable_char(char: str) -> str:
    if char.isprintable() or char in "\n\t":
        return char
    return " " if unicodedata.category(char) == "Zs" else "\ufffd"


def one_line(text: str, most: int = 1000) -> str:
    """Return printable text on one line of at most `most` characters."""
    line = " ".join(printable(text[:_MAX_INPUT]).split())
    whole = len(line) <= most and len(text) <= _MAX_INPUT
    return line if whole else f"{line[: most - 1]}…"


def masked(text: str, *, users: bool = True) -> str:
    """Mask everything that looks like a password, as in exceptions that quote a URL. `users`: keep
    the user names before passwords; text that leaves the machine is masked without them."""
    if not users:
        text = _SECRET.sub(r"\1***", _LOGIN.sub("***@", text))
    login = r"\1:***@" if users else "***@"
    return _SECRET.sub(r"\1***", _BARE.sub(login, _PASSWORD.sub(login, text)))


def is_url(text: str) -> bool:
    """Return whether a storage is meant as a URL, also one whose `://` is mistyped: as the name
    of a file, its password would be shown."""
    return "://" in text or _STORAGE_URL.match(text) is not None


def mistyped_url(folder: str) -> str | None:
    """Return what is wrong with a folder that is meant as a URL, but whose `://` is mistyped: as a
    path, it would be created here. None: it is a URL, or a path."""
    if "://" in folder or (found := _FOLDER_URL.match(folder)) is None:
        return None
    shown = masked_url(folder)
    return (
        f"{shown} is neither a folder nor a URL: write {found[1].lower()}://… for the URL, or "
        f"./{shown} for a folder of that name"
    )


def masked_url(url: str) -> str:
    """Mask the login and the secrets in the query of a URL, valid or not."""
    return masked_query(re.sub(r"(?<=://).*@|^[^/:]+:(?!//).*@|^(?!.*://).*@", "***@", url))


def masked_query(url: str) -> str:
    """Mask the values of secrets in the query of a URL."""
    head, mark, query = url.partition("?")
    return head + mark + _PAIR.sub(_masked_pair, query)


def _masked_pair(pair: re.Match[str]) -> str:
    value = "***" if is_secret(pair[1]) else _IN_QUERY.sub(r"\1***", pair[2])
    return f"{pair[1]}={value}"


def is_secret(name: str) -> bool:
    """Return True if the name of a query parameter is that of a secret."""
    return _NAMES.search(unquote(name).lower()) is not None


def masked_addresses(text: str) -> str:
    """Mask passwords in URLs and name=value pairs of secrets only: for tracebacks and logs, in
    which `token = tokenizer(…)` is code."""
    return _IN_TEXT.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))


def finite(data: object) -> object:
    """Return data with infinite and NaN numbers as text, since JSON has none."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [finite(value) for value in data]
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data


def counted(n: int, one: str, many: str | None = None) -> str:
    """Return "1 trial" or "2 trials"; `many` is an irregular plural."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def metric_title(name: str, labels: Sequence[str]) -> str:
    """Return the title of a metric: f1_1 with the name of its class."""
    match = re.fullmatch(r"f1_([0-9]{1,6})", name)
    if match is None or int(match[1]) >= len(labels):
        return name
    return f"f1 of {one_line(labels[int(match[1])], 40)}"


def clock(seconds: float) -> str:
    """Return a running time as 1:02:03, or as 2:03 below an hour."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def took(seconds: float | None) -> str:
    """Return a duration as 0.034 s, 12.3 s, 2:03, 1:02:03 or 2.5 days; "–" for None."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds >= 1 else f"{max(0.0, seconds):.2g} s"
    return clock(round(seconds)) if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def size_text(n: float) -> str:
    """Return a number of bytes with a binary unit: 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if n >= 100 or unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"


def mistakes(count: int) -> str:
    return "a mistake" if count == 1 else f"{count} mistakes"


def ended(text: str) -> str:
    """Return the text with a full stop, unless it ends with a question mark."""
    return text if text.endswith("?") else f"{text}."


def edits(one: str, other: str) -> int:
    """Return the Levenshtein distance of two words."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        last, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]
