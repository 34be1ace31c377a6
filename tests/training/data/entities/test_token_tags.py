"""Classes of tokens in windows of a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supermax.training.data.entities import Entity, tags_of
from supermax.training.data.entities.token_tags import first_tokens, tagged_windows, words_of
from supermax.training.data.examples import Example
from supermax.training.data.tokens import NONE, Tokens, tokenized
from supermax.training.models.sources import find
from supermax.training.models.tokenizers import tokenizer_for

NONE_HERE = (-1, -1)
TEXT = "Anna Berghof left"
ENTITIES = (Entity(0, 12, 0),)
EXAMPLE = Example("a", "g", TEXT, entities=ENTITIES)


def offsets(*spans: tuple[int, int]) -> Any:
    return np.array([NONE_HERE, *spans, NONE_HERE])


def test_later_tokens_continue_an_entity() -> None:
    ((word, tag),) = tagged_windows(EXAMPLE, [offsets((0, 2), (2, 4), (4, 8), (8, 12), (13, 17))])
    assert word.tolist() == [-1, 0, 0, 1, 1, 2, -1]
    assert tag.tolist() == [NONE, 1, 2, 2, 2, 0, NONE]
    assert first_tokens(word).tolist() == [False, True, False, True, False, True, False]


def test_a_token_over_two_words_belongs_to_the_first() -> None:
    ((word, tag),) = tagged_windows(EXAMPLE, [offsets((0, 8), (8, 12), (12, 17))])
    assert word.tolist() == [-1, 0, 1, 2, -1]
    assert tag.tolist() == [NONE, 1, 2, 0, NONE]


def test_each_word_is_decided_by_the_window_with_most_context() -> None:
    text = "a b c d e f g h"
    example = Example("a", "g", text, entities=(Entity(0, 15, 0),))
    each = [(i, i + 1) for i in range(0, 15, 2)]
    windows = [offsets(*each[:5]), offsets(*each[2:7]), offsets(*each[4:])]
    words = [word[word >= 0].tolist() for word, _ in tagged_windows(example, windows)]
    assert words == [[0, 1, 2, 3], [4, 5], [6, 7]]


def test_a_word_is_decided_where_its_first_token_is() -> None:
    windows = [offsets((0, 4), (5, 8)), offsets((8, 12), (13, 17))]
    (one, _), (other, tags) = tagged_windows(EXAMPLE, windows)
    assert one.tolist() == [-1, 0, 1, -1]
    assert other.tolist() == [-1, -1, 2, -1]
    assert tags.tolist() == [NONE, NONE, 0, NONE]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer_for(find("tiny"), [TEXT], tmp_path_factory.mktemp("tokenizer"))


words = st.lists(
    st.sampled_from(["Anna", "Berghof", "left", "(x)", "é", "\u200d", "日本"]), max_size=40
)


@given(words=words, length=st.integers(12, 40))
def test_every_word_with_a_token_is_decided_once(
    tokenizer: Any, tmp_path_factory: pytest.TempPathFactory, words: list[str], length: int
) -> None:
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])
    spans = tuple((int(a), int(a) + len(w)) for a, w in zip(starts, words, strict=False))
    entities = tuple(Entity(a, b, i % 2) for i, (a, b) in enumerate(spans) if i % 3 == 0)
    text = " ".join(["start", *words])
    shifted = tuple((a + 6, b + 6) for a, b in spans)
    moved = tuple(Entity(a + 6, b + 6, kind) for a, b, kind in entities)
    example = Example("a", "g", text, entities=moved, words=((0, 5), *shifted))
    tokens: Tokens = tokenized(
        [example],
        tokenizer,
        max_length=length,
        doc_stride=8,
        cache=tmp_path_factory.mktemp("cache"),
        key="k",
    )
    first = first_tokens(tokens.word)
    decided = tokens.word[first].tolist()
    whole = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    covered = {
        next((i for i, (_, end) in enumerate(example.words) if end > a), -1)
        for a, b in whole
        if b > a and text[a:b].strip()
    }
    assert sorted(decided) == sorted(covered - {-1})
    assert len(set(decided)) == len(decided)
    tags = tags_of(words_of(example), moved)
    only_first = tokens.with_first_tags()
    assert only_first.tag[first].tolist() == [tags[word] for word in decided]
    assert (only_first.tag[~first] == NONE).all()


def test_tokens_of_other_examples_have_no_classes(tmp_path: Path, tokenizer: Any) -> None:
    example = Example("a", "g", TEXT, label=1)
    for _ in range(2):  # written, and read from the cache
        tokens = tokenized(
            [example], tokenizer, max_length=16, doc_stride=4, cache=tmp_path, key="k"
        )
        assert (len(tokens.word), len(tokens.tag)) == (0, 0)
