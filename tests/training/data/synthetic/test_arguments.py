"""Arguments with which no data can be generated are named, by every generator."""

from __future__ import annotations

from typing import Protocol

import pytest

from supermax import UserError
from supermax.training.data.examples import Corpus
from supermax.training.data.synthetic import (
    synthetic,
    synthetic_entities,
    synthetic_ratings,
    synthetic_requests,
)


class Generator(Protocol):
    def __call__(
        self, posts: int = ..., *, difficulty: float = ..., max_words: int | None = ...
    ) -> Corpus: ...


@pytest.mark.parametrize(
    "generate", [synthetic, synthetic_entities, synthetic_ratings, synthetic_requests]
)
def test_all_wrong_arguments_are_named(generate: Generator) -> None:
    with pytest.raises(UserError) as raised:
        generate(0, difficulty=1.5, max_words=0)
    assert str(raised.value).splitlines()[1:] == [
        "  - posts must be at least 1",
        "  - difficulty must be between 0 and 1",
        "  - max_words must be at least 1",
    ]
    assert len(generate(1, difficulty=1.0, max_words=1).examples) >= 1
