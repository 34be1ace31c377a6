"""The agent multilabel: training, thresholds, refit, export and prediction."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from transformers import AutoModelForSequenceClassification, pipeline

from supermax.errors import UserError
from supermax.training.config import LossConfig, read_config, with_decoding
from supermax.training.data.columns import Columns
from supermax.training.data.examples import Corpus
from supermax.training.data.label_sets import indicators
from supermax.training.data.splits import Splits, split
from supermax.training.data.synthetic import synthetic_requests
from supermax.training.deploy.export import export, load_exported
from supermax.training.deploy.exported import Description
from supermax.training.deploy.predict import predict_examples, predict_file
from supermax.training.deploy.refit import refit
from supermax.training.eval.baseline import baseline, trivial
from supermax.training.eval.evaluate import evaluate_model
from supermax.training.loop import train
from supermax.training.memory_probe import probe_memory
from supermax.training.optim.losses import class_denominator, label_loss, positive_weights
from supermax.training.prepare import prepare
from supermax.training.steps.execution import Execution
from tests.few import quick_are
from tests.training.corpora import Quiet, config, labelled

FAMILIES = [
    "bert",
    "roberta",
    "deberta",
    "xlmr",
    "electra",
    "modernbert",
    "distilbert",
    "eurobert",
]


def requests(count: int = 160) -> Splits:
    return split(synthetic_requests(count, difficulty=0.1))


def test_it_learns_and_keeps_the_thresholds_of_the_best_epoch(tmp_path: Path) -> None:
    splits = requests()
    wanted = config("multilabel", train={"epochs": 5}, optim={"lr": 5e-3})
    prepared = prepare(wanted, splits.train, splits.validation, cache=tmp_path)
    result = train(prepared, Quiet())
    assert result.value == result.metrics["macro_f1"]
    assert result.value > 0.6
    decoding = result.evaluation.decoding
    assert decoding is not None
    fixed = with_decoding(wanted, decoding)
    execution = Execution()
    prepared.model.load_state_dict(result.weights)
    again = evaluate_model(prepared.model, fixed, prepared.validation, prepared.pads, execution)
    assert again.decoding == decoding
    for name, likely in again.probabilities.items():
        assert likely == pytest.approx(result.evaluation.probabilities[name])
    with pytest.raises(UserError, match=r"leaves labels\.threshold open"):
        evaluate_model(prepared.model, wanted, prepared.validation, prepared.pads, execution)


def test_one_threshold_for_all_labels_is_used_as_it_is(tmp_path: Path) -> None:
    wanted = config("multilabel", labels={"threshold": 0.3}, train={"epochs": 1})
    prepared = prepare(wanted, labelled(30, 1), labelled(20, 2), cache=tmp_path)
    evaluation = train(prepared, Quiet()).evaluation
    examples = prepared.validation.examples
    likely = np.array([evaluation.probabilities[e.id] for e in examples])
    truth = indicators(examples, 4)
    expected = f1_score(truth, likely > 0.3, average="macro", zero_division=0)
    assert evaluation.metrics["macro_f1"] == pytest.approx(expected)


def test_losses_belong_to_agents() -> None:
    base = {"encoder": {"name": "tiny"}}
    assert read_config({**base, "agent": "multilabel"}).loss.name == "bce"
    for agent, loss in (("multilabel", "cross_entropy"), ("criteria", "bce")):
        with pytest.raises(UserError, match=f"loss.name is {loss}, but the agent {agent}"):
            read_config({**base, "agent": agent, "loss": {"name": loss}})
    with pytest.raises(UserError, match=r"labels\.threshold"):
        read_config({**base, "agent": "multilabel", "labels": {"threshold": 1.5}})


def test_the_loss_is_that_of_torch() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    truth = (torch.rand(6, 3) < 0.4).double()
    weights = torch.tensor([1.0, 4.0, 0.5])
    for own in (None, weights):
        expected = torch.nn.BCEWithLogitsLoss(pos_weight=own)(logits, truth)
        terms = label_loss(logits, truth, LossConfig(name="bce"), own)
        found = terms.sum() / class_denominator(truth, own)
        torch.testing.assert_close(found, expected)
    # Lin et al. 2017, without the weight alpha: torchvision.ops.sigmoid_focal_loss(alpha=-1).
    p = logits.sigmoid()
    right = p * truth + (1 - p) * (1 - truth)
    focal = -((1 - right) ** 1.5) * right.log()
    found = label_loss(logits, truth, LossConfig(name="focal", gamma=1.5))
    torch.testing.assert_close(found, focal.mean(1))
    assert torch.autograd.gradcheck(
        lambda x: label_loss(x, truth, LossConfig(name="focal", gamma=1.5), weights), logits
    )


def test_rows_without_a_target_have_neither_loss_nor_gradient() -> None:
    logits = torch.randn(3, 2, requires_grad=True)
    truth = torch.tensor([[1.0, 0.0], [math.nan] * 2, [0.0, 0.0]])
    losses = label_loss(logits, truth, LossConfig(name="bce"))
    losses.sum().backward()
    assert logits.grad is not None
    assert losses[1] == 0
    assert (logits.grad[1] == 0).all()
    assert (logits.grad[2] != 0).all()
    assert class_denominator(truth) == 2


def test_positive_examples_of_rare_labels_weigh_more() -> None:
    config_of = {
        b: LossConfig(balance=b, balance_beta=0.9) for b in ("weighted", "effective_number")
    }
    weights = positive_weights([10, 50, 0, 100], 100, config_of["weighted"])
    assert weights is not None
    assert weights.tolist() == pytest.approx([9, 1, 1, 1])
    effective = positive_weights([10], 100, config_of["effective_number"])
    assert effective is not None
    assert effective.tolist() == pytest.approx([(1 - 0.9**90) / (1 - 0.9**10)])
    assert positive_weights([10], 100, LossConfig()) is None


def test_weights_count_in_training(tmp_path: Path) -> None:
    losses = []
    for balance in ("none", "weighted"):
        wanted = config("multilabel", loss={"balance": balance}, train={"epochs": 1})
        prepared = prepare(wanted, labelled(30, 1), labelled(20, 2), cache=tmp_path)
        losses.append(train(prepared, Quiet()).curve[0]["train_loss"])
    assert losses[1] > losses[0] * 1.2


def write(path: Path, splits: Splits) -> Path:
    names = splits.test.label_names
    with path.open("w", newline="") as file:
        rows = [
            (e.text, ";".join(names[i] for i in e.labels or ())) for e in splits.test.label_sets
        ]
        csv.writer(file).writerows([("text", "topics"), *rows])
    return path


def test_refit_export_and_prediction(tmp_path: Path) -> None:
    splits = requests(160)
    wanted = config("multilabel", train={"epochs": 2}, optim={"lr": 3e-3})
    done = refit(wanted, splits, seeds=(1, 2), cache=tmp_path / "cache", folder=tmp_path / "model")
    names = splits.train.label_names
    assert {"macro_f1", "micro_f1", "accuracy", "auprc", *(f"f1_{i}" for i in range(5))} <= {
        *done.metrics
    }
    f1 = done.metrics["macro_f1"]
    assert f1.low < f1.mean < f1.high
    assert "any number of labels" in (tmp_path / "model" / "README.md").read_text()
    file = write(tmp_path / "new.csv", splits)
    columns = Columns(text="text", label="topics")
    chosen = next(run for run in done.runs if run.seed == done.chosen)
    for out in ("out.csv", "out.jsonl"):
        predicted = predict_file(tmp_path / "model", file, columns, tmp_path / out)
        assert predicted.scores.labelled == len(splits.test.label_sets)
        assert predicted.scores.label_sets == pytest.approx(chosen.metrics, rel=1e-4)
    assert [each.label for each in predicted.scores.by_class] == list(names)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    thresholds = load_exported(tmp_path / "model").config.labels.threshold
    assert isinstance(thresholds, tuple)
    for line in lines:
        likely = zip(names, line["probabilities"].values(), thresholds, strict=True)
        assert line["labels"] == [name for name, p, limit in likely if p > limit]
        assert "label" not in line
    with (tmp_path / "out.csv").open() as written:
        cells = [row["labels"] for row in csv.DictReader(written)]
    assert cells == [";".join(line["labels"]) for line in lines]


def test_labels_that_the_model_does_not_know_are_not_scored(tmp_path: Path) -> None:
    folder = exported(tmp_path, "tiny-bert", labelled(20, 1))
    path = tmp_path / "new.jsonl"
    rows = [["sad"], ["unknown", "sad"], []]
    path.write_text("".join(json.dumps({"text": "a b", "own": own}) + "\n" for own in rows))
    out = tmp_path / "out.csv"
    with pytest.raises(UserError, match="came without a question"):
        predict_file(folder, path, Columns(text="text", label="own"), out)
    columns = Columns(text="text", question="text", label="own")
    scores = predict_file(folder, path, columns, out).scores
    assert (scores.labelled, scores.unknown) == (2, 1)


def exported(folder: Path, encoder: str, corpus: Corpus, **parts: Any) -> Path:
    """Return an exported model whose weights, also of norms, are not the initial ones."""
    wanted = config("multilabel", encoder={"name": encoder}, labels={"threshold": 0.4}, **parts)
    prepared = prepare(wanted, corpus, corpus, cache=folder / "cache")
    torch.manual_seed(1)
    for parameter in prepared.model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    place = folder / f"model-{encoder}"
    description = Description(corpus.label_names, None, {}, "abc")
    export(place, prepared, prepared.model.state_dict(), description)
    return place


@pytest.mark.parametrize("family", quick_are(["bert", "modernbert", "eurobert"], FAMILIES))
def test_transformers_alone_gives_the_same_probabilities(tmp_path: Path, family: str) -> None:
    corpus = synthetic_requests(40)
    folder = exported(tmp_path, f"tiny-{family}", corpus)
    ours = predict_examples(load_exported(folder), corpus.label_sets[:6])
    classify: Any = pipeline("text-classification", model=str(folder), top_k=None)
    assert classify.model.config.problem_type == "multi_label_classification"
    theirs = classify([e.text for e in corpus.label_sets[:6]], truncation=True)
    for mine, other in zip(ours, theirs, strict=True):
        found = {each["label"]: each["score"] for each in other}
        assert found == pytest.approx(mine.probabilities, abs=2e-5)
    assert np.ptp([list((p.probabilities or {}).values()) for p in ours], axis=0).min() > 0.01
    assert 'pipeline("text-classification"' in (folder / "README.md").read_text()


def test_an_export_needs_thresholds(tmp_path: Path) -> None:
    corpus = labelled(20, 1)
    prepared = prepare(config("multilabel"), corpus, corpus, cache=tmp_path / "cache")
    description = Description(corpus.label_names, None, {}, "abc")
    with pytest.raises(UserError, match=r"with_decoding\(config, evaluation.decoding\)"):
        export(tmp_path / "model", prepared, prepared.model.state_dict(), description)


def test_the_classifier_of_an_export_is_loaded_with_its_labels(tmp_path: Path) -> None:
    folder = exported(tmp_path, "tiny-roberta", labelled(20, 1))
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    assert list(model.config.id2label.values()) == list(labelled(20, 1).label_names)


def test_its_memory_can_be_probed_before_a_trial() -> None:
    wanted = config("multilabel", train={"effective_batch": 4})
    peak = probe_memory(wanted, Execution(micro_batch=2, threads=1), 16, updates=1)
    assert peak.seconds > 0


def test_baselines() -> None:
    splits = requests(100)
    regressions = baseline(splits.train, splits.validation)
    assert regressions["macro_f1"] > 0.7
    every = trivial(splits.train, splits.validation)
    assert every["recall"] == 1
    assert every["accuracy"] == 0
    assert regressions["macro_f1"] > every["macro_f1"]
    empty = Corpus("empty", ())
    assert baseline(splits.train, empty) == trivial(splits.train, empty) == {}


def test_a_baseline_without_a_label_in_train_never_predicts_it() -> None:
    corpus = synthetic_requests(60, difficulty=0)
    rare = corpus.only(lambda example: 0 not in (example.labels or ()))
    found = baseline(rare, corpus)
    assert found["f1_0"] == 0
    assert found["f1_1"] > 0.5
