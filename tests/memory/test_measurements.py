"""Measurements correct later estimates, across processes, and never make a trial fail."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from supermax.memory.estimate import Correction, Split, need
from supermax.memory.facts import Spec
from supermax.memory.measurements import Measured, MeasurementLog, default_folder
from supermax.memory.planner import Plan, plan
from tests.memory.specs import BERT_LARGE, GIB, MIB

SPEC = Spec((BERT_LARGE,), effective_batch=64, length=256)


def measured(spec: Spec, times: float, **more: object) -> Measured:
    """Return a measurement whose activations took `times` the estimate."""
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


def test_estimates_follow_measurements(tmp_path: Path) -> None:
    book = MeasurementLog(tmp_path, "a card", "torch 1")
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


def test_an_out_of_memory_error_raises_the_slack_alone(tmp_path: Path) -> None:
    book = MeasurementLog(tmp_path, "a card", "torch 1")
    book.note(SPEC, measured(SPEC, 1.5, at_least=True))
    correction = book.known(SPEC).correction
    assert correction.scale == 1.0
    assert correction.worst == pytest.approx(1.5, abs=0.02)
    assert need(SPEC, Split(16), correction).reserved >= measured(SPEC, 1.5).allocated


def test_devices_versions_and_encoders_have_separate_files(tmp_path: Path) -> None:
    book = MeasurementLog(tmp_path, "a card", "torch 1")
    book.note(SPEC, measured(SPEC, 2.0))
    assert book.known(SPEC).measurements == 1
    other = replace(SPEC, encoders=(replace(BERT_LARGE, fingerprint="another"),))
    assert book.known(other).measurements == 0
    assert MeasurementLog(tmp_path, "a card", "torch 2").known(SPEC).measurements == 0
    assert MeasurementLog(tmp_path, "another card", "torch 1").known(SPEC).measurements == 0
    assert book.known(replace(SPEC, optimizer="lion", length=64)).measurements == 1


def test_damaged_lines_and_read_only_folders_are_ignored(tmp_path: Path) -> None:
    book = MeasurementLog(tmp_path, "a card", "torch 1")
    book.note(SPEC, measured(SPEC, 1.2))
    page = next(tmp_path.iterdir())
    with page.open("ab") as file:
        file.write(b'{"micro_batch": 3\n[]\nnull\n\xff\xfe\n{"unknown": 1}\n')
    book.note(SPEC, measured(SPEC, 1.2))
    assert book.known(SPEC).measurements == 2
    nowhere = MeasurementLog(page / "below a file", "a card", "torch 1")
    nowhere.note(SPEC, measured(SPEC, 1.2))
    assert nowhere.known(SPEC).measurements == 0


def test_plans_use_the_correction(tmp_path: Path) -> None:
    book = MeasurementLog(tmp_path, "a card", "torch 1")
    before = plan(SPEC, 16 * GIB)
    assert isinstance(before, Plan)
    for _ in range(4):
        book.note(SPEC, measured(SPEC, 2.0))
    after = plan(SPEC, before.need.total, correction=book.known(SPEC).correction)
    assert isinstance(after, Plan)
    assert after.split != before.split
    assert need(SPEC, after.split).total < before.need.total


def test_the_default_folder_is_in_the_user_s_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
def test_impossible_measurements_are_ignored(tmp_path: Path, wrong: dict[str, object]) -> None:
    book = MeasurementLog(tmp_path, "a card", "torch 1")
    book.note(SPEC, measured(SPEC, 1.0))
    before = book.known(SPEC)
    (page,) = tmp_path.glob("*.jsonl")
    for line in (json.dumps({**GOOD, **wrong}), "[" * 5000, '{"reserved": NaN}', "NaN"):
        with page.open("a") as file:
            file.write(line + "\n")
    found = MeasurementLog(tmp_path, "a card", "torch 1").known(SPEC)
    assert found.speeds == before.speeds
    assert found.correction.worst <= 4
    assert found.correction.extra <= 6 * GIB
    assert isinstance(plan(SPEC, 80 * GIB, correction=found.correction), Plan)


def test_a_long_file_is_cut_and_only_regular_files_are_read(tmp_path: Path) -> None:
    book = MeasurementLog(tmp_path, "a card", "torch 1")
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
    assert MeasurementLog(tmp_path, "a card", "torch 1").known(SPEC).measurements == 0


def test_processes_that_measure_at_the_same_time_lose_no_measurement(tmp_path: Path) -> None:
    """Cells of several coordinators share the file."""
    children = []
    for _ in range(4):
        if (pid := os.fork()) == 0:
            book = MeasurementLog(tmp_path, "a card", "torch 1")
            for _ in range(25):
                book.note(SPEC, measured(SPEC, 1.0))
                book.known(SPEC)
            os._exit(0)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    (page,) = tmp_path.glob("*.jsonl")
    assert len([json.loads(line) for line in page.read_text().splitlines()]) == 100
    assert MeasurementLog(tmp_path, "a card", "torch 1").known(SPEC).measurements == 100


def test_bf16_and_fp16_share_their_measurements(tmp_path: Path) -> None:
    """Only the cells know which of the two their GPU supports."""
    book = MeasurementLog(tmp_path, "a card", "torch 1")
    book.note(replace(SPEC, precision="fp16"), measured(SPEC, 1.0))
    assert book.known(SPEC).measurements == 1
    assert book.known(replace(SPEC, precision="fp32")).measurements == 0


def test_an_outlier_does_not_determine_the_slack(tmp_path: Path) -> None:
    book = MeasurementLog(tmp_path, "a card", "torch 1")
    for _ in range(40):
        book.note(SPEC, measured(SPEC, 1.0))
    book.note(SPEC, measured(SPEC, 1.0, reserved=300 * GIB))
    assert book.known(SPEC).correction.extra == 300 * MIB
