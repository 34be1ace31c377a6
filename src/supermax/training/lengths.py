"""How long texts are, in an encoder's tokens: what decides a trial's memory."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from supermax.files import make_private, write_whole
from supermax.training.data.examples import Example

_AT_ONCE = 64


@dataclass(frozen=True)
class Lengths:
    """Tokens of examples, uncut, with their questions."""

    longest: int
    total: int


def lengths_of(examples: Sequence[Example], tokenizer: Any, cache: Path, key: str) -> Lengths:
    """Counted once: `key` names the examples and the tokenizer."""
    path = cache / "tokens" / f"longest-{key}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        kept = json.loads(path.read_text())
        found = Lengths(int(kept["longest"]), int(kept["total"]))
        if 0 < found.longest <= found.total:
            return found
    found = _counted(examples, tokenizer)
    make_private(path.parent)
    write_whole(path, json.dumps(asdict(found)))
    return found


def _counted(examples: Sequence[Example], tokenizer: Any) -> Lengths:
    longest = total = 0
    for first in range(0, len(examples), _AT_ONCE):
        batch = examples[first : first + _AT_ONCE]
        texts, questions = [e.text for e in batch], [e.question for e in batch]
        pairs = (questions, texts) if any(questions) else (texts,)
        encoded = tokenizer(
            *pairs, return_token_type_ids=False, return_attention_mask=False, verbose=False
        )
        counts = [len(ids) for ids in encoded["input_ids"]]
        longest, total = max(longest, *counts), total + sum(counts)
    return Lengths(longest, total)
