"""Tags of words, entities and words of texts. `tests/training/eval` compares the entities of tags
with those of seqeval."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supermax.training.data.entities import (
    Entity,
    chunks,
    count_unaligned,
    parsed_class,
    parsed_tag,
    tag_names,
    tags_of,
    words_in,
)


@pytest.mark.parametrize(
    ("scheme", "tags"),
    [
        ("IOB2", "O B-PER I-PER B-PER O B-LOC"),
        ("IOB1", "O I-PER I-PER B-PER O I-LOC"),
        ("BIOES", "O B-PER E-PER S-PER O S-LOC"),
        ("BILOU", "O B-PER L-PER U-PER O U-LOC"),
    ],
)
def test_all_schemes_give_the_same_entities(scheme: str, tags: str) -> None:
    parsed = [tag for tag in map(parsed_tag, tags.split()) if tag is not None]
    assert len(parsed) == 6
    assert chunks(parsed) == [(1, 3, "PER"), (3, 4, "PER"), (5, 6, "LOC")]


@pytest.mark.parametrize("tag", ["PER", "b-PER", "B_PER", "O-PER", "B-", "", "NN", "B-A\nB"])
def test_other_words_are_no_tags(tag: str) -> None:
    assert parsed_tag(tag) is None


def test_types_may_hold_hyphens_or_be_missing() -> None:
    assert parsed_tag("I-geo-loc") == ("I", "geo-loc")
    assert parsed_tag("B") == ("B", "_")
    assert parsed_tag("O") == ("O", "_")


def test_classes_of_words_have_names() -> None:
    names = tag_names(["LOC", "PER"])
    assert names == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    kinds = [parsed_class(i) for i in range(1, 5)]
    assert kinds == [("B", 0), ("I", 0), ("B", 1), ("I", 1)]
    assert parsed_class(0)[0] == "O"


def test_words_of_texts() -> None:
    def split(text: str) -> list[str]:
        return [text[start:end] for start, end in words_in(text)]

    assert split("Anna's U.S.-based firm, 3%") == [
        *("Anna", "'", "s", "U", ".", "S", ".", "-", "based", "firm", ",", "3", "%")
    ]
    assert split("cafe\u0301s नमस्ते दुनिया") == ["cafe\u0301s", "नमस्ते", "दुनिया"]
    assert split("東京に") == ["東", "京", "に"]
    assert split(" \n") == []


@given(st.text(max_size=30))
def test_words_cover_all_but_white_space_in_order(text: str) -> None:
    words = words_in(text)
    assert list(words) == sorted(words)
    assert all(a < b for a, b in words)
    left = "".join(c for i, c in enumerate(text) if not any(a <= i < b for a, b in words))
    assert not left.strip()


def test_tags_of_words_that_entities_share_or_cover_in_part() -> None:
    words = [(0, 3), (4, 7), (8, 10), (11, 12)]
    assert tags_of(words, [Entity(4, 10, 1)]) == [0, 3, 4, 0]
    assert tags_of(words, [Entity(8, 10, 0), Entity(4, 7, 0)]) == [0, 1, 1, 0]
    assert tags_of(words, [Entity(0, 5, 0), Entity(6, 10, 1)]) == [1, 2, 3, 0]
    assert tags_of(words, [Entity(5, 6, 0)]) == [0, 1, 0, 0]
    assert count_unaligned(words, [(4, 10), (0, 5), (6, 10), (5, 6)]) == 3
