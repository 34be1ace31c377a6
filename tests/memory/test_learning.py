"""What trials took makes the next estimates better, across processes, and never fails one."""

from __future__ import annotations

import json
import os
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


GOOD = {"micro_batch": 16, "checkpointing": False, "length": 64, "effective_batch": 64,
        "allocated": 5 * GIB, "reserved": 6 * GIB}  # fmt: skip
NONSENSE: list[object] = [
    {"allocated": None}, {"allocated": "5"}, {"allocated": 10**400}, {"allocated": -1},
    {"reserved": 1e300}, {"reserved": 10**30}, {"seconds": -1.0}, {"seconds": "soon"},
    {"seconds": 0.0, "tokens": 5}, {"micro_batch": "2"}, {"micro_batch": 0}, {"length": 1e300},
    {"traits": []}, {"traits": None}, {"traits": {"optimizer": "sgd"}},
    {"traits": {"frozen": "x"}}, {"traits": {"head": -(10**40)}}, {"unknown": 1},
]  # fmt: skip


@pytest.mark.parametrize("wrong", NONSENSE, ids=str)
def test_what_cannot_be_is_not_believed(tmp_path: Path, wrong: dict[str, object]) -> None:
    book = Book(tmp_path, "a card", "torch 1")
    book.note(SPEC, measured(SPEC, 1.0))
    before = book.known(SPEC)
    (page,) = tmp_path.glob("*.jsonl")
    for line in (json.dumps({**GOOD, **wrong}), "[" * 5000, '{"reserved": NaN}', "NaN"):
        with page.open("a") as file:
            file.write(line + "\n")
    found = Book(tmp_path, "a card", "torch 1").known(SPEC)
    assert found.paces == before.paces
    assert found.correction.worst <= 4
    assert found.correction.extra <= 6 * GIB
    assert isinstance(plan(SPEC, 80 * GIB, correction=found.correction), Plan)


def test_a_long_record_is_cut_and_only_a_file_is_read(tmp_path: Path) -> None:
    book = Book(tmp_path, "a card", "torch 1")
    book.note(SPEC, measured(SPEC, 1.0))
    (page,) = tmp_path.glob("*.jsonl")
    page.write_text(page.read_text() * 9000)
    assert page.stat().st_size > 1 << 20
    book.note(SPEC, measured(SPEC, 1.0))
    assert page.stat().st_size < 1 << 20
    assert len(page.read_text().splitlines()) == 201
    assert book.known(SPEC).measurements == 200
    page.unlink()
    os.mkfifo(page)
    assert Book(tmp_path, "a card", "torch 1").known(SPEC).measurements == 0


def test_both_kinds_of_half_precision_are_one(tmp_path: Path) -> None:
    """What a GPU computes in is known to its cells only."""
    book = Book(tmp_path, "a card", "torch 1")
    book.note(replace(SPEC, precision="fp16"), measured(SPEC, 1.0))
    assert book.known(SPEC).measurements == 1
    assert book.known(replace(SPEC, precision="fp32")).measurements == 0


def test_one_trial_that_held_on_to_much_is_not_the_measure_of_all(tmp_path: Path) -> None:
    book = Book(tmp_path, "a card", "torch 1")
    for _ in range(40):
        book.note(SPEC, measured(SPEC, 1.0))
    book.note(SPEC, measured(SPEC, 1.0, reserved=300 * GIB))
    assert book.known(SPEC).correction.extra == 300 * MIB
