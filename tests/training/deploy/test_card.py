"""Programs of the model card, compared with the model that was exported."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from supermax.training.data.examples import Example
from supermax.training.deploy.card import with_onnx
from supermax.training.deploy.export import load_exported
from supermax.training.deploy.exported import CARD, ONNX, read_facts
from supermax.training.deploy.onnx_export import export_onnx
from supermax.training.deploy.predict import predict_examples
from supermax.training.models.assembly import Encoder, Inputs, Outputs
from supermax.training.prepare import Prepared
from tests.training.deploy.cards import run_programs
from tests.training.deploy.test_transformers_format import exported, first_batch

ENCODERS = ("encoder", "evidence_encoder")
FORMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "class of transformers": ("criteria", "tiny-bert", {}),
    "modeling_supermax.py": ("criteria", "tiny-roberta", {"head": {"pooling": "mean"}}),
    "numbers": ("regression", "tiny", {}),
    "sets of labels": ("multilabel", "tiny-electra", {"labels": {"threshold": 0.5}}),
    "entities": ("token-classification", "tiny", {}),
    "answers": ("evidence", "tiny-bert", {}),
    "two encoders": ("joint", "tiny-bert", {"evidence_encoder": {"name": "tiny-deberta"}}),
}
"""Agent and encoder of an export, and parts of its configuration."""


def table(examples: Sequence[Example]) -> list[list[str]]:
    return [["text", "question"], *([e.text, e.question] for e in examples)]


def outputs(prepared: Prepared, inputs: Sequence[Inputs]) -> Outputs:
    with torch.inference_mode():
        found: Outputs = prepared.model.eval()(*inputs)
    return found


def arguments(encoder: Encoder, inputs: Inputs, prefix: str = "") -> dict[str, Tensor]:
    given = {"input_ids": inputs.ids, "attention_mask": inputs.mask}
    given |= {"token_type_ids": inputs.types} if encoder.takes_types else {}
    return {prefix + name: values for name, values in given.items()}


def check_encoders(prepared: Prepared, names: Mapping[str, Any]) -> None:
    """Compare the states of the encoders that a program loads."""
    batch = first_batch(prepared)
    for variable, encoder, inputs in zip(ENCODERS, prepared.model.encoders, batch, strict=False):
        with torch.inference_mode():
            found = names[variable](**arguments(encoder, inputs)).last_hidden_state
            expected = encoder.eval()(inputs)
        real = inputs.mask.bool()
        torch.testing.assert_close(found[real], expected[real], rtol=0, atol=2e-5)


def check_logits(prepared: Prepared, model: Any) -> None:
    """Compare the logits, and a number in the unit of the data."""
    batch, given = first_batch(prepared), {}
    for prefix, encoder, inputs in zip(
        ("", "evidence_"), prepared.model.encoders, batch, strict=False
    ):
        given |= arguments(encoder, inputs, prefix)
    ours = outputs(prepared, batch)
    classes = ours.classes
    if (unit := prepared.model.unit) is not None and classes is not None:
        classes = unit.mean + unit.deviation * classes
    with torch.inference_mode():
        theirs = model(**given)
    parts = {"logits": classes, "start_logits": ours.starts, "end_logits": ours.ends}
    for name, own in parts.items():
        if own is not None:
            real = batch[-1].mask.bool() if own.shape[:2] == batch[-1].ids.shape else ...
            torch.testing.assert_close(theirs[name][real], own[real], rtol=1e-5, atol=2e-5)


def check_pipeline(pipe: Any, folder: Path, examples: Sequence[Example]) -> None:
    """Compare a pipeline with the predictions that Supermax's program has written."""
    with (folder.parent / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    given = [{"text": e.question, "text_pair": e.text} for e in examples]
    for row, scores in zip(rows, pipe(given, top_k=None, truncation="only_second"), strict=True):
        for each in scores:
            column = "value" if each["label"] == "value" else f"p_{each['label']}"
            assert each["score"] == pytest.approx(float(row[column]), rel=1e-5, abs=2e-5)


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words:UserWarning")
@pytest.mark.parametrize("form", FORMS)
def test_programs_predict_as_supermax_does(tmp_path: Path, form: str) -> None:
    prepared, examples, folder = exported(tmp_path, *FORMS[form][:2], **FORMS[form][2])
    own_code = (folder / "modeling_supermax.py").exists()
    assert ("Read `modeling_supermax.py`" in (folder / CARD).read_text()) == own_code
    examples = [*(examples or prepared.validation.examples)]
    written, whole, alone = run_programs(folder, table(examples))
    assert written["columns"].text == "text"
    check_encoders(prepared, alone)
    check_logits(prepared, getattr(whole["model"], "model", whole["model"]))
    if prepared.config.agent in ("criteria", "regression", "multilabel"):
        check_pipeline(whole["model"], folder, examples)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["class of transformers", "numbers", "two encoders"])
def test_the_program_of_the_onnx_file_predicts_as_supermax_does(tmp_path: Path, form: str) -> None:
    _, _, folder = exported(tmp_path, *FORMS[form][:2], **FORMS[form][2])
    for _ in range(2):  # the card gets the program once
        export_onnx(folder, folder / ONNX)
    assert (folder / CARD).read_text().count(
        f'InferenceSession("path/to/this/folder/{ONNX}")'
    ) == 1
    logits = torch.tensor(run_programs(folder)[-1]["outputs"][0][0])
    (own,) = predict_examples(load_exported(folder), [Example("1", "1", "A text.", "A question?")])
    if own.value is not None:
        assert logits.tolist() == pytest.approx([own.value], rel=1e-6)
    else:
        assert own.probabilities is not None
        found = logits.softmax(-1).tolist()
        assert found == pytest.approx([*own.probabilities.values()], abs=1e-5)


def test_a_card_that_was_rewritten_gets_the_program_at_its_end(tmp_path: Path) -> None:
    _, _, folder = exported(tmp_path, "criteria", "tiny-bert")
    facts = read_facts(folder)
    text = with_onnx("# My model\n", facts, ["encoder"], 32)
    assert text.startswith("# My model\n\nWith ONNX Runtime")
    assert text.endswith("print(outputs)\n```\n")
    assert with_onnx(text, facts, ["encoder"], 32) == text
    card = with_onnx((folder / CARD).read_text(), facts, ["encoder"], 32)
    assert card.index("## How to load it") < card.index(ONNX) < card.index("## Configuration")
