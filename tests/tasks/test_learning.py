"""The default configurations learn, and beat trivial baselines."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from supermax.space import load, nest
from supermax.tasks.objective import configured
from supermax.training.data.splits import Splits, split
from supermax.training.data.synthetic import synthetic
from supermax.training.eval.baseline import baseline, trivial
from supermax.training.eval.metrics import class_metrics, span_metrics
from supermax.training.loop import Result, train
from supermax.training.prepare import prepare
from supermax.training.steps.execution import Execution
from tests import ROOT
from tests.training.corpora import Quiet


def learnt(agent: str, splits: Splits, cache: Path, epochs: int) -> Result:
    defaults = load(f"demo/{agent}").defaults()
    assert defaults is not None
    config = configured(agent, nest(defaults), {"epochs": epochs})
    prepared = prepare(
        config, splits.train, splits.validation, cache=cache, execution=Execution(threads=1)
    )
    return train(prepared, Quiet())


@pytest.mark.slow
def test_the_default_criteria_configuration_learns(tmp_path: Path) -> None:
    splits = split(synthetic(800, difficulty=0.2, seed=0, max_words=60))
    result = learnt("criteria", splits, tmp_path, epochs=4)
    labels = [example.label for example in splits.validation.classes]
    majority = np.tile([1.0, 0.0], (len(labels), 1))
    assert class_metrics(labels, majority)["macro_f1"] < 0.5  # type: ignore[arg-type]
    assert result.value >= 0.85


@pytest.mark.slow
def test_the_default_evidence_configuration_learns(tmp_path: Path) -> None:
    splits = split(synthetic(1000, difficulty=0.1, seed=0, max_words=30))
    result = learnt("evidence", splits, tmp_path, epochs=6)
    posts = splits.validation.spans
    true = [example.spans or () for example in posts]
    silent = span_metrics([[] for _ in posts], true, [example.text for example in posts])
    assert result.value >= 0.7
    assert result.value > silent["token_f1"] + 0.05  # most posts have no evidence to find
    assert silent["has_answer_f1"] == 0
    assert result.metrics["has_answer_f1"] >= 0.6


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["criteria", "evidence", "share", "joint"])
def test_the_demo_s_agents_beat_the_trivial_and_the_tfidf_baseline(
    tmp_path: Path, agent: str
) -> None:
    """Use the demo's own data, defaults and epochs."""
    spec = importlib.util.spec_from_file_location("demo", ROOT / "examples" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    splits = split(demo.synthetic_posts())
    result = learnt(agent, splits, tmp_path, epochs=6)
    counted = baseline(splits.train, splits.validation)
    nothing = trivial(splits.train, splits.validation)
    shown = {"criteria": ["macro_f1"], "evidence": ["token_f1"]}
    for name in shown.get(agent, ["macro_f1", "token_f1"]):
        assert result.metrics[name] > nothing[name] + 0.05
        assert result.metrics[name] > counted[name]
