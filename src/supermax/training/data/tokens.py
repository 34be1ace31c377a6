"""Tokenized examples as memory-mapped arrays on disk, shared by all processes of a run.

    examples, tokenizer, lengths ──▶ cache/<key>/*.npy ──memory-mapped──▶ Tokens

Sequences are concatenated in one array; `begin[i]:begin[i + 1]` is sequence i. A long text becomes
several overlapping windows; `example[i]` is the example of sequence i.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from supermax._util.files import make_private, open_private
from supermax._util.text import listed
from supermax.errors import Infeasible
from supermax.training.data.entities.token_tags import first_tokens, tagged_windows
from supermax.training.data.examples import Example
from supermax.training.data.offsets import Array, mapped, widened
from supermax.training.data.spans import Span

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerFast

NONE = -100
"""Target that PyTorch's losses ignore."""
_FORMAT = 2
_BATCH = 16  # texts at a time, as the tokenizer's output is a hundred times their size


@dataclass(frozen=True)
class Tokens:
    """Sequences of token ids with their targets."""

    ids: Array
    begin: NDArray[np.int64]
    second: Array
    """Position of the second segment in each sequence; the sequence's length if there is none."""
    example: Array
    """Index of the example of each sequence."""
    label: Array | NDArray[np.floating[Any]]
    """Class of each sequence; NONE if its example is not for classes. Floats if the examples are
    for numbers; NaN is then a missing number. 0 and 1 [sequences, labels] for sets of labels."""
    start: Array
    end: Array
    """First and last token of the answer; 0, 0 if the window holds none; NONE if the example is
    not for spans."""
    offsets: Array
    """Characters [from, to) of each token in the text of a span or entity example; -1, -1 for
    others."""
    word: Array = field(default_factory=lambda: np.zeros(0, np.int32))
    """Word that each token belongs to, in the window that decides it; else -1. Empty unless the
    examples are for entities."""
    tag: Array = field(default_factory=lambda: np.zeros(0, np.int16))
    """Class of each token of these words; else NONE."""

    def __len__(self) -> int:
        return len(self.begin) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sequence."""
        return np.diff(self.begin)

    def tags_of(self, rows: NDArray[np.int64]) -> Array:
        """Return the classes of the tokens of some sequences, one after the other."""
        return np.concatenate([self.tag[self.begin[row] : self.begin[row + 1]] for row in rows])

    def with_first_tags(self) -> Tokens:
        """Return the tokens without the classes of all but the first token of each word."""
        tag = np.where(first_tokens(self.word), self.tag, NONE).astype(self.tag.dtype)
        return replace(self, tag=tag)


class _Sequence(NamedTuple):
    """Parts of one sequence, as in `Tokens`."""

    ids: Array
    offsets: Array
    word: Array
    tag: Array
    second: int
    example: int
    label: float
    start: int
    end: int


def tokenized(
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerFast,
    *,
    max_length: int,
    doc_stride: int,
    cache: Path,
    key: str,
    windows: bool = False,
) -> Tokens:
    """Return the examples' tokens from the cache, or tokenize them into it.

    A long text of a span or entity example becomes several windows; others are truncated, or
    become windows too with `windows`. `key` identifies examples and tokenizer.
    """
    facts = [_FORMAT, key, max_length, doc_stride, *(["windows"] if windows else [])]
    name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
    folder = cache / "tokens" / name
    if folder.exists():
        try:
            return _load(folder)
        except (OSError, ValueError, EOFError):  # a damaged cache is replaced
            shutil.rmtree(folder, ignore_errors=True)
    stride = doc_stride if windows else None
    _save(_tokenize(examples, tokenizer, max_length, doc_stride, stride), folder)
    return _load(folder)


def _load(folder: Path) -> Tokens:
    return Tokens(
        **{f.name: np.load(folder / f"{f.name}.npy", mmap_mode="r") for f in fields(Tokens)}
    )


def _save(tokens: Tokens, folder: Path) -> None:
    """Write all files atomically, also if two processes write the same tokens."""
    make_private(folder.parent)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent))
    for f in fields(Tokens):
        with open_private(temporary / f"{f.name}.npy", "wb") as file:
            np.save(file, getattr(tokens, f.name))
    try:
        temporary.rename(folder)
    except OSError:  # another process wrote them meanwhile
        shutil.rmtree(temporary)


def _tokenize(
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerFast,
    max_length: int,
    doc_stride: int,
    other_stride: int | None,
) -> Tokens:
    """Tokenize examples. `doc_stride` is that of span and entity examples, `other_stride` that of
    all others; None: truncate them."""
    numbered = list(enumerate(examples))
    windowed = [item for item in numbered if _is_windowed(item[1])]
    others = [item for item in numbered if not _is_windowed(item[1])]
    sequences: list[_Sequence] = []
    for items, stride in ((others, other_stride), (windowed, doc_stride)):
        if not items:
            continue
        check_room([example for _, example in items], tokenizer, max_length, stride or 0)
        for first in range(0, len(items), _BATCH):
            batch = items[first : first + _BATCH]
            encoded = _encode([e for _, e in batch], tokenizer, max_length, stride)
            sequences += _sequences(encoded, batch, windows=stride is not None)
    ids, offsets, word, tag, *numbers = zip(*sequences, strict=True)
    second, example, _, start, end = (np.array(each, dtype=np.int32) for each in numbers)
    label = np.array(numbers[2])
    label = label.astype(np.float64 if label.dtype.kind == "f" else np.int32)
    begin = np.cumsum([0, *map(len, ids)], dtype=np.int64)
    joined = (np.concatenate(parts) for parts in (offsets, word, tag))
    return Tokens(np.concatenate(ids), begin, second, example, label, start, end, *joined)


def _is_windowed(example: Example) -> bool:
    return example.spans is not None or example.entities is not None


def check_room(
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerFast,
    max_length: int,
    doc_stride: int,
) -> None:
    """Raise Infeasible if a question leaves no room for its text, or windows cannot advance."""
    questions = {example.question: example.id for example in examples if example.question}
    too_long, longest = [], len(tokenizer("")["input_ids"])
    for question, example_id in questions.items():
        used = len(tokenizer(question, "")["input_ids"])
        longest = max(longest, used)
        if max_length - used <= doc_stride:
            too_long.append(f"{example_id}: {used} tokens for the question alone")
    if longest + doc_stride >= max_length:
        overlap = f" and an overlap of {doc_stride}" if doc_stride else ""
        heading = f"A length of {max_length} tokens{overlap} leaves no room for texts."
        over = (longest + doc_stride + 1 - max_length) / max_length
        raise Infeasible(listed(heading, too_long[:10]) if too_long else heading, by=over)


def _encode(
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerFast,
    max_length: int,
    stride: int | None,
) -> BatchEncoding:
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
    encoded: BatchEncoding, numbered: Sequence[tuple[int, Example]], windows: bool
) -> Iterator[_Sequence]:
    sample_of = encoded["overflow_to_sample_mapping"] if windows else range(len(numbered))
    in_tokens = _is_windowed(numbered[0][1])  # what they are labelled with
    targets = _targets(encoded, numbered, sample_of) if in_tokens else {}
    for i, ids in enumerate(encoded["input_ids"]):
        number, example = numbered[sample_of[i]]
        segments = encoded.sequence_ids(i)
        no_offsets = np.full((len(ids), 2), -1, dtype=np.int32)
        none = _Target(no_offsets, NONE, NONE, np.zeros(0, np.int32), np.zeros(0, np.int16))
        offsets, start, end, word, tag = targets.get(i, none)
        second = segments.index(1) if 1 in segments else len(ids)
        label: float = NONE if example.label is None else example.label
        label = label if example.value is None else float(example.value)
        parts = (np.array(ids, np.int32), offsets, word, tag)
        yield _Sequence(*parts, second, number, label, start, end)


class _Target(NamedTuple):
    """Offsets and targets of a window."""

    offsets: Array
    start: int
    end: int
    word: Array
    tag: Array


def _targets(
    encoded: BatchEncoding, numbered: Sequence[tuple[int, Example]], sample_of: Sequence[int]
) -> dict[int, _Target]:
    """Return offsets and targets of every window.

    All windows of a text are needed at once: only a character that none of them covers was
    dropped by the tokenizer.
    """
    context = 1 if any(example.question for _, example in numbered) else 0
    windows_of: dict[int, dict[int, Array]] = {}
    for i, sample in enumerate(sample_of):
        ranges = np.array(encoded["offset_mapping"][i], dtype=np.int32).reshape(-1, 2)
        inside = np.array([segment == context for segment in encoded.sequence_ids(i)], dtype=bool)
        windows_of.setdefault(sample, {})[i] = np.where(inside[:, None], ranges, np.int32(-1))
    targets: dict[int, _Target] = {}
    for sample, windows in windows_of.items():
        _, example = numbered[sample]
        extended = widened(example.text, list(windows.values()))
        if example.entities is not None:
            of_words = tagged_windows(example, extended)
            for i, offsets, tagged in zip(windows, extended, of_words, strict=True):
                targets[i] = _Target(offsets, NONE, NONE, *tagged)
            continue
        spans = mapped(example.text, example.spans or (), extended)
        for i, offsets in zip(windows, extended, strict=True):
            first, last = target(offsets, spans)
            targets[i] = _Target(offsets, first, last, np.zeros(0, int), np.zeros(0, int))
    return targets


def target(offsets: Array, spans: Iterable[Span]) -> tuple[int, int]:
    """Return the first and last token of the first span that the window holds entirely.

    0, 0 if there is none. `spans` are those that `mapped` returns.
    """
    for begin, end in spans:
        inside = np.flatnonzero(
            (offsets[:, 0] >= 0) & (offsets[:, 1] > begin) & (offsets[:, 0] < end)
        )
        if len(inside) and offsets[inside[0], 0] <= begin and offsets[inside[-1], 1] >= end:
            return int(inside[0]), int(inside[-1])
    return 0, 0
