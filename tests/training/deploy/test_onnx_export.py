"""ONNX file: predicts the same in ONNX Runtime, and is not written if it does not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import transformers
from onnx import TensorProto, helper

from supermax.errors import UserError
from supermax.training.deploy import onnx_export as module
from supermax.training.deploy.export import load_exported
from supermax.training.deploy.onnx_export import TOLERANCE, export_onnx
from supermax.training.deploy.predict import predict_examples
from tests.training.deploy.test_transformers_format import exported
from tests.ui.cli.helping import sm

TEXTS = ("sleep", "we went home awake " * 5), ("mood", "a low day"), ("food", "it")


def run(path: Path, batch: dict[str, torch.Tensor]) -> list[Any]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = {each.name for each in session.get_inputs()}
    outputs: list[Any] = session.run(None, {n: batch[n].numpy() for n in names})
    return outputs


def tokens(folder: Path) -> dict[str, torch.Tensor]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    questions, texts = zip(*TEXTS, strict=True)
    found: dict[str, torch.Tensor] = tokenizer(
        list(questions), list(texts), padding=True, truncation="only_second", return_tensors="pt"
    )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["tiny-bert", "tiny-deberta", "tiny-modernbert"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_classes_in_onnx_runtime(tmp_path: Path, encoder: str, pooling: str) -> None:
    """Compared with transformers, on a padded batch of another length than the conversion's."""
    _, _, folder = exported(tmp_path, "criteria", encoder, head={"pooling": pooling})
    sm("export", str(folder), "--onnx")
    path = folder / "onnx" / "model.onnx"
    auto = transformers.AutoModelForSequenceClassification
    model = auto.from_pretrained(folder, trust_remote_code=True).eval()
    batch = tokens(folder)
    with torch.inference_mode():
        wanted = model(**batch).logits.numpy()
    (found,) = run(path, batch)
    assert found.shape == (3, 2)
    assert np.ptp(wanted[:, 0]) > 0.01
    assert np.allclose(found, wanted, atol=1e-5)
    assert load_exported(folder).label_names == ("no", "yes")  # a file more does no harm


@pytest.mark.slow
def test_numbers_and_answers_in_onnx_runtime(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    prepared, examples, folder = exported(tmp_path / "a", "regression", "tiny-roberta")
    export_onnx(folder, tmp_path / "numbers.onnx")
    values = [p.value for p in predict_examples(load_exported(folder), examples)]
    questions, texts = [e.question for e in examples], [e.text for e in examples]
    batch = prepared.tokenizers[0](questions, texts, padding=True, return_tensors="pt")
    (found,) = run(tmp_path / "numbers.onnx", batch)
    assert found[:, 0].tolist() == pytest.approx(values, rel=1e-6)

    _, _, folder = exported(tmp_path / "b", "evidence", "tiny-electra")
    export_onnx(folder, tmp_path / "answers.onnx")
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    batch = tokens(folder)
    with torch.inference_mode():
        wanted = model(**batch)
    starts, ends = run(tmp_path / "answers.onnx", batch)
    real = batch["attention_mask"].bool().numpy()
    assert np.allclose(starts[real], wanted.start_logits.numpy()[real], atol=1e-5)
    assert np.allclose(ends[real], wanted.end_logits.numpy()[real], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "encoder", "head"),
    [
        ("multilabel", "tiny-bert", {}),
        ("multilabel", "tiny", {"pooling": "attention", "depth": 2}),
        ("token-classification", "tiny", {}),
        ("token-classification", "tiny-deberta", {}),
    ],
)
def test_labels_and_classes_of_tokens_in_onnx_runtime(
    tmp_path: Path, agent: str, encoder: str, head: dict[str, Any]
) -> None:
    parts = {"head": head, "labels": {"threshold": 0.5}}
    _, _, folder = exported(tmp_path, agent, encoder, **parts)
    export_onnx(folder, tmp_path / "model.onnx")
    kind = "Token" if agent == "token-classification" else "Sequence"
    auto = getattr(transformers, f"AutoModelFor{kind}Classification")
    model = auto.from_pretrained(folder, trust_remote_code=True).eval()
    batch = tokens(folder)
    with torch.inference_mode():
        wanted = model(**batch).logits.numpy()
    (found,) = run(tmp_path / "model.onnx", batch)
    real = batch["attention_mask"].bool().numpy() if kind == "Token" else ...
    assert np.ptp(wanted[..., 0]) > 0.01
    assert np.allclose(found[real], wanted[real], atol=3e-5)


@pytest.mark.slow
def test_two_encoders_and_weights_beside_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_INLINE", 1000)
    parts = {"evidence_encoder": {"name": "tiny-deberta"}, "fusion": {"name": "attention"}}
    _, _, folder = exported(tmp_path, "joint", "tiny-bert", **parts)
    done = export_onnx(folder, tmp_path / "joint.onnx")
    assert done.difference < 1e-5
    assert {p.name for p in tmp_path.glob("*.onnx*")} == {"joint.onnx", "joint.onnx.data"}
    graph = onnx.load(tmp_path / "joint.onnx", load_external_data=False).graph
    assert [each.name for each in graph.output] == ["logits", "start_logits", "end_logits"]
    onnxruntime.InferenceSession(tmp_path / "joint.onnx", providers=["CPUExecutionProvider"])


def fake(change: float) -> Any:
    """Return a conversion whose file adds a constant to the logits of a linear head on one state.

    The head is set to ignore the states, so that a file without an encoder can predict the same.
    """

    def convert(graph: Any, loaded: Any, path: Path) -> None:
        inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
                  for name in graph.inputs[0]]  # fmt: skip
        output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2])
        with torch.no_grad():
            layer = loaded.model.class_head[-1]
            layer.weight.zero_()
            logits = (layer.bias + change).tolist()
        constants = [
            helper.make_tensor("ends", TensorProto.INT64, [1], [1]),
            helper.make_tensor("starts", TensorProto.INT64, [1], [0]),
            helper.make_tensor("two", TensorProto.INT64, [1], [2]),
            helper.make_tensor("values", TensorProto.FLOAT, [2], logits),
        ]
        nodes = [
            helper.make_node("Shape", ["input_ids"], ["shape"]),
            helper.make_node("Slice", ["shape", "starts", "ends"], ["batch_size"]),
            helper.make_node("Concat", ["batch_size", "two"], ["wanted"], axis=0),
            helper.make_node("Expand", ["values", "wanted"], ["logits"]),
        ]
        made = helper.make_graph(nodes, "fake", inputs, [output], constants)
        opset = [helper.make_opsetid("", 18)]
        onnx.save(helper.make_model(made, opset_imports=opset, ir_version=10), path)

    return convert


@pytest.mark.parametrize(
    ("change", "said"), [(2e-4, "differ by up to 2.0e-04"), (float("nan"), "up to nan")]
)
def test_a_file_that_predicts_otherwise_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: float, said: str
) -> None:
    _, _, folder = exported(tmp_path, "criteria", "tiny-bert")
    monkeypatch.setattr(module, "_convert", fake(change))
    with pytest.raises(UserError, match=said):
        export_onnx(folder, folder / "onnx" / "model.onnx")
    assert list((folder / "onnx").iterdir()) == []
    monkeypatch.setattr(module, "_convert", fake(TOLERANCE / 10))
    export_onnx(folder, folder / "onnx" / "model.onnx")
    assert [path.name for path in (folder / "onnx").iterdir()] == ["model.onnx"]


@pytest.mark.parametrize(("long_texts", "said"), [("cut", False), ("windows", True)])
def test_one_window_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long_texts: str, said: bool
) -> None:
    _, _, folder = exported(tmp_path, "criteria", "tiny-bert", text={"long_texts": long_texts})
    monkeypatch.setattr(module, "_convert", fake(0.0))
    lines = sm("export", str(folder), "--onnx").splitlines()
    note = (
        "ONNX Runtime and transformers predict one window of up to 32 tokens at a time; "
        "`supermax predict` reads all windows of a longer text."
    )
    assert (note in lines) == said


def test_an_encoder_that_cannot_be_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, folder = exported(tmp_path, "criteria", "tiny-bert")

    def fail(*_: Any, **__: Any) -> None:
        raise torch.onnx.errors.UnsupportedOperatorError("a::new_kernel", 18, None)

    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(UserError, match="'bert' cannot be converted to ONNX by torch"):
        export_onnx(folder, tmp_path / "model.onnx")
    assert not list(tmp_path.glob("*.onnx"))


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match="pip install onnxscript"):
        module.check_packages()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "Name the folder of the model"),
        (("nowhere",), "there is no such folder"),
        (("FOLDER", "-o", "model.bin"), "does not end in .onnx"),
        (("FOLDER", "-o", "old.onnx"), "exists already. Name another with -o, or add --force."),
    ],
)
def test_wrong_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.onnx").touch()
    if "FOLDER" in args:
        exported(tmp_path, "criteria", "tiny-bert")
    words = [str(tmp_path / "model") if word == "FOLDER" else word for word in args]
    done = sm("export", *words, "--onnx", code=2)
    assert said in done
    assert "Loading" not in done
