"""The agent token-classification: training, long texts, refit, export and prediction."""

from __future__ import annotations

import csv
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForTokenClassification, BertTokenizerFast, pipeline

from supermax.errors import UserError
from supermax.training.config import read_config
from supermax.training.data.columns import Columns
from supermax.training.data.entities import Entity, tag_names, tags_of, words_in
from supermax.training.data.examples import Corpus, Example
from supermax.training.data.splits import Splits, split
from supermax.training.data.synthetic import synthetic_entities
from supermax.training.deploy.export import export, load_exported
from supermax.training.deploy.exported import Description
from supermax.training.deploy.predict import predict_examples, predict_file
from supermax.training.deploy.refit import refit
from supermax.training.eval.baseline import baseline, trivial
from supermax.training.loop import train
from supermax.training.memory_probe import probe_memory
from supermax.training.models.encoders import load_encoder
from supermax.training.models.sources import find
from supermax.training.prepare import prepare
from supermax.training.steps.execution import Execution
from tests.training.corpora import Quiet, config, tagged

AGENT = "token-classification"
LEARNS: dict[str, Any] = {
    "text": {"max_length": 64},
    "train": {"epochs": 4},
    "optim": {"lr": 3e-3},
}


def found_by(pipe: Any, text: str) -> list[tuple[int, int, str, float]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of words without a tokenizer that marks their parts
        found = pipe(text)
    return [(e["start"], e["end"], e["entity_group"], float(e["score"])) for e in found]


@pytest.fixture(scope="module")
def splits() -> Splits:
    return split(synthetic_entities(160, difficulty=0.1, max_words=24))


@pytest.fixture(scope="module")
def folder(splits: Splits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a refitted and exported model."""
    place = tmp_path_factory.mktemp("refit")
    wanted = config(AGENT, **LEARNS)
    done = refit(wanted, splits, seeds=(1, 2), cache=place / "cache", folder=place / "model")
    assert set(done.metrics) == {
        *("entity_f1", "entity_precision", "entity_recall", "f1_0", "f1_1", "f1_2")
    }
    f1 = done.metrics["entity_f1"]
    assert f1.low <= f1.mean <= f1.high
    assert f1.mean > 0.8
    assert f1.values == tuple(run.metrics["entity_f1"] for run in done.runs)
    return place / "model"


def test_it_learns_and_beats_the_baselines(tmp_path: Path, splits: Splits) -> None:
    prepared = prepare(config(AGENT, **LEARNS), splits.train, splits.validation, cache=tmp_path)
    result = train(prepared, Quiet())
    trivial_f1 = trivial(splits.train, splits.validation)["entity_f1"]
    regression = baseline(splits.train, splits.validation)
    assert result.value == result.metrics["entity_f1"] > trivial_f1 > 0.3
    assert set(result.metrics) == set(regression)
    assert regression["entity_f1"] > trivial_f1
    empty = Corpus("empty", splits.train.label_names)
    assert baseline(splits.train, empty) == trivial(splits.train, empty) == {}
    nothing = replace(splits.train, entities=tuple(
        replace(e, entities=()) for e in splits.train.entities
    ))  # fmt: skip
    assert baseline(nothing, splits.validation)["entity_f1"] == 0


def test_long_texts_are_read_in_windows(tmp_path: Path) -> None:
    """Every word of every text is predicted, and trained on once."""
    train_part, held_out = tagged(60, 1), tagged(40, 2)
    wanted = config(AGENT, train={"epochs": 6}, optim={"lr": 3e-3})
    prepared = prepare(wanted, train_part, held_out, cache=tmp_path)
    longest = max(len(e.words) for e in train_part.entities)
    assert longest > wanted.text.max_length
    assert len(prepared.train.views[-1]) > len(train_part.entities)
    words = sum(len(e.words) for e in train_part.entities)
    assert (prepared.train.views[-1].tag >= 0).sum() == words
    result = train(prepared, Quiet())
    assert result.metrics["entity_f1"] > 0.9
    late = [
        (example, entity)
        for example in held_out.entities
        for entity in example.entities or ()
        if entity.start > len(example.text) / 2 and len(example.words) > 40
    ]
    assert late
    for example, entity in late:
        assert entity in {each.entity for each in result.evaluation.entities[example.id]}


def test_a_diverged_model_has_no_metrics(tmp_path: Path) -> None:
    prepared = prepare(config(AGENT), tagged(12, 1), tagged(6, 2), cache=tmp_path)
    with torch.no_grad():
        next(prepared.model.token_head.parameters()).fill_(float("nan"))  # type: ignore[union-attr]
    evaluation = prepared.evaluate()
    assert all(map(np.isnan, evaluation.metrics.values()))
    assert not any(evaluation.entities.values())


def test_all_tokens_of_a_word_can_be_labelled(tmp_path: Path) -> None:
    name = "homedayrained"  # of several tokens, as no text of training has it
    unseen = Example("x", "x", f"my {name} was", entities=(Entity(3, 3 + len(name), 2),))
    held_out = replace(tagged(1), entities=(unseen,))
    first, every = (
        prepare(
            config(AGENT, train={"label_all_tokens": every}), tagged(9), held_out, cache=tmp_path
        ).validation.views[-1]
        for every in (False, True)
    )
    assert first.tag[first.tag >= 0].tolist() == [0, 5, 0]
    tags = every.tag[every.tag >= 0].tolist()
    assert len(tags) > 3
    assert tags[1] == 5
    assert set(tags[2 : tags.index(6) + tags.count(6)]) == {6}
    assert (first.word == every.word).all()


def test_class_weights_are_those_of_the_tags(tmp_path: Path) -> None:
    corpus = tagged(20, 1)
    wanted = config(AGENT, loss={"balance": "weighted"})
    weights = prepare(wanted, corpus, corpus, cache=tmp_path).step.weights
    tags = [tag for e in corpus.entities for tag in tags_of(e.words, e.entities or ())]
    counts = np.bincount(tags, minlength=7)
    assert weights is not None
    ratios = (weights.numpy() * np.maximum(counts, 1)).tolist()
    assert ratios == pytest.approx([ratios[0]] * 7, rel=1e-5)


def test_the_head_is_that_of_transformers() -> None:
    base = {"encoder": {"name": "tiny"}, "agent": AGENT}
    with pytest.raises(UserError, match=r"head.depth is 2, but the agent token-classification"):
        read_config({**base, "head": {"depth": 2}})
    assert read_config(base).loss.name == "cross_entropy"


def test_prediction_of_files_in_all_forms(folder: Path, splits: Splits, tmp_path: Path) -> None:
    names = tag_names(splits.test.label_names)
    lines, tokens, marked = [], [], []
    for e in splits.test.entities:
        words = words_in(e.text)
        tags = [names[tag] for tag in tags_of(words, e.entities or ())]
        pieces = [e.text[a:b] for a, b in words]
        lines += [*(f"{piece}\t{tag}" for piece, tag in zip(pieces, tags, strict=True)), ""]
        tokens.append({"tokens": pieces, "tags": tags})
        marks = [[a, b, splits.test.label_names[kind]] for a, b, kind in e.entities or ()]
        marked.append({"text": e.text, "entities": marks})
    (tmp_path / "a.conll").write_text("\n".join(lines))
    for name, rows in (("tokens", tokens), ("marked", marked)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    tagged_columns = Columns(text="tokens", label="tags")
    results = []
    for file, columns in (
        ("a.conll", tagged_columns),
        ("tokens.jsonl", tagged_columns),
        ("marked.jsonl", Columns(text="text", label="entities")),
    ):
        out = tmp_path / f"{file}.out.jsonl"
        done = predict_file(folder, tmp_path / file, columns, out, with_text=True)
        assert done.scores.marked == done.rows == len(tokens)
        written = [json.loads(line) for line in out.read_text().splitlines()]
        results.append([[(e["text"], e["label"]) for e in row["entities"]] for row in written])
        assert done.scores.entities["entity_f1"] > 0.8
    assert results[0] == results[1] == results[2]
    plain = predict_file(
        folder, tmp_path / "marked.jsonl", Columns(text="text"), tmp_path / "o.csv"
    )
    assert (plain.scores.entities, plain.scores.marked) == ({}, 0)
    with (tmp_path / "o.csv").open() as file:
        cells = [json.loads(row["entities"]) for row in csv.DictReader(file)]
    assert [[e["label"] for e in each] for each in cells] == [
        [label for _, label in each] for each in results[2]
    ]
    assert all(set(e) == {"start", "end", "label", "score"} for each in cells for e in each)


def test_unknown_types_count_as_missed(folder: Path, tmp_path: Path) -> None:
    rows = [{"text": "Ada went to Tarn by train.", "entities": [[0, 3, "DOG"], [12, 16, "LOC"]]}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = Columns(text="text", label="entities")
    scores = predict_file(folder, tmp_path / "a.jsonl", columns, tmp_path / "o.jsonl").scores
    assert scores.entities["entity_recall"] <= 0.5
    assert {"f1_0", "f1_2"} <= set(scores.entities)
    assert "f1_3" not in scores.entities


def test_the_pipeline_of_transformers_finds_the_same(folder: Path, splits: Splits) -> None:
    """On words with spaces in between: its tokenizer does not mark the parts of words."""
    texts = [" ".join(e.text[a:b] for a, b in words_in(e.text)) for e in splits.test.entities]
    ours = predict_examples(load_exported(folder), [Example(t, "", t) for t in texts])
    pipe = pipeline("token-classification", str(folder), aggregation_strategy="first")
    assert sum(len(p.entities or ()) for p in ours) > 20
    for text, prediction in zip(texts, ours, strict=True):
        theirs = found_by(pipe, text)
        own = [(e.start, e.end, e.label) for e in prediction.entities or ()]
        assert own == [each[:3] for each in theirs]
        scores = [e.score for e in prediction.entities or ()]
        assert scores == pytest.approx([each[3] for each in theirs], abs=1e-5)


def test_logits_of_the_exported_model_are_ours(folder: Path, splits: Splits) -> None:
    loaded = load_exported(folder)
    theirs = AutoModelForTokenClassification.from_pretrained(folder).eval()
    assert list(theirs.config.id2label.values()) == tag_names(splits.train.label_names)
    from supermax.training.models.assembly import Inputs

    tokenizer: Any = loaded.tokenizers[0]
    encoded = tokenizer([e.text for e in splits.test.entities], padding=True, return_tensors="pt")
    ids, mask = encoded["input_ids"], encoded["attention_mask"]
    with torch.inference_mode():
        ours = loaded.model(Inputs(ids, mask, torch.zeros_like(ids))).classes
        logits = theirs(input_ids=ids, attention_mask=mask).logits
    assert ours is not None
    torch.testing.assert_close(ours[mask.bool()], logits[mask.bool()], rtol=0, atol=1e-5)
    card = (folder / "README.md").read_text()
    assert 'pipeline("token-classification"' in card


WORDPIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] anna ber ##g ##hof left oslo , . ' s ##lo os"


@pytest.mark.parametrize(("strategy", "every"), [("first", False), ("simple", True)])
def test_the_pipeline_finds_the_same_in_texts_with_word_pieces(
    tmp_path: Path, strategy: str, every: bool
) -> None:
    source = find("tiny-bert")
    (tmp_path / "encoder").mkdir()
    load_encoder(source, source.config).save_pretrained(tmp_path / "encoder")
    (tmp_path / "vocab.txt").write_text("\n".join(WORDPIECES.split()))
    BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "encoder")
    texts = ["Anna Berghof left Oslo.", "Oslo's Anna, left.", "Berg, Anna Berg left Anna."]
    entities = [
        (Entity(0, 12, 1), Entity(18, 22, 0)),
        (Entity(0, 4, 0), Entity(7, 11, 1)),
        (Entity(0, 4, 1), Entity(6, 15, 1), Entity(21, 25, 1)),
    ]
    examples = tuple(
        Example(str(i), str(i), text, entities=own)
        for i, (text, own) in enumerate(zip(texts * 8, entities * 8, strict=True))
    )
    corpus = Corpus("toy", ("LOC", "PER"), entities=examples)
    wanted = config(
        AGENT,
        encoder={"name": str(tmp_path / "encoder")},
        train={"epochs": 8, "label_all_tokens": every},
        optim={"lr": 3e-3},
    )
    prepared = prepare(wanted, corpus, corpus, cache=tmp_path)
    result = train(prepared, Quiet())
    assert result.metrics["entity_f1"] == 1
    about = Description(("LOC", "PER"), None, result.metrics, "x")
    export(tmp_path / "model", prepared, result.weights, about)
    pipe = pipeline("token-classification", str(tmp_path / "model"), aggregation_strategy=strategy)
    ours = predict_examples(load_exported(tmp_path / "model"), examples[:3])
    for text, prediction in zip(texts, ours, strict=True):
        own = [(e.start, e.end, e.label) for e in prediction.entities or ()]
        assert own == [each[:3] for each in found_by(pipe, text)]


def test_its_memory_can_be_probed_before_a_trial() -> None:
    wanted = config(AGENT, train={"effective_batch": 4})
    assert probe_memory(wanted, Execution(micro_batch=2, threads=1), 16, updates=1).seconds > 0


def test_the_same_synthetic_data_for_the_same_arguments() -> None:
    first = synthetic_entities(20)
    assert first.fingerprint == synthetic_entities(20).fingerprint
    assert first.fingerprint != synthetic_entities(20, seed=1).fingerprint
    for example in synthetic_entities(50, max_words=8).entities:
        assert all(example.text[a:b].strip() for a, b, _ in example.entities or ())
    with pytest.raises(UserError, match="posts must be at least 1"):
        synthetic_entities(0)
