"""Tokenised examples as arrays on disk: made once, shared by all cells without copying.

    examples, tokenizer, lengths ──▶ cache/<key>/*.npy ──memory-mapped──▶ Tokens

Sequences lie end to end in one array; `begin[i]:begin[i + 1]` is sequence i. A long text becomes
several windows that overlap; `example[i]` says whose window sequence i is.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from supermax.errors import Infeasible
from supermax.files import make_private, open_private
from supermax.training.data.examples import Example
from supermax.training.data.spans import Span
from supermax.training.offsets import Array, mapped, widened
from supermax.words import listed

NONE = -100
"""No target: what torch's losses ignore."""
_FORMAT = 2
_AT_ONCE = 16  # texts: what the tokenizer returns is a hundred times their size


@dataclass(frozen=True)
class Tokens:
    """Sequences of token ids with their targets."""

    ids: Array
    begin: Array
    second: Array
    """Where in each sequence the second segment begins (its length, if there is none)."""
    example: Array
    label: Array
    start: Array
    end: Array
    """Target positions of the answer; 0, 0 for none in this window; NONE if not asked."""
    offsets: Array
    """For every token that is part of a text in which spans are sought, its characters [from, to)
    there; -1, -1 for all others."""

    def __len__(self) -> int:
        return len(self.begin) - 1

    @property
    def lengths(self) -> Array:
        return np.diff(self.begin)


def tokenised(
    examples: Sequence[Example],
    tokenizer: Any,
    *,
    max_length: int,
    doc_stride: int,
    cache: Path,
    key: str,
) -> Tokens:
    """The examples' tokens, from the cache or made and put there. A long text in which spans are
    sought becomes several sequences; any other is cut. `key` names examples and tokenizer."""
    facts = [_FORMAT, key, max_length, doc_stride]
    name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
    folder = cache / "tokens" / name
    if folder.exists():
        try:
            return _kept(folder)
        except (OSError, ValueError, EOFError):  # a damaged cache is made anew
            shutil.rmtree(folder, ignore_errors=True)
    _keep(_tokenise(examples, tokenizer, max_length, doc_stride), folder)
    return _kept(folder)


def _kept(folder: Path) -> Tokens:
    return Tokens(
        **{f.name: np.load(folder / f"{f.name}.npy", mmap_mode="r") for f in fields(Tokens)}
    )


def _keep(tokens: Tokens, folder: Path) -> None:
    """All files or none, also when two cells make the same ones at once."""
    make_private(folder.parent)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent))
    for f in fields(Tokens):
        with open_private(temporary / f"{f.name}.npy", "wb") as file:
            np.save(file, getattr(tokens, f.name))
    try:
        temporary.rename(folder)
    except OSError:  # somebody was faster
        shutil.rmtree(temporary)


def _tokenise(
    examples: Sequence[Example], tokenizer: Any, max_length: int, doc_stride: int
) -> Tokens:
    numbered = list(enumerate(examples))
    cut = [item for item in numbered if item[1].spans is None]
    windowed = [item for item in numbered if item[1].spans is not None]
    parts: list[dict[str, Any]] = []
    for some, stride in ((cut, None), (windowed, doc_stride)):
        if not some:
            continue
        check_room([example for _, example in some], tokenizer, max_length, stride or 0)
        for first in range(0, len(some), _AT_ONCE):
            batch = some[first : first + _AT_ONCE]
            encoded = _encode([e for _, e in batch], tokenizer, max_length, stride)
            parts += _sequences(encoded, batch, windows=stride is not None)
    lengths = [len(part["ids"]) for part in parts]
    return Tokens(
        ids=np.concatenate([part["ids"] for part in parts]),
        begin=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        offsets=np.concatenate([part["offsets"] for part in parts]),
        **{
            key: np.array([part[key] for part in parts], dtype=np.int32)
            for key in ("second", "example", "label", "start", "end")
        },
    )


def check_room(
    examples: Sequence[Example], tokenizer: Any, max_length: int, doc_stride: int
) -> None:
    """The question must leave room for the text, and windows must move on."""
    questions = {example.question: example.id for example in examples if example.question}
    too_long, longest = [], len(tokenizer("")["input_ids"])
    for question, named in questions.items():
        used = len(tokenizer(question, "")["input_ids"])
        longest = max(longest, used)
        if max_length - used <= doc_stride:
            too_long.append(f"{named}: {used} tokens for the question alone")
    if longest + doc_stride >= max_length:
        more = f" and an overlap of {doc_stride}" if doc_stride else ""
        head = f"A length of {max_length} tokens{more} leaves no room for texts."
        over = (longest + doc_stride + 1 - max_length) / max_length
        raise Infeasible(listed(head, too_long[:10]) if too_long else head, by=over)


def _encode(
    examples: Sequence[Example], tokenizer: Any, max_length: int, stride: int | None
) -> Any:
    texts = [example.text for example in examples]
    questions = [example.question for example in examples]
    pairs = (questions, texts) if any(questions) else (texts,)
    return tokenizer(
        *pairs,
        truncation="only_second" if len(pairs) == 2 else True,
        max_length=max_length,
        stride=stride or 0,
        return_overflowing_tokens=stride is not None,
        return_offsets_mapping=stride is not None,
        return_token_type_ids=False,
        return_attention_mask=False,
        verbose=False,
    )


def _sequences(
    encoded: Any, numbered: Sequence[tuple[int, Example]], windows: bool
) -> list[dict[str, Any]]:
    whose = encoded["overflow_to_sample_mapping"] if windows else range(len(numbered))
    found = _targets(encoded, numbered, whose) if windows else {}
    result = []
    for i, ids in enumerate(encoded["input_ids"]):
        number, example = numbered[whose[i]]
        segments = encoded.sequence_ids(i)
        nowhere = np.full((len(ids), 2), -1, dtype=np.int32)
        offsets, (start, end) = found.get(i, (nowhere, (NONE, NONE)))
        result.append(
            {
                "ids": np.array(ids, dtype=np.int32),
                "second": segments.index(1) if 1 in segments else len(ids),
                "example": number,
                "label": NONE if example.label is None else example.label,
                "start": start,
                "end": end,
                "offsets": offsets,
            }
        )
    return result


def _targets(
    encoded: Any, numbered: Sequence[tuple[int, Example]], whose: Sequence[int]
) -> dict[int, tuple[Array, tuple[int, int]]]:
    """Offsets and target of every window. All windows of a text are looked at together: a
    character that none of them covers was dropped, and is missing from no window."""
    context = 1 if any(example.question for _, example in numbered) else 0
    own: dict[int, dict[int, Array]] = {}
    for i, which in enumerate(whose):
        offsets = np.array(encoded["offset_mapping"][i], dtype=np.int32).reshape(-1, 2)
        inside = np.array([segment == context for segment in encoded.sequence_ids(i)], dtype=bool)
        own.setdefault(which, {})[i] = np.where(inside[:, None], offsets, np.int32(-1))
    found: dict[int, tuple[Array, tuple[int, int]]] = {}
    for which, windows in own.items():
        _, example = numbered[which]
        wide = widened(example.text, list(windows.values()))
        spans = mapped(example.text, example.spans or (), wide)
        found |= {
            i: (offsets, target(offsets, spans)) for i, offsets in zip(windows, wide, strict=True)
        }
    return found


def target(offsets: Array, spans: Iterable[Span]) -> tuple[int, int]:
    """Return the first and last token of the first span that lies whole in the window; 0, 0 where
    there is none. Spans are as `mapped` gives them."""
    for begin, end in spans:
        inside = np.flatnonzero(
            (offsets[:, 0] >= 0) & (offsets[:, 1] > begin) & (offsets[:, 0] < end)
        )
        if len(inside) and offsets[inside[0], 0] <= begin and offsets[inside[-1], 1] >= end:
            return int(inside[0]), int(inside[-1])
    return 0, 0
