"""Export of models with a LoRA adapter: merged, or for peft with the heads. A head of two layers
and trained pooling show whether any part is lost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel, AutoModelForSequenceClassification

from supermax.errors import UserError
from supermax.training.config import Config
from supermax.training.deploy.adapter import base_model
from supermax.training.deploy.export import export, load_exported
from supermax.training.deploy.exported import Description, read_facts
from supermax.training.deploy.onnx_export import export_onnx
from supermax.training.deploy.push import parts_of
from supermax.training.loop import train
from supermax.training.models.assembly import Model
from supermax.training.prepare import Prepared
from supermax.training.steps.batches import collate
from tests.training.corpora import Quiet, config, logits, ready
from tests.training.deploy.cards import run_programs
from tests.ui.cli.helping import sm

HEADS: dict[str, Any] = {
    "head": {"depth": 2, "pooling": "attention"},
    "adapter": {"name": "lora", "rank": 4, "dropout": 0.1},
    "optim": {"lr": 1e-2},
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of two encoders with weights."""
    folder, found = tmp_path_factory.mktemp("bases"), {}
    for name in ("tiny-bert", "tiny-distilbert"):
        prepared = ready(folder / "cache", config(encoder={"name": name}), n=12)
        put(folder / name, prepared, prepared.model.state_dict())
        found[name] = str(folder / name / "encoder")
    return found


def put(folder: Path, prepared: Prepared, weights: dict[str, Tensor], **how: bool) -> Path:
    labels = () if prepared.config.agent == "regression" else ("no", "yes")
    export(folder, prepared, weights, Description(labels, None, {}, "abc"), **how)
    return folder


def wanted_for(bases: dict[str, str], agent: str = "criteria", **parts: Any) -> Config:
    other = {"evidence_encoder": {"name": bases["tiny-distilbert"]}} if agent == "joint" else {}
    return config(agent, encoder={"name": bases["tiny-bert"]}, **{**HEADS, **other, **parts})


def trained(cache: Path, wanted: Config) -> tuple[Prepared, dict[str, Tensor]]:
    prepared = ready(cache, wanted, n=12)
    return prepared, train(prepared, Quiet()).weights


@pytest.mark.parametrize("agent", ["criteria", "joint", "regression"])
def test_a_merged_model_predicts_as_the_trained_one(
    tmp_path: Path, bases: dict[str, str], agent: str
) -> None:
    prepared, weights = trained(tmp_path / "cache", wanted_for(bases, agent))
    expected = logits(prepared.model, prepared)
    loaded = load_exported(put(tmp_path / "model", prepared, weights))
    assert loaded.model.unit == prepared.model.unit
    assert not [name for name in loaded.model.state_dict() if "lora" in name or "base" in name]
    torch.testing.assert_close(logits(loaded.model, prepared), expected, rtol=0, atol=1e-5)
    assert torch.equal(logits(prepared.model, prepared), expected)
    encoder = AutoModel.from_pretrained(tmp_path / "model" / "encoder", add_pooling_layer=False)
    inputs = collate(prepared.train.views, prepared.pads, prepared.train.chosen[:3]).inputs[0]
    ours: Any = prepared.model.encoders[0].model
    given = {"input_ids": inputs.ids, "attention_mask": inputs.mask}
    with torch.inference_mode():
        states, same = (each.eval()(**given).last_hidden_state for each in (encoder, ours))
    torch.testing.assert_close(states, same, rtol=0, atol=1e-5)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_transformers_loads_a_merged_model_as_a_whole(
    tmp_path: Path, bases: dict[str, str], pooling: str
) -> None:
    """Without peft: as a class of transformers, or with the code that comes along."""
    linear = wanted_for(bases, head={"pooling": pooling, "depth": 1})
    prepared, weights = trained(tmp_path / "cache", linear)
    folder = put(tmp_path / "model", prepared, weights)
    code = (folder / "modeling_supermax.py").exists()
    assert code == (pooling == "mean")
    model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=code)
    inputs = collate(prepared.train.views, prepared.pads, prepared.train.chosen[:6]).inputs[0]
    with torch.inference_mode():
        found = model.eval()(
            input_ids=inputs.ids, attention_mask=inputs.mask, token_type_ids=inputs.types
        ).logits
    expected = logits(prepared.model, prepared)
    torch.testing.assert_close(found.flatten(), expected, rtol=0, atol=2e-5)


def test_an_adapter_alone_is_uploaded_but_not_converted_to_onnx(
    tmp_path: Path, bases: dict[str, str]
) -> None:
    prepared, weights = trained(tmp_path / "cache", wanted_for(bases))
    folder = put(tmp_path / "model", prepared, weights, adapter=True)
    parts = parts_of(folder)
    assert {"adapter_config.json", "adapter_model.safetensors", "README.md"} < {*parts.files}
    assert parts.others == ()
    assert ModelCard.load(folder / "README.md").data.library_name == "peft"
    said = sm("export", str(folder), "--onnx", code=2)
    assert "holds an adapter without the weights of its encoder" in said
    assert "refit" in said
    assert "Loading" not in said
    with pytest.raises(UserError, match="without --adapter"):
        export_onnx(folder, tmp_path / "model.onnx")


@pytest.mark.parametrize("agent", ["criteria", "joint", "regression"])
def test_peft_loads_adapter_and_heads(tmp_path: Path, bases: dict[str, str], agent: str) -> None:
    prepared, weights = trained(tmp_path / "cache", wanted_for(bases, agent))
    expected = logits(prepared.model, prepared)
    folder = put(tmp_path / "model", prepared, weights, adapter=True)
    saved = json.loads((folder / "adapter_config.json").read_text())["modules_to_save"]
    heads = {"regression": {"number_head"}, "criteria": {"class_head"}}
    assert set(saved) >= heads.get(agent, {"class_head", "span_head", "fusion"})
    base = base_model(folder)
    assert not torch.allclose(logits(base, prepared), expected, atol=1e-2)
    for model in (
        peft.PeftModel.from_pretrained(base, str(folder)),  # type: ignore[arg-type]
        load_exported(folder).model,
    ):
        torch.testing.assert_close(logits(model, prepared), expected, rtol=0, atol=1e-5)
    assert load_exported(folder).model.unit == prepared.model.unit
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert size < 0.5 * 4 * sum(p.numel() for p in prepared.model.parameters())


def test_peft_finds_minilm_on_the_hub(tmp_path: Path, bases: dict[str, str]) -> None:
    """`minilm` is a name of this package alone; `base_model` finds it in the package installed."""
    prepared, weights = trained(tmp_path / "cache", wanted_for(bases))
    prepared.sources = tuple(replace(source, name="minilm") for source in prepared.sources)
    folder = put(tmp_path / "model", prepared, weights, adapter=True)
    for part in (folder, folder / "encoder"):
        base = peft.PeftConfig.from_pretrained(str(part)).base_model_name_or_path
        assert base == "sentence-transformers/all-MiniLM-L6-v2"
    assert read_facts(folder)["base"]["encoders"] == ["minilm"]


def test_peft_alone_loads_the_encoder(tmp_path: Path, bases: dict[str, str]) -> None:
    prepared, weights = trained(tmp_path / "cache", wanted_for(bases))
    folder = put(tmp_path / "model", prepared, weights, adapter=True)
    encoder = peft.AutoPeftModelForFeatureExtraction.from_pretrained(str(folder / "encoder"))
    inputs = collate(prepared.train.views, prepared.pads, prepared.train.chosen[:3]).inputs[0]
    given = {"input_ids": inputs.ids, "attention_mask": inputs.mask}
    ours: Any = prepared.model.encoders[0].model
    with torch.inference_mode():
        states, same = (each.eval()(**given).last_hidden_state for each in (encoder, ours))
    torch.testing.assert_close(states, same, rtol=0, atol=1e-5)


@pytest.mark.parametrize("lost", ["class_head", "pooling", "lora_A"])
def test_a_lost_part_is_an_error(tmp_path: Path, bases: dict[str, str], lost: str) -> None:
    prepared, weights = trained(tmp_path / "cache", wanted_for(bases))
    folder = put(tmp_path / "model", prepared, weights, adapter=True)
    file = folder / "adapter_model.safetensors"
    save_file({n: w for n, w in load_file(file).items() if lost not in n}, file)
    facts = json.loads((folder / "supermax.json").read_text())
    facts["files"][file.name] = file.stat().st_size
    (folder / "supermax.json").write_text(json.dumps(facts))
    with pytest.raises(UserError, match=f"Missing or unexpected weights: .*{lost}"):
        load_exported(folder)


def test_an_adapter_of_other_weights_is_refused(tmp_path: Path, bases: dict[str, str]) -> None:
    own = tmp_path / "own"
    AutoModel.from_pretrained(bases["tiny-bert"]).save_pretrained(own)
    for path in Path(bases["tiny-bert"]).iterdir():
        if not (own / path.name).exists():
            (own / path.name).write_bytes(path.read_bytes())
    wanted = wanted_for({**bases, "tiny-bert": str(own)})
    prepared, weights = trained(tmp_path / "cache", wanted)
    folder = put(tmp_path / "model", prepared, weights, adapter=True)
    assert load_exported(folder).config == wanted
    model = AutoModel.from_pretrained(own)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[5] += 1e-4
    model.save_pretrained(own)
    with pytest.raises(UserError, match=r"trained on other weights of .*own than are there now"):
        load_exported(folder)


def test_what_cannot_be_exported_as_an_adapter(tmp_path: Path, bases: dict[str, str]) -> None:
    without = ready(tmp_path, wanted_for(bases, adapter={"name": "none"}), n=4)
    with pytest.raises(UserError, match=r"has no adapter .*leave --adapter out"):
        put(tmp_path / "model", without, without.model.state_dict(), adapter=True)
    untrained = ready(tmp_path, replace_encoder(wanted_for(bases), "tiny-bert"), n=4)
    weights = untrained.model.saved_state()
    with pytest.raises(UserError, match=r"'tiny-bert' are random.* Leave --adapter out"):
        put(tmp_path / "model", untrained, weights, adapter=True)
    assert not (tmp_path / "model").exists()
    merged = load_exported(put(tmp_path / "model", untrained, weights))  # as advised
    found = logits(merged.model, untrained)
    torch.testing.assert_close(found, logits(untrained.model, untrained), rtol=0, atol=1e-5)


def replace_encoder(wanted: Config, name: str) -> Config:
    return wanted.model_copy(update={"encoder": wanted.encoder.model_copy(update={"name": name})})


def test_a_whole_model_has_no_base(tmp_path: Path, bases: dict[str, str]) -> None:
    prepared = ready(tmp_path / "cache", wanted_for(bases), n=4)
    folder = put(tmp_path / "model", prepared, prepared.model.state_dict())
    with pytest.raises(UserError, match="holds a whole model, and no adapter"):
        base_model(folder)


def test_the_programs_of_the_card_run(tmp_path: Path, bases: dict[str, str]) -> None:
    prepared, weights = trained(tmp_path / "cache", wanted_for(bases))
    folder = put(tmp_path / "model", prepared, weights, adapter=True)
    _, whole, encoder = run_programs(folder)
    assert isinstance(whole["base"], Model)
    assert encoder["encoder"].peft_config
    found, expected = (logits(m, prepared) for m in (whole["model"], prepared.model))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_an_older_version_says_that_it_cannot_read_it(
    tmp_path: Path, bases: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = ready(tmp_path / "cache", wanted_for(bases), n=4)
    folder = put(tmp_path / "model", prepared, prepared.model.saved_state(), adapter=True)
    monkeypatch.setattr("supermax.training.deploy.exported.FORMAT", 1)
    with pytest.raises(UserError, match=r"newer Supermax .format 2; this one reads up to 1"):
        load_exported(folder)
