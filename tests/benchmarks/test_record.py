"""The recorder of fine-tuning curves, as a program on a CPU: it writes lines, and goes on."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from supermax.training.models.encoders import load_encoder
from supermax.training.models.sources import find
from supermax.training.models.tokenizers import tokenizer_for

PROGRAM = Path(__file__).parents[2] / "benchmarks/search/record.py"
ROWS = [("good and fine", "yes"), ("bad and poor", "no")]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder, text = tmp_path / "data", io.StringIO()
    folder.mkdir()
    writer = csv.writer(text)
    writer.writerow(["text", "label", "split"])
    for split in ("train", "validation", "test"):
        writer.writerows((*row, split) for row in ROWS * 4)
    packed = gzip.compress(text.getvalue().encode())
    (folder / "tweeteval-toy.csv.gz").write_bytes(packed)
    return folder


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    folder, source = tmp_path / "encoder", find("tiny-bert")
    tokenizer_for(source, [text for text, _ in ROWS], tmp_path).save_pretrained(folder)
    load_encoder(source, source.config).save_pretrained(folder)  # type: ignore[operator]
    return folder


@pytest.mark.slow
def test_trainings_are_recorded_and_continued(tmp_path: Path, data: Path, encoder: Path) -> None:
    into = tmp_path / "curves.jsonl"

    def call(seconds: int) -> list[str]:
        limits = ["--seconds", str(seconds), "--workers", "2", "--kinds", "short"]
        subprocess.run(
            [sys.executable, PROGRAM, data, encoder, "--into", into, *limits],
            check=True, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        return into.read_text(encoding="utf-8").splitlines()

    first = call(10)
    lines = [json.loads(line) for line in first]
    assert len(lines) > 2
    assert {tuple(line["item"][:2]) for line in lines} == {("toy", "whole"), ("toy", "half")}
    for line in lines:
        assert len(line["validation"]) == len(line["test"]) == line["item"][3]
        assert all(0 <= value <= 1 or math.isnan(value) for value in line["validation"])
    more = call(8)
    assert more[: len(first)] == first
    items = [tuple(json.loads(line)["item"]) for line in more]
    assert len(items) == len(set(items)) > len(first)
