"""Cache of encoder sizes, and its validation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supermax.tasks import shapes
from supermax.training.models.sources import find

WRONG: list[object] = [
    {"hidden": "x"}, {"hidden": None}, {"hidden": -5}, {"hidden": 0}, {"by_layer": "ab"},
    {"by_layer": [None]}, {"by_layer": []}, {"matrices": -(10**12)}, {"embeddings": 10**18},
    {"fingerprint": "another"},
]  # fmt: skip


@pytest.mark.parametrize("wrong", [*WRONG, None, "{", "[" * 5000], ids=lambda v: str(v)[:30])
def test_sizes_that_cannot_be_are_measured_again_and_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: object
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = find("tiny")
    monkeypatch.setattr(shapes, "_known", {})
    right = shapes.encoder_of(source)
    (file,) = (tmp_path / "supermax" / "memory").glob("encoder-*.json")
    good = json.loads(file.read_text())
    file.write_text(json.dumps({**good, **wrong}) if isinstance(wrong, dict) else str(wrong))
    monkeypatch.setattr(shapes, "_known", {})
    assert shapes.encoder_of(source) == right
    assert json.loads(file.read_text()) == good
