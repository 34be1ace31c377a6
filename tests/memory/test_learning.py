"""What trials took makes the next estimates better, across processes, and never fails one."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from supermax.memory.estimate import Correction, Split, need
from supermax.memory.facts import Spec
from supermax.memory.learning import Book, Measured, default_folder
from supermax.memory.planner import Plan, plan
from tests.memory.specs import BERT_LARGE, GIB, MIB

SPEC = Spec((BERT_LARGE,), effective_batch=64, length=256)


def measured(spec: Spec, times: float, **more: object) -> Measured:
    """A trial whose activations took so many times what was expected."""
    guess = need(spec, Split(16, evaluated=0))
    allocated = guess.allocated + int((times - 1) * guess.varying)
    facts: dict[str, object] = {
        "micro_batch": 16,
        "checkpointing": False,
        "length": spec.length,
        "effective_batch": spec.effective_batch,
        "allocated": allocated,
        "reserved": allocated + 300 * MIB,
    }
    return Measured(**{**facts, **more})  # type: ignore[arg-type]


def test_estimates_follow_what_was_measured(tmp_path: Path) -> None:
    book = Book(tmp_path, "a card", "torch 1")
    assert book.known(SPEC).correction == Correction()
    for _ in range(5):
        book.note(SPEC, measured(SPEC, 1.3))
    known = pickle.loads(pickle.dumps(book)).known(SPEC)
    assert known.correction.scale == pytest.approx(1.3, abs=0.02)
    assert known.correction.extra == 300 * MIB
    other = replace(SPEC, length=480)
    guess = need(other, Split(8), known.correction)
    plain = need(other, Split(8))
    assert guess.activations == pytest.approx(1.3 * plain.activations, rel=0.02)


def test_one_that_ran_out_of_memory_raises_the_slack_alone(tmp_path: Path) -> None:
    book = Book(tmp_path, "a card", "torch 1")
    book.note(SPEC, measured(SPEC, 1.5, at_least=True))
    correction = book.known(SPEC).correction
    assert correction.scale == 1.0
    assert correction.worst == pytest.approx(1.5, abs=0.02)
    assert need(SPEC, Split(16), correction).reserved >= measured(SPEC, 1.5).allocated


def test_other_devices_versions_and_encoders_have_pages_of_their_own(tmp_path: Path) -> None:
    book = Book(tmp_path, "a card", "torch 1")
    book.note(SPEC, measured(SPEC, 2.0))
    assert book.known(SPEC).measurements == 1
    other = replace(SPEC, encoders=(replace(BERT_LARGE, fingerprint="another"),))
    assert book.known(other).measurements == 0
    assert Book(tmp_path, "a card", "torch 2").known(SPEC).measurements == 0
    assert Book(tmp_path, "another card", "torch 1").known(SPEC).measurements == 0
    assert book.known(replace(SPEC, optimizer="lion", length=64)).measurements == 1


def test_damaged_lines_and_folders_that_cannot_be_written_do_no_harm(tmp_path: Path) -> None:
    book = Book(tmp_path, "a card", "torch 1")
    book.note(SPEC, measured(SPEC, 1.2))
    page = next(tmp_path.iterdir())
    with page.open("ab") as file:
        file.write(b'{"micro_batch": 3\n[]\nnull\n\xff\xfe\n{"unknown": 1}\n')
    book.note(SPEC, measured(SPEC, 1.2))
    assert book.known(SPEC).measurements == 2
    nowhere = Book(page / "below a file", "a card", "torch 1")
    nowhere.note(SPEC, measured(SPEC, 1.2))
    assert nowhere.known(SPEC).measurements == 0


def test_plans_heed_it(tmp_path: Path) -> None:
    book = Book(tmp_path, "a card", "torch 1")
    before = plan(SPEC, 16 * GIB)
    assert isinstance(before, Plan)
    for _ in range(4):
        book.note(SPEC, measured(SPEC, 2.0))
    after = plan(SPEC, before.need.total, correction=book.known(SPEC).correction)
    assert isinstance(after, Plan)
    assert after.split != before.split
    assert need(SPEC, after.split).total < before.need.total


def test_it_is_kept_for_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "supermax" / "memory"
