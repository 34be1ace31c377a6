"""transformers alone loads an exported model, and predicts the same."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import pipeline

from supermax.training.data.entities import tag_names
from supermax.training.data.examples import Example
from supermax.training.deploy.export import load_exported
from supermax.training.deploy.modeling_supermax import __file__ as code
from supermax.training.deploy.predict import predict_examples
from supermax.training.deploy.transformers_format import _Family
from supermax.training.models.assembly import Inputs
from supermax.training.prepare import Prepared
from supermax.training.steps.batches import collate
from tests.few import quick_are
from tests.training.corpora import config, corpus_for, ready
from tests.training.deploy.test_export import put

STOCK = [
    ("tiny-bert", "tanh"),
    ("tiny-roberta", "tanh"),
    ("tiny-xlmr", "tanh"),
    ("tiny-electra", "gelu"),
    ("tiny-deberta", "silu"),
    ("tiny-distilbert", "relu"),
]
"""Encoders, and the activation of the head in their class of transformers."""
NAMES = {
    agent: corpus_for(agent, 6, 1).label_names for agent in ("multilabel", "token-classification")
}


def exported(
    tmp_path: Path, agent: str, encoder: str, **parts: Any
) -> tuple[Prepared, list[Example], Path]:
    """Export a model whose random weights are large enough for different predictions."""
    prepared = ready(tmp_path / "cache", config(agent, encoder={"name": encoder}, **parts), n=6)
    with torch.no_grad():
        for parameter in prepared.model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
            elif parameter.abs().max() == 0:
                parameter.normal_(std=0.1)
    names = () if agent in ("regression", "evidence") else NAMES.get(agent, ("no", "yes"))
    folder = put(tmp_path / "model", prepared, label_names=names)
    return prepared, [e for e in prepared.validation.examples if e.spans is None], folder


def asked(examples: Sequence[Example]) -> list[dict[str, str]]:
    return [{"text": e.question, "text_pair": e.text} for e in examples]


def tokens(folder: Path, examples: Sequence[Example]) -> dict[str, torch.Tensor]:
    own_code = (folder / "modeling_supermax.py").exists()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=own_code)
    texts = [e.question for e in examples], [e.text for e in examples]
    found: dict[str, torch.Tensor] = tokenizer(
        *texts, padding=True, truncation="only_second", return_tensors="pt"
    )
    return found


def class_of(folder: Path) -> str:
    name: str = json.loads((folder / "config.json").read_text())["architectures"][0]
    return name


def check_classes(folder: Path, examples: Sequence[Example], *, own_code: bool) -> None:
    """Compare probabilities of Supermax, of `from_pretrained` and of `pipeline`."""
    ours = [p.probabilities for p in predict_examples(load_exported(folder), examples)]
    auto = transformers.AutoModelForSequenceClassification
    model = auto.from_pretrained(folder, trust_remote_code=own_code).eval()
    with torch.inference_mode():
        theirs = model(**tokens(folder, examples)).logits.softmax(-1).tolist()
    names = [model.config.id2label[i] for i in range(2)]
    pipe = pipeline("text-classification", model=str(folder), trust_remote_code=own_code)
    piped = pipe(asked(examples), top_k=None, truncation="only_second")
    assert len({round(own["yes"], 3) for own in ours if own}) > 1
    for own, row, scores in zip(ours, theirs, piped, strict=True):
        assert own == pytest.approx(dict(zip(names, row, strict=True)), abs=1e-5)
        assert own == pytest.approx({s["label"]: s["score"] for s in scores}, abs=1e-5)


@pytest.mark.parametrize(("encoder", "activation"), STOCK)
def test_a_head_of_transformers_is_exported_as_its_class(
    tmp_path: Path, encoder: str, activation: str
) -> None:
    head = {"depth": 2, "width": 64, "activation": activation}
    _, examples, folder = exported(tmp_path, "criteria", encoder, head=head)
    assert not (folder / "modeling_supermax.py").exists()
    check_classes(folder, examples, own_code=False)


@pytest.mark.parametrize(
    "encoder", quick_are(["tiny-bert", "tiny"], [*(name for name, _ in STOCK), "tiny"])
)
def test_a_linear_head_is_exported_as_a_class(tmp_path: Path, encoder: str) -> None:
    """Its hidden layer changes nothing."""
    _, examples, folder = exported(tmp_path, "criteria", encoder)
    assert not (folder / "modeling_supermax.py").exists()
    check_classes(folder, examples, own_code=False)


@pytest.mark.parametrize(
    ("encoder", "head"),
    [
        ("tiny", {"depth": 2, "width": 64}),
        ("tiny", {"pooling": "mean", "depth": 2, "activation": "silu"}),
        ("tiny-bert", {"pooling": "attention", "depth": 3, "activation": "relu"}),
        ("tiny-bert", {"depth": 2, "width": 64, "activation": "gelu"}),
        ("tiny-roberta", {"pooling": "max"}),
        ("tiny-deberta", {"pooling": "mean"}),
        ("tiny-distilbert", {"depth": 2, "width": 32, "activation": "tanh"}),
    ],
)
def test_other_heads_come_with_their_code(
    tmp_path: Path, encoder: str, head: dict[str, Any]
) -> None:
    _, examples, folder = exported(tmp_path, "criteria", encoder, head=head)
    assert class_of(folder) == "SupermaxForSequenceClassification"
    check_classes(folder, examples, own_code=True)


@pytest.mark.parametrize(
    ("encoder", "head", "own_code"),
    [
        ("tiny-bert", {"depth": 2, "width": 64, "activation": "tanh"}, False),
        ("tiny-deberta", {}, False),
        ("tiny-bert", {"pooling": "mean"}, True),
    ],
)
def test_numbers_are_in_the_unit_of_the_data(
    tmp_path: Path, encoder: str, head: dict[str, Any], own_code: bool
) -> None:
    prepared, examples, folder = exported(tmp_path, "regression", encoder, head=head)
    assert (folder / "modeling_supermax.py").exists() == own_code
    ours = [p.value for p in predict_examples(load_exported(folder), examples)]
    unit = prepared.model.unit
    assert unit is not None
    assert unit.mean > 300
    pipe = pipeline("text-classification", model=str(folder), trust_remote_code=own_code)
    piped = [s["score"] for s in pipe(asked(examples), truncation="only_second")]
    with torch.inference_mode():
        theirs = pipe.model(**tokens(folder, examples)).logits[:, 0].tolist()
    for values in (piped, theirs):  # an error of fp32 is relative to the number
        assert values == pytest.approx(ours, rel=1e-6, abs=1e-5 * unit.deviation)


@pytest.mark.parametrize(
    ("encoder", "head", "own_code"),
    [
        *((encoder, {}, False) for encoder, _ in STOCK),
        ("tiny", {}, True),
        ("tiny-bert", {"depth": 2, "width": 64, "activation": "tanh"}, True),
    ],
)
def test_answers(tmp_path: Path, encoder: str, head: dict[str, Any], own_code: bool) -> None:
    prepared, _, folder = exported(tmp_path, "evidence", encoder, head=head)
    assert (folder / "modeling_supermax.py").exists() == own_code
    data = prepared.validation
    inputs = collate(data.views, prepared.pads, np.arange(len(data.views[0]))).inputs
    with torch.inference_mode():
        ours = prepared.model.eval()(*inputs)
    auto = transformers.AutoModelForQuestionAnswering
    model = auto.from_pretrained(folder, trust_remote_code=own_code).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=own_code)
    texts = [e.question for e in data.examples], [e.text for e in data.examples]
    windows = tokenizer(*texts, padding=True, truncation="only_second", return_tensors="pt",
                        stride=8, return_overflowing_tokens=True)  # fmt: skip
    windows.pop("overflow_to_sample_mapping")
    with torch.inference_mode():
        theirs = model(**windows)
    real = inputs[0].mask.bool()
    assert len(real) > len(data.examples)
    for own, other in ((ours.starts, theirs.start_logits), (ours.ends, theirs.end_logits)):
        assert torch.allclose(own[real], other[real], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("head", "own_code"), [({}, False), ({"pooling": "mean"}, True), ({"depth": 2}, True)]
)
def test_sets_of_labels(tmp_path: Path, head: dict[str, Any], own_code: bool) -> None:
    threshold = {"threshold": 0.4}
    _, examples, folder = exported(
        tmp_path, "multilabel", "tiny-electra", head=head, labels=threshold
    )
    assert (folder / "modeling_supermax.py").exists() == own_code
    ours = [p.probabilities for p in predict_examples(load_exported(folder), examples)]
    pipe = pipeline("text-classification", model=str(folder), trust_remote_code=own_code)
    assert pipe.model.config.problem_type == "multi_label_classification"
    piped = pipe(asked(examples), top_k=None, truncation="only_second")
    for own, scores in zip(ours, piped, strict=True):
        assert own == pytest.approx({s["label"]: s["score"] for s in scores}, abs=2e-5)


@pytest.mark.parametrize(
    ("encoder", "own_code"),
    [("tiny-bert", False), ("tiny", False), ("tiny-bert", True), ("tiny", True)],
)
def test_classes_of_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoder: str, own_code: bool
) -> None:
    if own_code:  # as if transformers had no such class, as for some architectures
        monkeypatch.setattr("supermax.training.deploy.transformers_format._TOKENS", NO_TOKENS)
    prepared, _, folder = exported(tmp_path, "token-classification", encoder)
    assert (folder / "modeling_supermax.py").exists() == own_code
    texts = [e.text for e in prepared.validation.examples]
    pipe = pipeline("token-classification", model=str(folder), trust_remote_code=own_code)
    assert list(pipe.model.config.id2label.values()) == tag_names(NAMES["token-classification"])
    batch = pipe.tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    real, loaded = batch["attention_mask"].bool(), load_exported(folder).model
    types = torch.zeros_like(batch["input_ids"])
    with torch.inference_mode():
        ours = loaded(Inputs(batch["input_ids"], batch["attention_mask"], types)).classes
        theirs = pipe.model(**batch).logits
    assert torch.allclose(ours[real], theirs[real], atol=1e-5)
    likely = theirs[0].softmax(-1).max(-1).values[1:-1]
    found = {each["index"]: each["score"] for each in pipe(texts[0], ignore_labels=[])}
    scores = [found[i] for i in sorted(found)]
    assert scores == pytest.approx(likely[: len(scores)].tolist(), abs=1e-5)


NO_TOKENS = {"classifier": "other", "prediction": "head"}


def test_both_heads_of_share(tmp_path: Path) -> None:
    prepared, examples, folder = exported(tmp_path, "share", "tiny-bert")
    check_classes(folder, examples, own_code=True)
    check_all_outputs(prepared, folder)
    auto = transformers.AutoModelForQuestionAnswering
    answering = auto.from_pretrained(folder, trust_remote_code=True).eval()
    with torch.inference_mode():
        ours = prepared.model(*first_batch(prepared))
        theirs = answering(**named(first_batch(prepared)))
    assert torch.allclose(ours.starts, theirs.start_logits, atol=1e-5)


@pytest.mark.parametrize("fusion", ["concat", "gated", "attention"])
def test_both_encoders_of_joint(tmp_path: Path, fusion: str) -> None:
    parts = {"evidence_encoder": {"name": "tiny-deberta"}, "fusion": {"name": fusion, "width": 48}}
    prepared, _, folder = exported(tmp_path, "joint", "tiny-bert", **parts)
    assert class_of(folder) == "SupermaxModel"
    check_all_outputs(prepared, folder)


def first_batch(prepared: Prepared) -> Any:
    data = prepared.validation
    return collate(data.views, prepared.pads, np.arange(len(data.views[-1]))).inputs


def named(inputs: Any) -> dict[str, torch.Tensor]:
    return {
        f"{prefix}{name}": value
        for prefix, its in zip(("", "evidence_"), inputs, strict=False)
        for name, value in
        (("input_ids", its.ids), ("attention_mask", its.mask), ("token_type_ids", its.types))
    }  # fmt: skip


def check_all_outputs(prepared: Prepared, folder: Path) -> None:
    model = transformers.AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
    inputs = first_batch(prepared)
    with torch.inference_mode():
        ours, theirs = prepared.model.eval()(*inputs), model(**named(inputs))
    assert torch.allclose(ours.classes, theirs.logits, atol=1e-5)
    assert torch.allclose(ours.starts, theirs.start_logits, atol=1e-5)
    assert torch.allclose(ours.ends, theirs.end_logits, atol=1e-5)


def test_a_class_with_other_weights_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a later transformers had renamed a layer."""
    module = "supermax.training.deploy.transformers_format._QUESTION_ANSWERING"
    monkeypatch.setattr(module, "answers")
    _, _, folder = exported(tmp_path, "evidence", "tiny-bert")
    assert class_of(folder) == "SupermaxForQuestionAnswering"
    load_exported(folder)


def test_a_class_that_predicts_otherwise_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tanh is not linear for states that are not made small."""
    families = "supermax.training.deploy.transformers_format._FAMILIES"
    family = _Family("bert.pooler.dense", "classifier", ("tanh",))
    monkeypatch.setattr(families, {"bert": family})
    _, examples, folder = exported(tmp_path, "criteria", "tiny-bert")
    assert class_of(folder) == "SupermaxForSequenceClassification"
    check_classes(folder, examples, own_code=True)


def test_an_export_of_an_earlier_version_can_be_loaded(tmp_path: Path) -> None:
    """Format 1 had the weights of Supermax, and nothing else in the root folder."""
    _, examples, folder = exported(tmp_path, "criteria", "tiny-bert", head={"pooling": "mean"})
    before = [p.probabilities for p in predict_examples(load_exported(folder), examples)]
    facts = json.loads((folder / "supermax.json").read_text())
    del facts["encoder_prefix"]
    old = ("encoder/", "model.safetensors")
    facts["files"] = {n: size for n, size in facts["files"].items() if n.startswith(old)}
    for path in folder.iterdir():
        if path.is_file() and path.name not in ("supermax.json", "model.safetensors"):
            path.unlink()
    (folder / "supermax.json").write_text(json.dumps(facts | {"format": 1}))
    after = predict_examples(load_exported(folder), examples)
    assert [p.probabilities for p in after] == before


def test_the_code_imports_torch_and_transformers_only() -> None:
    tree = ast.parse(Path(code).read_text())
    names = [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    names += [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
    roots = {name.partition(".")[0] for name in names}
    assert {"torch", "transformers"} < roots
    assert roots - {"torch", "transformers"} <= sys.stdlib_module_names


ALONE = """
import sys
sys.modules["supermax"] = None  # an import of it fails
from transformers import pipeline
pipe = pipeline("text-classification", model=sys.argv[1], trust_remote_code=True)
print(pipe({"text": "sleep", "text_pair": "we went home awake"}, top_k=None))
"""


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_process_that_cannot_import_supermax_predicts_the_same(
    tmp_path: Path, pooling: str
) -> None:
    _, _, folder = exported(tmp_path, "criteria", "tiny-deberta", head={"pooling": pooling})
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-W", "ignore", "-c", ALONE, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    scores = ast.literal_eval(done.stdout.splitlines()[-1])
    example = Example("1", "1", "we went home awake", "sleep")
    (ours,) = predict_examples(load_exported(folder), [example])
    assert ours.probabilities == pytest.approx({s["label"]: s["score"] for s in scores}, abs=1e-5)
