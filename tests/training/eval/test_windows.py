"""Long texts in windows: tokens, pooling and metrics, beside plain transformers and numpy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score

from supermax.errors import UserError
from supermax.training.config import Config, LabelDecoding, read_config, with_decoding
from supermax.training.data.examples import Corpus, Example
from supermax.training.data.label_sets import indicators
from supermax.training.deploy.export import export, load_exported
from supermax.training.deploy.exported import Description
from supermax.training.deploy.predict import predict_examples
from supermax.training.eval.label_thresholds import fit_thresholds
from supermax.training.eval.windows import pooled
from supermax.training.loop import train
from supermax.training.prepare import Prepared, prepare
from supermax.training.steps.execution import Execution
from tests.training.corpora import Quiet, config, corpus, corpus_for

Pooling = Literal["mean", "max"]
MAX, STRIDE = 16, 4


def long(data: Corpus) -> Corpus:
    """Return texts of one to four windows."""

    def repeated(examples: tuple, times: int = 1) -> tuple:  # type: ignore[type-arg]
        return tuple(
            replace(e, text=" ".join([e.text] * (1 + i % 4))) for i, e in enumerate(examples)
        )

    kinds = ("classes", "numbers", "label_sets")
    return replace(data, **{kind: repeated(getattr(data, kind)) for kind in kinds})


def windowed(agent: str, pooling: Pooling) -> Config:
    text = {"max_length": MAX, "doc_stride": STRIDE, "long_texts": "windows"}
    return config(agent, text={**text, "window_pooling": pooling}, train={"epochs": 1})


def made(folder: Path, agent: str, pooling: Pooling) -> Prepared:
    parts = [long(corpus_for(agent, n, seed)) for n, seed in ((24, 1), (12, 2))]
    return prepare(windowed(agent, pooling), *parts, cache=folder, execution=Execution())


def reference(one: Prepared, example: Example, pooling: Pooling) -> np.ndarray:  # type: ignore[type-arg]
    """Return the outputs for a text with the encoder of transformers and the head alone."""
    (tokenizer,) = one.tokenizers
    plain = {"add_special_tokens": False, "verbose": False}
    begin, ids = [tokenizer.cls_token_id], tokenizer(example.text, **plain)["input_ids"]
    if example.question:
        asked = tokenizer(example.question, **plain)["input_ids"]
        begin = [*begin, *asked, tokenizer.sep_token_id]
    size, found = MAX - len(begin) - 1, []
    for start in range(0, max(1, len(ids) - STRIDE), size - STRIDE):
        part = [*begin, *ids[start : start + size], tokenizer.sep_token_id]
        encoder = one.model.encoders[0].model
        states = encoder(input_ids=torch.tensor([part])).last_hidden_state
        head = one.model.class_head or one.model.number_head
        found.append(head(states[:, 0])[0])
    rows = torch.stack(found)
    return (rows.mean(0) if pooling == "mean" else rows.amax(0)).numpy()  # type: ignore[no-any-return]


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_probabilities_are_those_of_plain_windows(tmp_path: Path, pooling: Pooling) -> None:
    one = made(tmp_path, "criteria", pooling)
    assert len(one.validation.views[0]) > len(one.validation.examples)
    evaluation = one.evaluate()
    examples = one.validation.examples
    assert set(evaluation.probabilities) == {e.id for e in examples}
    with torch.inference_mode():
        logits = np.stack([reference(one, e, pooling) for e in examples])
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    found = np.array([evaluation.probabilities[e.id] for e in examples])
    assert np.allclose(found, expected, atol=1e-5)
    truths = [e.label for e in examples]
    macro = f1_score(truths, expected.argmax(1), average="macro", labels=[0, 1], zero_division=0)
    assert evaluation.metrics["macro_f1"] == pytest.approx(macro)


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_numbers_are_those_of_plain_windows(tmp_path: Path, pooling: Pooling) -> None:
    one = made(tmp_path, "regression", pooling)
    evaluation, unit = one.evaluate(), one.model.unit
    assert unit is not None
    with torch.inference_mode():
        for e in one.validation.examples:
            expected = unit.mean + unit.deviation * float(reference(one, e, pooling)[0])
            assert evaluation.numbers[e.id] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_labels_are_those_of_plain_windows(tmp_path: Path, pooling: Pooling) -> None:
    """Logits are pooled for each label, before any threshold."""
    one = made(tmp_path, "multilabel", pooling)
    examples = one.validation.examples
    assert len(one.validation.views[0]) > len(examples)
    with torch.inference_mode():
        logits = np.stack([reference(one, e, pooling) for e in examples])
    likely, truth = 1 / (1 + np.exp(-logits.astype(np.float64))), indicators(examples, 4)
    open_ = one.evaluate()
    found = np.array([open_.probabilities[e.id] for e in examples])
    assert np.allclose(found, likely, atol=1e-5)
    assert isinstance(open_.decoding, LabelDecoding)
    expected = fit_thresholds(truth > 0, likely, "macro_f1")  # one row for each text
    assert open_.decoding.thresholds == pytest.approx(expected.tolist(), abs=1e-5)
    threshold = float(np.median(likely)) + 1e-4
    fixed = replace(one, config=with_decoding(one.config, LabelDecoding((threshold,) * 4)))
    chosen = fixed.evaluate()
    macro = f1_score(truth, likely > threshold, average="macro", zero_division=0)
    assert chosen.metrics["macro_f1"] == pytest.approx(macro)
    assert chosen.label_sets == {
        e.id: tuple(np.flatnonzero(row))
        for e, row in zip(examples, likely > threshold, strict=True)
    }


def test_an_exported_model_of_labels_predicts_what_was_evaluated(tmp_path: Path) -> None:
    one = made(tmp_path, "multilabel", "mean")
    result = train(one, Quiet())
    assert result.evaluation.decoding is not None
    chosen = replace(one, config=with_decoding(one.config, result.evaluation.decoding))
    names = ("we", "rained", "sad", "meal")
    export(tmp_path / "out", chosen, result.weights, Description(names, None, {}, "x"))
    predictions = predict_examples(load_exported(tmp_path / "out"), one.validation.examples)
    assert len(predictions) == len(one.validation.examples)
    for prediction in predictions:
        expected = result.evaluation.probabilities[prediction.id]
        assert prediction.probabilities is not None
        assert [*prediction.probabilities.values()] == pytest.approx(expected, abs=1e-5)


def test_an_exported_model_predicts_what_was_evaluated(tmp_path: Path) -> None:
    one = made(tmp_path, "criteria", "max")
    result = train(one, Quiet())
    export(tmp_path / "out", one, result.weights, Description(("no", "yes"), None, {}, "x"))
    loaded = load_exported(tmp_path / "out")
    predictions = predict_examples(loaded, one.validation.examples)
    for prediction in predictions:
        expected = result.evaluation.probabilities[prediction.id]
        assert prediction.probabilities is not None
        assert [*prediction.probabilities.values()] == pytest.approx(expected, abs=1e-5)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "more than 16 tokens into windows that share 4 tokens" in card
    assert "from the max of their outputs" in card


def test_short_texts_have_the_tokens_that_they_have_without_windows(tmp_path: Path) -> None:
    data = corpus(12)
    found = []
    for how in ("cut", "windows"):
        text = {"max_length": 64, "doc_stride": 4, "long_texts": how}
        one = prepare(config(text=text), data, data, cache=tmp_path, execution=Execution())
        found.append(one.train.views[0])
    for name in ("ids", "begin", "second", "example", "label", "start", "end", "offsets"):
        assert np.array_equal(getattr(found[0], name), getattr(found[1], name))


def test_pooling_a_diverged_window_is_not_hidden() -> None:
    outputs = np.array([[1.0, 2.0], [np.nan, 0.0], [3.0, -1.0]], dtype=np.float32)
    for pooling in ("mean", "max"):
        first, found = pooled(outputs, np.array([7, 7, 9]), pooling)  # type: ignore[arg-type]
        assert first.tolist() == [0, 2]
        assert np.isnan(found[0, 0])
        assert found[1].tolist() == [3.0, -1.0]


@pytest.mark.parametrize("agent", ["evidence", "share", "joint", "token-classification"])
def test_agents_with_spans_or_entities_refuse_it(agent: str) -> None:
    with pytest.raises(UserError, match=r"cannot pool the outputs.*Leave it at cut"):
        read_config(
            {"agent": agent, "encoder": {"name": "tiny"}, "text": {"long_texts": "windows"}}
        )
