"""Splits: no group is in two, nothing is lost, every stratum keeps its share."""

from __future__ import annotations

import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from supermax import UserError
from supermax.tasks.data_notices import weaknesses
from supermax.training.data.examples import Corpus, Example
from supermax.training.data.splits import (
    Splits,
    _Allocation,
    cross_validation,
    joined,
    read_splits,
    same_text,
    shared_texts,
    split,
)
from supermax.training.data.synthetic import synthetic
from supermax.training.data.tables import Columns, read_table


@st.composite
def corpora(draw: st.DrawFn) -> Corpus:
    groups = draw(st.integers(3, 60))
    examples = []
    for group in range(groups):
        for row in range(draw(st.integers(1, 4))):
            label = draw(st.sampled_from([0, 0, 0, 1, 2]))
            examples.append(Example(f"{group}/{row}", f"g{group}", f"{group} {row}", "", label))
    posts = [Example(f"{g}", f"g{g}", f"post {g}", "", None, ()) for g in range(0, groups, 2)]
    return Corpus("drawn", ("a", "b", "c"), tuple(examples), tuple(posts), 3)


def parts_of(splits: Splits) -> tuple[Corpus, Corpus, Corpus]:
    return splits.train, splits.validation, splits.test


def groups_of(corpus: Corpus) -> set[str]:
    return {e.group for e in corpus.examples}


@settings(max_examples=40, deadline=None)
@given(corpora(), st.integers(0, 99))
def test_no_group_straddles_and_nothing_is_lost(corpus: Corpus, seed: int) -> None:
    parts = parts_of(split(corpus, seed=seed))
    together = [group for part in parts for group in groups_of(part)]
    assert sorted(together) == sorted(groups_of(corpus))
    assert all(groups_of(part) for part in parts)
    for kind in ("classes", "spans"):
        back = [example for part in parts for example in getattr(part, kind)]
        assert Counter(back) == Counter(getattr(corpus, kind))
    assert all(part.label_names == corpus.label_names for part in parts)


@settings(max_examples=40, deadline=None)
@given(corpora(), st.integers(0, 99), st.randoms())
def test_the_seed_decides_and_the_order_of_rows_does_not(
    corpus: Corpus, seed: int, random: object
) -> None:
    rows = list(corpus.classes)
    random.shuffle(rows)  # type: ignore[attr-defined]
    shuffled = Corpus(corpus.name, corpus.label_names, tuple(rows), corpus.spans)
    one, other = split(corpus, seed=seed), split(shuffled, seed=seed)
    for a, b in zip(parts_of(one), parts_of(other), strict=True):
        assert groups_of(a) == groups_of(b)
    assert one == split(corpus, seed=seed)


@given(
    st.dictionaries(st.text("ab", max_size=3), st.integers(1, 99), min_size=2, max_size=9),
    st.randoms(),
)
def test_the_cost_of_a_group_does_not_depend_on_the_order_of_its_rows(
    counts: dict[str, int], random: Any
) -> None:
    """The last bit decides which of two splits lacks more."""
    own = {(name,): n for name, n in counts.items()}
    names = list(own)
    random.shuffle(names)
    table = _Allocation((0.7, 0.15, 0.15), Counter({name: 7 * n + 3 for name, n in own.items()}))
    other = Counter({name: own[name] for name in names})
    assert table.cost(Counter(own), 1) == table.cost(other, 1)


@settings(max_examples=40, deadline=None)
@given(corpora(), st.sampled_from([(0.15, 0.15), (0.2, 0.1), (0.3, 0.3), (0.25, 0.0)]))
def test_labels_keep_their_share(corpus: Corpus, shares: tuple[float, float]) -> None:
    validation, test = shares
    splits = split(corpus, validation=validation, test=test)
    wanted = (1 - validation - test, validation, test)
    groups = len({example.group for example in corpus.examples})
    # A group more or less; and one more where a part would have none, since none may be empty.
    within = 4 * (1 + any(0 < share * groups < 1 for share in wanted))
    for part, share in zip(parts_of(splits), wanted, strict=True):
        for label in (None, 0, 1, 2):
            total = sum(label in (None, e.label) for e in corpus.classes)
            own = sum(label in (None, e.label) for e in part.classes)
            assert abs(own - share * total) <= within


def test_shares_on_data_like_the_real_one() -> None:
    corpus = synthetic(600, max_words=30)
    for seed in range(3):
        splits = split(corpus, seed=seed)
        for part, share in zip(parts_of(splits), (0.7, 0.15, 0.15), strict=True):
            for kind in ("classes", "spans"):
                own = Counter(e.stratum for e in getattr(part, kind))
                everything = Counter(e.stratum for e in getattr(corpus, kind))
                assert abs(own.total() - share * everything.total()) <= 3
                for stratum, n in everything.items():
                    assert abs(own[stratum] - share * n) <= 3


def test_seeds_differ() -> None:
    corpus = synthetic(50, max_words=30)
    assert split(corpus, seed=0).test != split(corpus, seed=1).test


def test_questions_of_their_own_do_not_upset_the_labels() -> None:
    rows = tuple(Example(f"{i}", f"g{i}", f"t{i}", f"q{i}", i % 5 // 4) for i in range(200))
    splits = split(Corpus("pairs", ("a", "b"), rows))
    assert [len(part.classes) for part in parts_of(splits)] == [140, 30, 30]
    assert [sum(e.label or 0 for e in part.classes) for part in parts_of(splits)] == [28, 6, 6]


def test_a_share_of_nothing() -> None:
    splits = split(synthetic(10, max_words=30), test=0)
    assert splits.test.examples == ()
    assert splits.validation.examples


def test_too_few_groups() -> None:
    with pytest.raises(UserError, match="2 groups of examples, too few to split in 3"):
        split(synthetic(2, max_words=30))


@pytest.mark.parametrize(("validation", "test"), [(-0.1, 0.2), (0.5, 0.5), (0.2, 0.9)])
def test_shares_that_make_no_sense(validation: float, test: float) -> None:
    with pytest.raises(UserError, match="together below 1"):
        split(synthetic(10, max_words=30), validation=validation, test=test)


def test_a_table_that_comes_split(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text("t,y,s\none,a,train\ntwo,b,Dev\nthree,a,test\nfour,b,train\n")
    splits = read_splits(path, Columns("t", label="y", split="s"))
    texts = [[e.text for e in part.classes] for part in parts_of(splits)]
    assert texts == [["one", "four"], ["two"], ["three"]]


def test_a_split_that_leaks_or_is_unknown_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text("t,y,g,s\nsecret,a,1,train\nsame,b,1,test\nother,b,2,tset\nmore,b,3,test\n")
    columns = Columns("t", label="y", group="g", split="s")
    with pytest.raises(UserError) as caught:
        read_splits(path, columns)
    assert "line 3: rows of its group are in another split" in str(caught.value)
    assert "line 4: the split is none of train, validation, test" in str(caught.value)
    assert "secret" not in str(caught.value)
    splits = read_splits(path, columns, on_bad="skip")
    assert [len(part.classes) for part in parts_of(splits)] == [1, 0, 1]
    assert splits.train.skipped == 2
    with pytest.raises(UserError, match="No column is mapped as split"):
        read_splits(path, Columns("t", label="y"))


# Texts that stand twice.


def plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


@st.composite
def repeated(draw: st.DrawFn) -> Corpus:
    """Return groups, some of which share texts that are written differently."""
    groups = draw(st.integers(12, 60))
    written = [lambda t: t, str.upper, lambda t: f"  {t}\n", lambda t: t.replace(" ", "\u3000 ")]
    examples = []
    for group in range(groups):
        for row in range(draw(st.integers(1, 3))):
            other = draw(st.integers(0, 5 * groups))
            text = f"said by {other}" if other < groups else f"own {group} {row}"
            text = draw(st.sampled_from(written))(text)
            kind = draw(st.booleans())
            label, spans = (draw(st.integers(0, 1)), None) if kind else (None, ())
            examples.append(Example(f"{group}/{row}", f"g{group}", text, "", label, spans))
    classes = tuple(e for e in examples if e.spans is None)
    return Corpus("drawn", ("a", "b"), classes, tuple(e for e in examples if e.spans == ()))


@settings(max_examples=60, deadline=None)
@given(repeated(), st.integers(0, 99))
def test_no_text_and_no_group_is_in_two_splits(corpus: Corpus, seed: int) -> None:
    assume(len(set(joined(corpus).values())) >= 3)
    splits = split(corpus, seed=seed)
    for kind in ("group", "text"):
        seen = [{plain(getattr(e, kind)) for e in part.examples} for part in parts_of(splits)]
        assert not seen[0] & seen[1]
        assert not seen[0] & seen[2]
        assert not seen[1] & seen[2]
    assert sum(len(part.examples) for part in parts_of(splits)) == len(corpus.examples)
    assert all(part.examples for part in parts_of(splits))
    assert splits == split(corpus, seed=seed)
    assert shared_texts(splits) == {"validation": 0, "test": 0}


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 99), st.integers(1, 4))
def test_pairs_of_groups_leave_the_shares_as_they_are(seed: int, size: int) -> None:
    rows = tuple(
        Example(f"{i}", f"g{i}", f"said {i // size}", "", i // size % 2) for i in range(200)
    )
    splits = split(Corpus("pairs", ("a", "b"), rows), seed=seed)
    for part, share in zip(parts_of(splits), (0.7, 0.15, 0.15), strict=True):
        assert abs(len(part.classes) - share * 200) <= 2 * size
        assert abs(sum(e.label or 0 for e in part.classes) - share * 100) <= 2 * size
    assert splits.joined == 200 - -(-200 // size)
    assert splits.undivided == 0


def test_texts_without_groups_are_kept_together_however_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    lines = [f"{'Thank You' if i % 3 else 'thank  you'},{'ab'[i % 2]}" for i in range(9)]
    lines += [f"other {i},{'ab'[i % 2]}" for i in range(40)]
    path.write_text("\n".join(["t,y", *lines]) + "\n")
    splits = split(read_table(path, Columns("t", label="y")))
    holding = [p for p in parts_of(splits) if any(plain(e.text) == "thank you" for e in p.classes)]
    assert len(holding) == 1
    assert splits.joined == 1


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_one_huge_set_goes_to_train_and_is_reported(share: float) -> None:
    many = int(200 * share) - 1
    rows = tuple(Example(f"{i}", f"g{i}", f"t{max(i, many)}", "", i % 2) for i in range(200))
    splits = split(Corpus("huge", ("a", "b"), rows))
    assert splits.undivided == share
    wanted = (max(0.7, share), min(0.15, (1 - share) / 2), min(0.15, (1 - share) / 2))
    for part, expected in zip(parts_of(splits), wanted, strict=True):
        assert abs(len(part.classes) - 200 * expected) <= 3
    assert any(e.text == f"t{many}" for e in splits.train.classes)
    (notice,) = [n for n in weaknesses(splits) if "stay" in n]
    assert f"{share:.0%}" in notice


def test_all_in_one_set_cannot_be_split() -> None:
    rows = tuple(Example(f"{i}", f"g{i}", "the same", "", i % 2) for i in range(30))
    with pytest.raises(UserError, match="30 groups of examples, which share texts and so make 1"):
        split(Corpus("one", ("a", "b"), rows))


def test_texts_that_come_in_two_splits_stay_there_and_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    rows = ["one,a,train", "two,b,train", "ONE,a,test", "three,b,test", "two ,b,val", "four,a,val"]
    rows += ["four,a,test"]
    path.write_text("\n".join(["t,y,s", *rows]) + "\n")
    splits = read_splits(path, Columns("t", label="y", split="s"))
    assert [len(part.classes) for part in parts_of(splits)] == [2, 2, 3]
    assert shared_texts(splits) == {"validation": 1, "test": 2}
    said = "\n".join(weaknesses(splits))
    assert "1 of 2 texts of the validation split also occurs in train" in said
    assert "2 of 3 texts of the test split also occur in train or validation" in said


@settings(max_examples=40, deadline=None)
@given(repeated(), st.integers(2, 6))
def test_folds_are_disjoint_and_leave_the_test_split_out(corpus: Corpus, folds: int) -> None:
    assume(len(set(joined(corpus).values())) >= 3)
    parts = split(corpus, validation=0.2, test=0.2)
    assume(len(set(joined(parts.seen).values())) >= folds)
    found = cross_validation(parts, folds)
    assert len(found) == folds
    held_out = [validation for _, validation in found]
    assert Counter(e.id for part in held_out for e in part.examples) == Counter(
        e.id for e in parts.seen.examples
    )
    for train, validation in found:
        assert len(train.examples) + len(validation.examples) == len(parts.seen.examples)
        assert validation.examples
        assert not groups_of(train) & groups_of(validation)
        texts = [{same_text(e.text) for e in part.examples} for part in (train, validation)]
        assert not texts[0] & texts[1]
    assert cross_validation(parts, folds) == found


def test_folds_have_every_class_in_its_share() -> None:
    parts = split(synthetic(posts=200, seed=1))
    totals = Counter(e.label for e in parts.seen.classes)
    for _, validation in cross_validation(parts, 5):
        counts = Counter(e.label for e in validation.classes)
        for label, total in totals.items():
            assert counts[label] == pytest.approx(total / 5, abs=max(3.0, 0.3 * total / 5))


def test_too_few_groups_for_folds() -> None:
    rows = tuple(Example(f"{i}", f"g{i}", f"text {i}", "", i % 2) for i in range(6))
    with pytest.raises(UserError, match="too few to split in 7: bring more data, or ask for"):
        cross_validation(split(Corpus("few", ("a", "b"), rows)), 7)
