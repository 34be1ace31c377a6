"""How long the longest text is, in an encoder's tokens: what decides a trial's memory."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from supermax.files import write_whole
from supermax.training.data.examples import Example

_AT_ONCE = 64


def longest_of(examples: Sequence[Example], tokenizer: Any, cache: Path, key: str) -> int:
    """Tokens of the longest example, uncut, with its question. `key` names the examples and the
    tokenizer."""
    path = cache / "tokens" / f"longest-{key}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        if (kept := int(json.loads(path.read_text())["longest"])) > 0:
            return kept
    found = _counted(examples, tokenizer)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({"longest": found}))
    return found


def _counted(examples: Sequence[Example], tokenizer: Any) -> int:
    longest = 0
    for first in range(0, len(examples), _AT_ONCE):
        batch = examples[first : first + _AT_ONCE]
        texts, questions = [e.text for e in batch], [e.question for e in batch]
        pairs = (questions, texts) if any(questions) else (texts,)
        encoded = tokenizer(
            *pairs, return_token_type_ids=False, return_attention_mask=False, verbose=False
        )
        longest = max(longest, *(len(ids) for ids in encoded["input_ids"]))
    return longest
