"""Encoders that come with code of their own run only with a permission for that encoder."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from supermax.errors import UserError
from supermax.search.settings import Settings
from supermax.tasks.objective import encoder_title
from supermax.tasks.shapes import encoder_of
from supermax.tasks.space_fitting import usable
from supermax.training.data.examples import Example
from supermax.training.deploy.adapter import base_model
from supermax.training.deploy.export import export, load_exported
from supermax.training.deploy.exported import Description
from supermax.training.deploy.predict import predict_examples
from supermax.training.loop import train
from supermax.training.models.encoders import depth_of, load_encoder, untrained
from supermax.training.models.sources import find
from supermax.training.models.tokenizers import tokenizer_for
from supermax.training.prepare import max_input_length
from supermax.training.steps.batches import collate
from tests.training.corpora import Quiet, config, corpus_for, ready
from tests.training.deploy.cards import run_programs
from tests.ui.cli.helping import sm

CONFIGURATION = """
import os
from transformers import PretrainedConfig

class OwnConfig(PretrainedConfig):
    model_type = "neobert"

    def __init__(self, vocab_size=2048, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                 intermediate_size=64, max_length=96, pad_token_id=0, **more):
        super().__init__(pad_token_id=pad_token_id, **more)
        open(os.environ["WITNESS"], "w").close()
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.num_hidden_layers, self.num_attention_heads = num_hidden_layers, num_attention_heads
        self.intermediate_size, self.max_length = intermediate_size, max_length
"""
MODEL = """
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from .configuration_own import OwnConfig

class OwnModel(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.encoder = nn.Embedding(config.vocab_size, config.hidden_size)
        self.transformer_encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(config.hidden_size, config.num_attention_heads,
                                       config.intermediate_size, 0.0, batch_first=True)
            for _ in range(config.num_hidden_layers))
        self.post_init()

    def forward(self, input_ids, attention_mask=None, **more):
        states = self.encoder(input_ids)
        for layer in self.transformer_encoder:
            states = layer(states, src_key_padding_mask=attention_mask == 0)
        return BaseModelOutput(last_hidden_state=states)
"""


@pytest.fixture(scope="module", autouse=True)
def _modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let transformers copy code into a folder of the tests instead of the user's cache."""
    modules = tmp_path_factory.mktemp("modules")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(modules))
        patch.syspath_prepend(str(modules))
        yield


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder like that of NeoBERT: configuration, weights, tokenizer, and code."""
    monkeypatch.setenv("WITNESS", str(tmp_path / "code-has-run"))
    folder = tmp_path / "own-encoder"
    folder.mkdir()
    (folder / "configuration_own.py").write_text(f"# {tmp_path}\n{CONFIGURATION}")
    (folder / "modeling_own.py").write_text(f"# {tmp_path}\n{MODEL}")
    classes = {"AutoConfig": "configuration_own.OwnConfig", "AutoModel": "modeling_own.OwnModel"}
    facts = {"model_type": "neobert", "auto_map": classes, "architectures": ["OwnModel"]}
    (folder / "config.json").write_text(json.dumps(facts))
    tokenizer_for(find("tiny-bert"), ["some words"], tmp_path).save_pretrained(folder)
    made = untrained(find(f"trust_remote_code:{folder}", weights=False).config)
    save_file(made.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "code-has-run").unlink()
    return folder


def test_without_permission_no_code_runs_and_the_risk_is_said(own: Path) -> None:
    with pytest.raises(UserError) as raised:
        find(str(own))
    message = str(raised.value)
    assert "could do whatever you can do on this machine" in message
    assert not (own.parent / "code-has-run").exists()
    advised = message.partition("name it '")[2].partition("'")[0]
    source = find(advised)
    assert load_encoder(source, source.config).device.type == "cpu"
    assert (own.parent / "code-has-run").exists()
    written = message.partition("settings file ")[2].rstrip(".")
    assert written == f"{{name: {own}, trust_remote_code: true}}"
    given = {"agent": "criteria", "trials": 1, "epochs": 1}
    settings = Settings(**given, models=[{"name": str(own), "trust_remote_code": True}, "tiny"])
    assert settings.models == [advised, "tiny"]


def test_the_permission_is_for_one_encoder(own: Path) -> None:
    found, missing = usable([f"trust_remote_code:{own}", str(own)])
    assert list(found) == [f"trust_remote_code:{own}"]
    assert "without your permission" in missing[str(own)]
    given = {"agent": "criteria", "trials": 1, "epochs": 1}
    assert Settings(**given, models=[{"name": "tiny", "trust_remote_code": False}]).models == [
        "tiny"
    ]
    with pytest.raises(ValueError, match="trust_remote_code: true"):
        Settings(**given, models=[{"name": "tiny", "trust_remote_code": "yes"}])


def test_weights_are_those_of_the_folder_and_sizes_are_counted(own: Path) -> None:
    source = find(f"trust_remote_code:{own}")
    encoder = load_encoder(source, source.config)
    saved = load_file(own / "model.safetensors")
    assert saved.keys() == dict(encoder.named_parameters()).keys()
    assert all(torch.equal(p, saved[n]) for n, p in encoder.named_parameters())
    assert encoder_of(source).parameters == sum(p.numel() for p in saved.values())
    assert depth_of(encoder)["encoder.weight"] == 0
    assert set(depth_of(encoder).values()) == {0, 1, 2}
    assert max_input_length(source) == 96


def test_it_trains_and_its_export_needs_the_permission_again(tmp_path: Path, own: Path) -> None:
    name = f"trust_remote_code:{own}"
    wanted = config(encoder={"name": name, "frozen_layers": 1}, text={"max_length": 256})
    one = ready(tmp_path / "cache", wanted)
    assert encoder_title(wanted) == "own-encoder"
    assert not one.model.encoders[0].packs
    assert one.train.views[0].lengths.max() <= 96
    result = train(one, Quiet())
    export(tmp_path / "out", one, result.weights, Description(("no", "yes"), None, {}, "x"))
    with pytest.raises(UserError, match="--trust-remote-code"):
        load_exported(tmp_path / "out")
    loaded = load_exported(tmp_path / "out", trust_remote_code=True)
    examples = one.validation.examples
    for prediction in predict_examples(loaded, examples):
        expected = result.evaluation.probabilities[prediction.id]
        assert prediction.probabilities is not None
        assert [*prediction.probabilities.values()] == pytest.approx(expected, abs=1e-5)
    texts = [["text", "question"], *([e.text, e.question] for e in examples)]
    _, alone = run_programs(tmp_path / "out", texts)
    with (tmp_path / "predictions.csv").open(newline="") as file:
        for example, row in zip(examples, csv.DictReader(file), strict=True):
            expected = result.evaluation.probabilities[example.id]
            assert float(row["p_yes"]) == pytest.approx(expected[1], abs=1e-5)
    inputs = collate(one.validation.views, one.pads, np.arange(4)).inputs[0]
    with torch.inference_mode():
        found = alone["encoder"](input_ids=inputs.ids, attention_mask=inputs.mask)
        wanted_states = one.model.encoders[0].eval()(inputs)
    torch.testing.assert_close(found.last_hidden_state, wanted_states, rtol=0, atol=1e-5)


@pytest.mark.parametrize("agent", ["multilabel", "token-classification"])
def test_no_class_of_transformers_is_exported_for_it(
    tmp_path: Path, own: Path, agent: str
) -> None:
    encoder, labels = {"name": f"trust_remote_code:{own}"}, {"threshold": 0.5}
    one = ready(tmp_path / "cache", config(agent, encoder=encoder, labels=labels))
    result, names = train(one, Quiet()), corpus_for(agent, 1).label_names
    export(tmp_path / "out", one, result.weights, Description(names, None, {}, "x"))
    facts = json.loads((tmp_path / "out" / "encoder" / "config.json").read_text())
    assert facts["architectures"] == ["OwnModel"]
    card = (tmp_path / "out" / "README.md").read_text()
    assert "pipeline(" not in card
    assert str(tmp_path) not in card
    assert f"# {agent} on own-encoder" in card
    assert len(run_programs(tmp_path / "out")) == 2
    loaded = load_exported(tmp_path / "out", trust_remote_code=True)
    examples = one.validation.examples
    assert len(predict_examples(loaded, examples)) == len(examples)


DOUBLED = """
from transformers import ModernBertModel

class OwnModel(ModernBertModel):
    def forward(self, *args, **more):
        outputs = super().forward(*args, **more)
        outputs.last_hidden_state = 2 * outputs.last_hidden_state
        return outputs
"""


@pytest.fixture
def doubled(tmp_path: Path) -> Path:
    """Return a folder of an encoder that calls itself ModernBERT, with its configuration and its
    weights, and whose own code computes other states."""
    folder = tmp_path / "doubled"
    tiny = find("tiny")
    untrained(tiny.config).save_pretrained(folder)
    tokenizer_for(tiny, ["some words"], tmp_path).save_pretrained(folder)
    (folder / "modeling_own.py").write_text(f"# {tmp_path}\n{DOUBLED}")
    facts = json.loads((folder / "config.json").read_text())
    facts["auto_map"] = {"AutoModel": "modeling_own.OwnModel"}
    (folder / "config.json").write_text(json.dumps(facts))
    return folder


@pytest.mark.parametrize("agent", ["criteria", "token-classification"])
def test_own_code_under_the_name_of_a_known_encoder(
    tmp_path: Path, doubled: Path, agent: str
) -> None:
    """None of the classes and shortcuts for ModernBERT applies, in training and in the export."""
    encoder = {"name": f"trust_remote_code:{doubled}", "dropout": None, "attention_dropout": None}
    one = ready(tmp_path / "cache", config(agent, encoder=encoder))
    own, stock = one.model.encoders[0], load_encoder(find(str(doubled)), find(str(doubled)).config)
    assert not own.packs
    ids = torch.arange(12).view(1, -1)
    with torch.inference_mode():
        states = [m.eval()(input_ids=ids).last_hidden_state for m in (own.model, stock)]
    torch.testing.assert_close(states[0], 2 * states[1])
    if one.model.token_head is not None:
        assert [name for name, _ in one.model.token_head.named_children()] == [
            "dropout",
            "classifier",
        ]
    result, names = train(one, Quiet()), corpus_for(agent, 1).label_names
    export(tmp_path / "out", one, result.weights, Description(names, None, {}, "x"))
    loaded = load_exported(tmp_path / "out", trust_remote_code=True)
    assert type(loaded.model.encoders[0].model).__name__ == "OwnModel"
    batch = collate(one.validation.views, one.pads, np.arange(4)).inputs
    with torch.inference_mode():
        found, wanted = (m.eval()(*batch).classes for m in (loaded.model, one.model))
    torch.testing.assert_close(found, wanted)
    _, alone = run_programs(tmp_path / "out")
    assert type(alone["encoder"]).__name__ == "OwnModel"


def test_no_code_runs_later_on_without_permission(tmp_path: Path, doubled: Path) -> None:
    """Nor where a class of transformers has the same name and weights, and takes its place."""
    one = ready(tmp_path / "cache", config(encoder={"name": str(doubled)}), n=4)
    assert type(one.model.encoders[0].model).__module__.startswith("transformers.")
    weights = one.model.state_dict()
    export(tmp_path / "out", one, weights, Description(("no", "yes"), None, {}, "x"))
    assert "auto_map" not in (tmp_path / "out" / "encoder" / "config.json").read_text()
    place = tmp_path / "out" / "encoder"
    shutil.copyfile(doubled / "config.json", place / "config.json")  # as a stranger might
    shutil.copyfile(doubled / "modeling_own.py", place / "modeling_own.py")
    facts = json.loads((tmp_path / "out" / "supermax.json").read_text())
    facts["files"]["encoder/config.json"] = (place / "config.json").stat().st_size
    (tmp_path / "out" / "supermax.json").write_text(json.dumps(facts))
    loaded = load_exported(tmp_path / "out")
    assert type(loaded.model.encoders[0].model).__module__.startswith("transformers.")


@pytest.mark.slow
def test_its_onnx_file_needs_the_permission_and_predicts_the_same(
    tmp_path: Path, own: Path
) -> None:
    one = ready(tmp_path / "cache", config(encoder={"name": f"trust_remote_code:{own}"}))
    result, out = train(one, Quiet()), tmp_path / "out"
    export(out, one, result.weights, Description(("no", "yes"), None, {}, "x"))
    assert "again with --trust-remote-code" in sm("export", str(out), "--onnx", code=2)
    sm("export", str(out), "--onnx", "--trust-remote-code")  # as advised
    logits = torch.tensor(run_programs(out)[-1]["outputs"][0][0])
    loaded = load_exported(out, trust_remote_code=True)
    (ours,) = predict_examples(loaded, [Example("1", "1", "A text.", "A question?")])
    assert ours.probabilities is not None
    expected = [*ours.probabilities.values()]
    assert logits.softmax(-1).tolist() == pytest.approx(expected, abs=1e-5)


def test_an_adapter_needs_the_permission_too(tmp_path: Path, own: Path) -> None:
    adapter = {"name": "lora", "rank": 4}
    encoder = {"name": f"trust_remote_code:{own}"}
    one = ready(tmp_path / "cache", config(encoder=encoder, adapter=adapter))
    result, out = train(one, Quiet()), tmp_path / "out"
    export(out, one, result.weights, Description(("no", "yes"), None, {}, "x"), adapter=True)
    for load in (load_exported, base_model):
        with pytest.raises(UserError, match=r"trust_remote_code=True"):
            load(out)
    assert base_model(out, trust_remote_code=True).class_head is not None
    assert [n for n in run_programs(out) if isinstance(n.get("model"), PeftModel)]
    loaded = load_exported(out, trust_remote_code=True)
    for prediction in predict_examples(loaded, one.validation.examples):
        expected = result.evaluation.probabilities[prediction.id]
        assert prediction.probabilities is not None
        assert [*prediction.probabilities.values()] == pytest.approx(expected, abs=1e-5)
