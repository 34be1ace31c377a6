"""Predictions: bitwise equal after loading, independent of labels, files complete or absent."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from supermax._util import files
from supermax.errors import UserError
from supermax.training.data.columns import Columns
from supermax.training.data.examples import Example
from supermax.training.deploy import predict as module
from supermax.training.deploy.export import LoadedModel, export, load_exported
from supermax.training.deploy.exported import Description
from supermax.training.deploy.predict import predict_examples, predict_file
from supermax.training.deploy.predictions import Prediction, as_jsonl
from supermax.training.eval.evaluate import evaluate_model
from supermax.training.eval.metrics import span_metrics
from supermax.training.loop import train
from supermax.training.prepare import Prepared
from supermax.training.steps.execution import Execution, precision_like
from tests.training.corpora import Quiet, config, corpus, ready
from tests.ui.cli.helping import sm

COLUMNS = Columns(text="post", question="asked", id="name")


def put(folder: Path, prepared: Prepared, threshold: float | None = None) -> Path:
    description = Description(("no", "yes"), threshold, metrics={}, fingerprint="f")
    export(folder, prepared, prepared.model.state_dict(), description)
    return folder


def in_memory(prepared: Prepared, threshold: float | None) -> LoadedModel:
    names = ("no", "yes")
    return LoadedModel(prepared.config, prepared.model, prepared.tokenizers, prepared.pads, names,
                  threshold, asks=True)  # fmt: skip


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    place = tmp_path_factory.mktemp("shared")
    return put(place / "model", ready(place / "cache", config("share"), n=6))


def table(folder: Path, n: int = 5) -> Path:
    path = folder / "texts.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "post", "asked", "truth"])
        for i, e in enumerate(corpus(n, 3).spans):
            writer.writerow([f"row-{i}", f"zorbified {e.text}", e.question, "maybe"])
    return path


@pytest.mark.parametrize(
    ("agent", "policy"),
    [
        ("criteria", "none"),
        ("evidence", "calibrated"),
        ("share", "ratio"),
        ("joint", "calibrated"),
    ],
)
def test_a_loaded_model_predicts_the_same_bits(tmp_path: Path, agent: str, policy: str) -> None:
    """The model is trained, texts have several windows, and joint has two kinds of encoder."""
    other = {"evidence_encoder": {"name": "tiny-electra"}} if agent == "joint" else {}
    prepared = ready(tmp_path, config(agent, **other, no_answer={"policy": policy}), n=12)
    threshold = train(prepared, Quiet()).evaluation.threshold
    folder = put(tmp_path / "model", prepared, threshold)
    asked = [*corpus(9, 5).classes, *corpus(9, 6).spans]
    before = predict_examples(in_memory(prepared, threshold), asked)
    loaded = load_exported(folder)
    assert predict_examples(loaded, asked) == before
    # With the threshold given: prepared.evaluate() cross-fits calibrated ones.
    ours, theirs = (
        evaluate_model(
            each.model, each.config, prepared.validation, each.pads, Execution(), threshold
        )
        for each in (in_memory(prepared, threshold), loaded)
    )
    assert theirs == ours


def test_predictions_are_those_of_the_evaluation(tmp_path: Path) -> None:
    for agent in ("criteria", "evidence"):
        prepared = ready(tmp_path, config(agent), n=12)
        wanted = prepared.evaluate()
        for p in predict_examples(in_memory(prepared, None), prepared.validation.examples):
            if agent == "criteria":
                assert p.probabilities is not None
                assert list(p.probabilities.values()) == wanted.probabilities[p.id]
                assert p.label == max(p.probabilities, key=p.probabilities.__getitem__)
                assert (p.spans, p.score) == (None, None)
            else:
                assert p.spans == tuple(wanted.spans[p.id])
                assert p.score == wanted.margins[p.id]
                assert bool(p.spans) == (p.score > 0)
                assert (p.label, p.probabilities) == (None, None)


def test_labels_and_spans_of_examples_are_ignored(shared: Path) -> None:
    loaded = load_exported(shared)
    known = corpus(6, 4).spans
    other = [replace(e, label=1, spans=((0, 2),)) for e in known]
    blank = [replace(e, label=None, spans=None) for e in known]
    assert predict_examples(loaded, known) == predict_examples(loaded, other)
    assert predict_examples(loaded, known) == predict_examples(loaded, blank)


def test_ids_that_stand_twice_and_no_examples_at_all(shared: Path) -> None:
    loaded = load_exported(shared)
    first, second = corpus(2, 4).classes
    both = predict_examples(loaded, [replace(first, id="x"), replace(second, id="x")])
    assert [p.id for p in both] == ["x", "x"]
    assert both[0].probabilities != both[1].probabilities
    assert predict_examples(loaded, []) == []


def test_many_examples_are_taken_in_parts(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, asked = load_exported(shared), corpus(7, 4).classes
    whole = predict_examples(loaded, asked)
    monkeypatch.setattr(module, "_CHUNK", 3)
    parts = predict_examples(loaded, asked)
    assert [p.id for p in parts] == [e.id for e in asked]
    for one, other in zip(whole, parts, strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)


def test_a_question_that_is_missing_or_not_expected(shared: Path, tmp_path: Path) -> None:
    loaded = load_exported(shared)
    bare = [replace(e, question="") for e in corpus(3).classes]
    with pytest.raises(UserError, match="3 examples came without a question"):
        predict_examples(loaded, bare)
    with pytest.raises(UserError, match="trained on texts alone, but 3 examples"):
        predict_examples(replace(loaded, asks=False), corpus(3).classes)
    assert len(predict_examples(replace(loaded, asks=False), bare)) == 3


# Files.


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_file_gets_ids_and_predictions_and_no_text(
    shared: Path, tmp_path: Path, kind: str
) -> None:
    out = tmp_path / f"out.{kind}"
    done = predict_file(shared, table(tmp_path), COLUMNS, out)
    assert (done.rows, done.skipped, done.out) == (5, 0, out)
    rows = read(out)
    assert [row["id"] for row in rows] == [f"row-{i}" for i in range(5)]
    assert "zorbified" not in out.read_text()
    for row in rows:
        given = row["probabilities"] if kind == "jsonl" else {n: row[f"p_{n}"] for n in
                                                              ("no", "yes")}  # fmt: skip
        assert sum(map(float, given.values())) == pytest.approx(1)
        assert row["label"] == max(given, key=lambda name: float(given[name]))
        float(row["score"])
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_texts_are_written_when_asked_for(shared: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / f"out.{kind}"
    predict_file(shared, table(tmp_path), COLUMNS, out, with_text=True)
    assert all(row["text"].startswith("zorbified ") and row["question"] for row in read(out))


def test_an_example_without_a_question_has_none_in_json() -> None:
    found = [Prediction("a", label="no", probabilities={"no": 1.0})]
    for question, keys in (("", ["id", "text"]), ("Why?", ["id", "question", "text"])):
        (line,) = as_jsonl(found, [Example("a", "", "", question)]).splitlines()
        assert list(json.loads(line)) == [*keys, "label", "probabilities"]


def test_csv_and_jsonl_say_the_same(tmp_path: Path) -> None:
    wanted = config("evidence", no_answer={"threshold": -0.1})
    folder = put(tmp_path / "model", ready(tmp_path / "cache", wanted, n=6))
    path = table(tmp_path, 12)
    for kind in ("csv", "jsonl"):
        predict_file(folder, path, COLUMNS, tmp_path / f"out.{kind}")
    flat, deep = read(tmp_path / "out.csv"), read(tmp_path / "out.jsonl")
    assert list(flat[0]) == ["id", "start", "end", "score"]
    assert list(deep[0]) == ["id", "spans", "score"]
    for one, other in zip(flat, deep, strict=True):
        spans = [[int(one["start"]), int(one["end"])]] if one["start"] else []
        assert spans == other["spans"]
        assert float(one["score"]) == other["score"]


def test_truth_that_is_mapped_is_not_read(shared: Path, tmp_path: Path) -> None:
    path, out = table(tmp_path), tmp_path / "out.csv"
    predict_file(shared, path, COLUMNS, out)
    plain = out.read_bytes()
    predict_file(shared, path, replace(COLUMNS, label="truth", split="truth"), out)
    assert out.read_bytes() == plain


def test_bad_rows_stop_it_or_are_skipped(shared: Path, tmp_path: Path) -> None:
    path, out = table(tmp_path), tmp_path / "out.csv"
    path.write_text(path.read_text() + "row-9,,sleep,no\n")
    with pytest.raises(UserError, match="the text is missing"):
        predict_file(shared, path, COLUMNS, out)
    assert not out.exists()
    done = predict_file(shared, path, COLUMNS, out, on_bad="skip")
    assert (done.rows, done.skipped) == (5, 1)


def test_outputs_that_cannot_be_written_are_refused_before_predicting(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = table(tmp_path)
    monkeypatch.setattr(module, "load_exported", lambda folder: pytest.fail("too late"))
    with pytest.raises(UserError, match=r"name it \.csv or \.jsonl"):
        predict_file(shared, path, COLUMNS, tmp_path / "out.xlsx")
    with pytest.raises(UserError, match=r"there is no folder .*no\. Create it"):
        predict_file(shared, path, COLUMNS, tmp_path / "no" / "out.csv")
    with pytest.raises(UserError, match="would overwrite"):
        predict_file(shared, path, COLUMNS, path)
    assert "zorbified" in path.read_text()


def test_a_disk_that_is_full_leaves_the_old_file(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.csv"
    out.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        predict_file(shared, table(tmp_path), COLUMNS, out)
    assert out.read_text() == "old"
    assert list(tmp_path.glob(".*")) == []


# Precision.


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Prepared]:
    """Return a model that was evaluated in bf16, and its evaluation."""
    torch.set_num_threads(1)
    place = tmp_path_factory.mktemp("half")
    wanted = config("evidence", no_answer={"policy": "calibrated"}, train={"epochs": 1})
    prepared = ready(place / "cache", wanted, n=12, precision="bf16")
    threshold = train(prepared, Quiet()).evaluation.threshold
    return put(place / "model", prepared, threshold), prepared


@pytest.mark.slow
def test_the_precision_of_a_model_is_kept_and_used(
    half: tuple[Path, Prepared], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, prepared = half
    loaded = load_exported(folder)
    assert loaded.precision == "bf16"
    assert "| precision | bf16 |" in (folder / "README.md").read_text()
    examples = corpus(6, 2).spans  # it was judged on these
    judged = prepared.evaluate()
    scores = {
        precision: [
            one.score for one in predict_examples(loaded, examples, Execution(precision=precision))
        ]
        for precision in ("auto", "fp32", "bf16")
    }
    assert scores["bf16"] == pytest.approx(list(judged.margins.values()), abs=1e-6)
    assert scores["auto"] == scores["fp32"] != scores["bf16"]  # a CPU is slow in bf16
    monkeypatch.setattr(
        "supermax.training.deploy.predict.precision_like", lambda wanted, _: wanted
    )
    as_judged = predict_examples(loaded, examples)  # as on a device that has it
    assert [one.score for one in as_judged] == scores["bf16"]


@pytest.mark.parametrize(
    ("wanted", "device", "found"),
    [
        ("fp32", "cpu", "fp32"),
        ("bf16", "cpu", "fp32"),
        ("fp16", "cpu", "fp32"),
        ("fp32", "cuda", "fp32"),
        ("fp16", "cuda:1", "fp16"),
    ],
)
def test_a_device_has_the_precision_or_fp32(wanted: str, device: str, found: str) -> None:
    assert precision_like(wanted, device) == found


@pytest.mark.parametrize(("can", "found"), [(True, "bf16"), (False, "fp32")])
def test_a_gpu_has_bf16_where_it_computes_in_it(
    monkeypatch: pytest.MonkeyPatch, can: bool, found: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda **_: can)
    assert precision_like("bf16", "cuda") == found


@pytest.mark.slow
def test_another_precision_is_reported_and_the_advice_works(
    tmp_path: Path, half: tuple[Path, Prepared]
) -> None:
    out = tmp_path / "answers.csv"
    asked = ("predict", str(half[0]), str(table(tmp_path)), "-o", str(out), "--text", "post")
    asked += ("--question", "asked")
    said = sm(*asked)
    assert "computed in fp32, but the model was evaluated in bf16" in said
    first = out.read_text()
    advice = said[said.index("--precision") :].split("`")[0].split()
    assert advice == ["--precision", "bf16", "--force"]
    assert "judged in" not in sm(*asked, *advice)
    assert out.read_text() != first
    assert "did you mean 'bf16'" in sm(*asked, "--force", "--precision", "bf61", code=2)


@pytest.mark.slow
def test_a_model_of_an_earlier_version_is_predicted_in_fp32(
    tmp_path: Path, half: tuple[Path, Prepared]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(half[0], folder)
    facts = json.loads((folder / "supermax.json").read_text())
    del facts["precision"]
    (folder / "supermax.json").write_text(json.dumps(facts))
    assert load_exported(folder).precision == "fp32"


def test_predictions_are_scored_where_labels_and_answers_are_known(
    shared: Path, tmp_path: Path
) -> None:
    rows = [*corpus(9, 3).spans]
    labels = ["yes", "no", "maybe", "", *["yes", "no"] * 20][: len(rows)]
    path = tmp_path / "known.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "post", "asked", "truth", "evidence", "at", "part"])
        for i, (e, label) in enumerate(zip(rows, labels, strict=True)):
            start, end = e.spans[0] if e.spans else (0, 0)
            piece = "not in the text" if i == 0 else e.text[start:end]
            at, part = start if piece else "", ("train", "test")[i % 3 == 0]
            writer.writerow([f"r{i}", e.text, e.question, label, piece, at, part])
    heard: list[tuple[int, int]] = []
    columns = replace(COLUMNS, label="truth", answer="evidence", answer_start="at", split="part")
    done = predict_file(
        shared, path, columns, tmp_path / "o.jsonl", on_progress=lambda *how: heard.append(how)
    )
    said = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    judged = [i for i, label in enumerate(labels) if label in ("yes", "no")]
    right = [said[i]["label"] == labels[i] for i in judged]
    assert done.scores.labelled == len(judged)
    assert done.scores.unknown == 1
    assert done.scores.classes["accuracy"] == pytest.approx(sum(right) / len(right))
    assert [each.label for each in done.scores.by_class] == ["no", "yes"]
    for each in done.scores.by_class:
        own = [said[i]["label"] == each.label for i in judged if labels[i] == each.label]
        assert (each.rows, each.recall) == (len(own), pytest.approx(sum(own) / len(own)))
    assert done.scores.answered == len(rows) - 1
    wanted = span_metrics(
        [row["spans"] for row in said[1:]], [e.spans or () for e in rows[1:]],
        [e.text for e in rows[1:]],
    )  # fmt: skip
    assert done.scores.spans == pytest.approx(wanted, nan_ok=True)
    test = [i for i in judged if i % 3 == 0]
    own = [said[i]["label"] == labels[i] for i in test]
    assert sorted(done.scores.splits) == ["test", "train"]
    assert done.scores.splits["test"].labelled == len(test)
    assert done.scores.splits["test"].classes["accuracy"] == pytest.approx(sum(own) / len(own))
    assert heard[-1] == (len(rows), len(rows))
    bare = predict_file(shared, path, COLUMNS, tmp_path / "bare.jsonl")
    assert (bare.scores.classes, bare.scores.spans) == ({}, {})
    assert (tmp_path / "bare.jsonl").read_bytes() == (tmp_path / "o.jsonl").read_bytes()
