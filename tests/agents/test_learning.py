"""The defaults learn what there is to learn, and the majority does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from supermax.agents.objective import configured
from supermax.space import load, nest
from supermax.training.data.splits import split
from supermax.training.data.synthetic import synthetic
from supermax.training.loop import train
from supermax.training.metrics import class_metrics
from supermax.training.prepare import prepare
from supermax.training.steps import Execution
from tests.training.corpora import Quiet


def test_the_default_criteria_configuration_learns(tmp_path: Path) -> None:
    splits = split(synthetic(800, difficulty=0.2, seed=0, max_words=60))
    defaults = load("demo/criteria").defaults()
    assert defaults is not None
    config = configured("criteria", nest(defaults), {"epochs": 4})
    execution = Execution(threads=1)
    prepared = prepare(
        config, splits.train, splits.validation, cache=tmp_path, execution=execution
    )
    result = train(prepared, Quiet())
    labels = [example.label for example in splits.validation.classes]
    majority = np.tile([1.0, 0.0], (len(labels), 1))
    assert class_metrics(labels, majority)["macro_f1"] < 0.5  # type: ignore[arg-type]
    assert result.value >= 0.85
