"""Exported folder: loads in transformers, is complete or absent, and holds no text of the data."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoTokenizer

from supermax.errors import EnvironmentFault, UserError
from supermax.training.config import Config
from supermax.training.data.examples import Corpus, Example
from supermax.training.data.redsm5 import is_clinical
from supermax.training.data.synthetic import synthetic
from supermax.training.deploy import export as module
from supermax.training.deploy.export import export, load_exported
from supermax.training.deploy.exported import Description
from supermax.training.eval.intervals import Estimate
from supermax.training.prepare import Prepared, prepare
from supermax.training.steps.batches import collate
from supermax.training.steps.execution import Execution
from tests.training.corpora import OPEN, config, corpus, corpus_for, ready
from tests.training.deploy.cards import run_programs

FAMILIES = ["bert", "roberta", "deberta", "xlmr", "electra", "modernbert", "distilbert"]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def put(folder: Path, prepared: Prepared, **changes: Any) -> Path:
    facts: dict[str, Any] = {
        "label_names": ("no", "yes"),
        "threshold": None,
        "metrics": {"macro_f1": 0.5, "auroc": float("nan")},
        "fingerprint": "abc123",
    }
    export(folder, prepared, prepared.model.state_dict(), Description(**(facts | changes)))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return put(tmp_path / "model", ready(tmp_path / "cache", config(), n=6))


READ = """
import sys, warnings
warnings.filterwarnings("ignore")
import numpy as np, torch
from transformers import AutoModel, AutoTokenizer
torch.set_num_threads(1)
for folder in sys.argv[1:]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    batch = tokenizer(["sleep"] * 2, ["we went home awake", "it"], padding=True,
                      return_tensors="pt", return_token_type_ids=False)
    with torch.inference_mode():
        np.save(folder + "/../states.npy", model(**batch).last_hidden_state.numpy())
"""


@pytest.mark.slow
def test_transformers_alone_loads_the_encoder_of_every_family(tmp_path: Path) -> None:
    """A process without Supermax computes bitwise the same hidden states."""
    wanted = {}
    for family in FAMILIES:
        prepared = ready(tmp_path / "cache", config(encoder={"name": f"tiny-{family}"}), n=4)
        put(tmp_path / family, prepared)
        tokenizer = prepared.tokenizers[0]
        batch = tokenizer(["sleep"] * 2, ["we went home awake", "it"], padding=True,
                          return_tensors="pt", return_token_type_ids=False)  # fmt: skip
        prepared.model.eval()
        with torch.inference_mode():
            encoder: Any = prepared.model.encoders[0].model
            wanted[family] = encoder(**batch).last_hidden_state.numpy()
    places = [str(tmp_path / family / "encoder") for family in FAMILIES]
    subprocess.run([sys.executable, "-c", READ, *places], check=True, cwd=tmp_path)
    for family in FAMILIES:
        assert np.array_equal(np.load(tmp_path / family / "states.npy"), wanted[family]), family


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-electra", "tiny-roberta", "tiny"])
def test_its_tokenizer_gives_the_encoder_what_it_was_trained_on(tmp_path: Path, name: str) -> None:
    """Token types are included if the encoder has them: by default, transformers uses type 0 for
    all."""
    prepared = ready(tmp_path / "cache", config(encoder={"name": name}), n=4)
    put(tmp_path / "model", prepared)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model" / "encoder")
    example = prepared.train.examples[0]
    ours = collate(prepared.train.views, prepared.pads, np.array([0])).inputs[0]
    theirs = tokenizer(example.question, example.text, return_tensors="pt")
    prepared.model.eval()
    with torch.inference_mode():
        encoder: Any = prepared.model.encoders[0]
        assert torch.equal(encoder(ours), encoder.model(**theirs).last_hidden_state)


@pytest.mark.parametrize("agent", ["criteria", "evidence", "share", "joint"])
def test_all_weights_and_facts_come_back(tmp_path: Path, agent: str) -> None:
    other = {"evidence_encoder": {"name": "tiny-deberta"}} if agent == "joint" else {}
    parts = {"head": {"pooling": "attention", "depth": 2}, "no_answer": {"policy": "calibrated"}}
    prepared = ready(tmp_path, config(agent, **other, **parts), n=6)
    loaded = load_exported(put(tmp_path / "model", prepared, threshold=0.25))
    ours, theirs = prepared.model.state_dict(), loaded.model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert loaded.config == prepared.config
    assert loaded.pads == prepared.pads
    assert (loaded.label_names, loaded.threshold, loaded.asks) == (("no", "yes"), 0.25, True)
    assert not loaded.model.training


def test_the_weights_given_are_exported_not_the_models_own(tmp_path: Path) -> None:
    prepared = ready(tmp_path, config(), n=6)
    best = {name: weight + 1 for name, weight in prepared.model.state_dict().items()}
    before = {name: weight.clone() for name, weight in prepared.model.state_dict().items()}
    description = Description(("no", "yes"), threshold=None, metrics={}, fingerprint="")
    export(tmp_path / "m", prepared, best, description)
    loaded = load_exported(tmp_path / "m").model.state_dict()
    assert all(torch.equal(loaded[name], best[name]) for name in best)
    encoder = load_file(tmp_path / "m" / "encoder" / "model.safetensors")
    assert all(torch.equal(encoder[n], best[f"encoders.0.model.{n}"]) for n in encoder)
    now = prepared.model.state_dict()
    assert all(torch.equal(now[name], before[name]) for name in before)


def test_the_card_describes_the_model(folder: Path) -> None:
    text = (folder / "README.md").read_text()
    for words in ("not pretrained", "abc123", "macro_f1 | 0.5000",
                  "auroc | not defined", "from_pretrained", "predict_file", "optim.lr | 0.001",
                  'question="question"'):  # fmt: skip
        assert words in text, words
    facts = json.loads((folder / "supermax.json").read_text())
    assert facts["metrics"] == {"macro_f1": 0.5, "auroc": None}
    assert facts["versions"]["torch"] == metadata.version("torch")
    assert facts["untrained"] is True


def test_the_card_warns_of_diagnoses_only_where_the_data_is_about_symptoms(
    tmp_path: Path, folder: Path
) -> None:
    assert "diagnosis" not in (folder / "README.md").read_text()
    prepared = ready(tmp_path / "cache", config(), n=6)
    clinical = put(tmp_path / "clinical", prepared, clinical=True)
    assert "makes no diagnosis" in (clinical / "README.md").read_text()


def test_what_data_is_about_symptoms() -> None:
    made = synthetic(20)
    assert is_clinical(made)
    tweets = Corpus("tweets", ("joy", "anger"), (Example("1", "1", "what a day", label=0),))
    assert not is_clinical(tweets)
    named = (Example("1", "1", "so tired", question="FATIGUE", label=0),)
    assert is_clinical(Corpus("notes", ("no", "yes"), named))  # ReDSM5 as somebody's table


def test_the_card_names_classes(tmp_path: Path) -> None:
    prepared = ready(tmp_path / "cache", config(), n=6)
    metrics = {"macro_f1": 0.5, "f1_0": 0.4, "f1_1": 0.6}
    names = ("joy", "anger")
    text = put(tmp_path / "m", prepared, metrics=metrics, label_names=names) / "README.md"
    card = text.read_text()
    assert "f1 of joy | 0.4000" in card
    assert "f1 of anger | 0.6000" in card
    assert "f1_" not in card


def test_the_cards_program_runs_on_a_file_with_the_searchs_columns(tmp_path: Path) -> None:
    """The table has no ids, and a column with a quotation mark in its name."""
    columns = {"text": 'the "post"', "question": "asked", "label": "verdict"}
    model = put(tmp_path / "m", ready(tmp_path / "cache", config(), n=6), columns=columns)
    run_programs(model, [['the "post"', "asked"], ["so tired", "Is it sleep?"]])
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 2
    assert 'columns `asked` (the first text) and `the "post"`' in (model / "README.md").read_text()


def test_the_cards_metadata_are_those_of_the_hub(tmp_path: Path) -> None:
    """Read by huggingface_hub, which parses what the hub shows."""
    prepared = ready(tmp_path / "cache", config("regression"), n=6)
    hub = tuple(replace(source, place="someone/model") for source in prepared.sources)
    metrics = {"spearman": 0.25, "rmse": 12.5, "r2": float("nan")}
    estimates = {name: Estimate(0.2, 0.1, 0.3, (0.2, 0.2)) for name in metrics}
    made = put(tmp_path / "m", replace(prepared, sources=hub), label_names=(), metrics=metrics,
               estimates=estimates)  # fmt: skip
    data = ModelCard.load(made / "README.md").data
    assert data.pipeline_tag == "text-classification"
    assert (data.library_name, data.base_model) == ("transformers", ["someone/model"])
    assert data.metrics == ["spearmanr", "rmse"]
    found = {(r.metric_name, r.metric_value, r.dataset_split) for r in data.eval_results}
    assert found == {("spearman", 0.25, "test"), ("rmse", 12.5, "test")}
    assert {r.task_type for r in data.eval_results} == {"text-classification"}


def test_the_card_has_no_path_of_an_encoder(tmp_path: Path, folder: Path) -> None:
    prepared = ready(tmp_path / "other", config(encoder={"name": str(folder / "encoder")}), n=6)
    card = (put(tmp_path / "again", prepared) / "README.md").read_text()
    assert "# criteria on encoder" in card
    assert str(tmp_path) not in card


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words:UserWarning")
@pytest.mark.parametrize(
    ("agent", "tag"),
    [
        ("criteria", "text-classification"),
        ("evidence", "question-answering"),
        ("joint", None),
        ("multilabel", "text-classification"),
        ("token-classification", "token-classification"),
    ],
)
def test_the_card_of_each_task(tmp_path: Path, agent: str, tag: str | None) -> None:
    """A model without metrics, of an encoder from nowhere; all programs of the card run."""
    other = {"evidence_encoder": {"name": "tiny-deberta"}} if agent == "joint" else {}
    prepared = ready(tmp_path / "cache", config(agent, **other, labels={"threshold": 0.5}), n=6)
    names = corpus_for(agent, 6, 1).label_names
    made = put(tmp_path / "m", prepared, metrics={}, label_names=names)
    card = ModelCard.load(made / "README.md")
    assert (card.data.pipeline_tag, card.data.base_model, card.data.eval_results) == (
        tag,
        None,
        None,
    )
    assert len(run_programs(made)) == 3


def test_a_pretrained_encoder_is_not_called_untrained(tmp_path: Path) -> None:
    prepared = ready(tmp_path, config(), n=6)
    trained = tuple(replace(source, place="a/hub") for source in prepared.sources)
    prepared = replace(prepared, sources=trained)
    text = (put(tmp_path / "m", prepared) / "README.md").read_text()
    assert "pretrained" not in text.replace("from_pretrained", "")


# Texts.


def marked(pretrained: Path) -> tuple[Config, Corpus]:
    """Return a corpus whose texts, ids and groups hold words that occur nowhere else."""
    base = corpus(8, 1)
    change = {"text": "zorbified quuxling was here", "group": "groupmark"}
    examples = tuple(replace(e, id=f"idmark{i}", **change) for i, e in enumerate(base.classes))
    wanted = config(encoder={"name": str(pretrained)})
    return wanted, Corpus("toy", base.label_names, examples)


def test_no_text_of_any_example_is_in_any_file(tmp_path: Path, folder: Path) -> None:
    wanted, texts = marked(folder / "encoder")
    prepared = prepare(wanted, texts, texts, cache=tmp_path / "other")
    made = put(tmp_path / "made", prepared)
    assert load_exported(made).config == wanted
    files = [path for path in made.rglob("*") if path.is_file()]
    assert len(files) > 6
    for path in files:
        held = path.read_bytes().lower()
        for mark in (b"zorbified", b"quuxling", b"idmark", b"groupmark", b"was here"):
            assert mark not in held, path


def test_a_trained_vocabulary_holds_only_single_words(tmp_path: Path) -> None:
    examples = tuple(Example(f"i{n}", "g", "zorbified quuxling here", "", n % 2) for n in range(6))
    texts = Corpus("toy", ("no", "yes"), examples)
    made = put(tmp_path / "m", prepare(config(), texts, texts, cache=tmp_path))
    assert not load_exported(made).asks
    for path in made.rglob("*"):
        assert not path.is_file() or b"zorbified quuxling" not in path.read_bytes(), path
    assert "holds single words" in (made / "README.md").read_text()


# Whole or absent.


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    prepared = ready(tmp_path / "cache", config(), n=4)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("full", "file"):
        with pytest.raises(UserError, match="overwrites nothing"):
            put(tmp_path / name, prepared)
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    load_exported(put(tmp_path / "empty", prepared))
    load_exported(put(tmp_path / "deep" / "er", prepared))


@pytest.mark.parametrize("error", [OSError("No space left on device"), KeyboardInterrupt()])
def test_a_failed_export_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    prepared = ready(tmp_path / "cache", config(), n=4)

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(module, "_write_facts", fail)
    with pytest.raises((EnvironmentFault, KeyboardInterrupt)):
        put(tmp_path / "out" / "model", prepared)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_folder_created_meanwhile_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = ready(tmp_path / "cache", config(), n=4)
    write_facts = module._write_facts

    def race(temporary: Path, facts: Any) -> None:
        write_facts(temporary, facts)
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "theirs").write_text("x")

    monkeypatch.setattr(module, "_write_facts", race)
    with pytest.raises(UserError, match="overwrites nothing"):
        put(tmp_path / "model", prepared)
    assert [p.name for p in (tmp_path / "model").iterdir()] == ["theirs"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_killed_export_leaves_no_folder_of_that_name(tmp_path: Path) -> None:
    prepared = ready(tmp_path / "cache", config(), n=4)
    child = os.fork()
    if child == 0:  # stops where all but the rename is done, and is killed there
        try:
            module._move = lambda *_: time.sleep(60)
            put(tmp_path / "model", prepared)
        finally:
            os._exit(0)
    deadline = time.monotonic() + 20
    while not list(tmp_path.glob(".model.*/supermax.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not (tmp_path / "model").exists()
    load_exported(put(tmp_path / "model", prepared))


# What cannot be loaded.


def test_a_folder_that_is_not_an_export(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        load_exported(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"holds no supermax\.json"):
        load_exported(tmp_path)
    for text in ("{", "[]", '{"format": 1}', '{"format": "1"}'):
        (tmp_path / "supermax.json").write_text(text)
        with pytest.raises(UserError, match="damaged, or not written by Supermax"):
            load_exported(tmp_path)


def test_a_newer_format_asks_for_a_newer_supermax(folder: Path) -> None:
    facts = json.loads((folder / "supermax.json").read_text())
    (folder / "supermax.json").write_text(json.dumps(facts | {"format": 99}))
    with pytest.raises(UserError, match="newer Supermax"):
        load_exported(folder)


def test_every_torn_or_missing_file_is_named(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    (folder / "encoder" / "tokenizer.json").unlink()
    with pytest.raises(UserError) as caught:
        load_exported(folder)
    assert "model.safetensors has 1,000 bytes" in str(caught.value)
    assert "encoder/tokenizer.json is missing" in str(caught.value)


@pytest.mark.parametrize("name", ["model.safetensors", "encoder/config.json"])
def test_damage_of_the_same_size_is_an_error_too(folder: Path, name: str) -> None:
    path = folder / name
    path.write_bytes(b"\xff" * path.stat().st_size)
    with pytest.raises(UserError, match="cannot be loaded"):
        load_exported(folder)


def test_the_card_may_be_edited(folder: Path) -> None:
    (folder / "README.md").write_text("our model")
    load_exported(folder)


def test_what_a_model_cannot_be_used_without(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="2 classes; 3 names"):
        put(tmp_path / "m", ready(tmp_path, config(), n=4), label_names=("a", "b", "c"))
    wanted = config("evidence", no_answer={"policy": "calibrated"})
    prepared = ready(tmp_path, wanted, n=4)
    with pytest.raises(UserError, match="without its threshold"):
        put(tmp_path / "m", prepared)
    with pytest.raises(UserError, match=r"with_decoding\(config, evaluation.decoding\)") as caught:
        put(tmp_path / "m", ready(tmp_path, config("evidence", **OPEN), n=4))
    assert "leaves decoding settings open" in str(caught.value)
    assert not (tmp_path / "m").exists()
    assert prepared.execution == Execution()
