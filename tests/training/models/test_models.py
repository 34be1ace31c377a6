"""Every encoder family, pooling, head and fusion; freezing, depths, recomputed activations."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from supermax.errors import UserError
from supermax.training.loop import train
from supermax.training.models import architectures, sources
from supermax.training.models.assembly import Model
from supermax.training.models.encoders import (
    check_dropouts,
    depth_of,
    dropout_keys,
    layer_list,
    load_encoder,
    outline,
    prepared_config,
    untrained,
)
from supermax.training.models.sources import find, find_all
from supermax.training.models.tokenizers import tokenizer_for
from supermax.training.prepare import max_input_length
from supermax.training.steps.batches import by_length, collate, micro_batches, order
from supermax.training.steps.step import loss_denominators, loss_of
from tests import ROOT
from tests.few import a_few
from tests.training.corpora import Quiet, config, ready

FAMILIES = sorted(set(architectures.TINY) - {"tiny"})
AGENTS = ["criteria", "evidence", "share", "joint", "token-classification"]


def gradients(ready_one: Any, micro: int) -> dict[str, torch.Tensor]:
    """The gradients of one effective batch, taken in micro-batches of this size, in float64."""
    torch.manual_seed(0)
    model = ready_one.model.double().train()
    model.zero_grad(set_to_none=True)
    data = ready_one.train
    size = ready_one.config.train.effective_batch
    indices = order(data.lengths, size, 1, 0)[0]
    denominators = loss_denominators(*data.targets(indices), ready_one.step.weights)
    for some in micro_batches(indices, micro):
        batch = collate(data.views, ready_one.pads, data.rows(some))
        loss = loss_of(
            model(*batch.inputs), batch, denominators, ready_one.config, ready_one.step.weights
        )
        loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


LOSSES = ["cross_entropy", "label_smoothing", "focal"]
BALANCES = ["none", "weighted", "effective_number"]


CASES = [
    *(("share", loss, balance) for loss in LOSSES for balance in BALANCES),
    *((agent, loss, "weighted") for loss in LOSSES for agent in AGENTS if agent != "share"),
]


@pytest.mark.parametrize(
    ("agent", "loss", "balance"),
    a_few(CASES, 2),
)
def test_gradients_do_not_depend_on_the_micro_batch(
    tmp_path: Path, agent: str, loss: str, balance: str
) -> None:
    one = ready(tmp_path, config(agent, loss={"name": loss, "balance": balance}))
    whole = gradients(one, 12)
    assert any(g.abs().max() > 1e-6 for g in whole.values())
    for micro in (1, 5):  # 12 = 5 + 5 + 2: ragged
        for name, gradient in gradients(one, micro).items():
            assert torch.allclose(gradient, whole[name], rtol=0, atol=1e-10), (name, micro)


def test_a_plain_mean_over_micro_batches_would_be_caught(tmp_path: Path) -> None:
    one = ready(tmp_path, config(loss={"balance": "weighted"}))
    whole = gradients(one, 12)
    data = one.train
    indices = order(data.lengths, 12, 1, 0)[0]
    one.model.zero_grad(set_to_none=True)
    parts = list(micro_batches(indices, 5))
    for some in parts:  # the usual way: each micro-batch's own mean, divided by their number
        batch = collate(data.views, one.pads, data.rows(some))
        denominators = loss_denominators(*data.targets(some), one.step.weights)
        loss = loss_of(one.model(*batch.inputs), batch, denominators, one.config, one.step.weights)
        (loss / len(parts)).backward()
    worst = max(
        float((p.grad - whole[n]).abs().max())
        for n, p in one.model.named_parameters()
        if p.grad is not None
    )
    assert worst > 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_trains_freezes_and_recomputes(tmp_path: Path, family: str) -> None:
    encoder = {"name": family, "frozen_layers": 1}
    plain = ready(tmp_path, config(encoder=encoder))
    saving = ready(tmp_path, config(encoder=encoder), checkpoint_activations=True)
    one, other = gradients(plain, 12), gradients(saving, 12)
    assert set(one) == set(other)
    for name, gradient in one.items():
        assert torch.allclose(gradient, other[name], rtol=0, atol=1e-10), name
    above = plain.model.layers_above()
    frozen = {n for n, p in plain.model.named_parameters() if not p.requires_grad}
    assert frozen
    assert {above[name] for name in frozen} == {1, 2}
    assert not frozen & set(one)
    assert all(above.get(name, 0) == 0 for name in one)


@pytest.mark.parametrize("family", FAMILIES)
def test_depths_cover_embeddings_and_every_layer(family: str) -> None:
    source = find(family)
    encoder = load_encoder(source, source.config)
    depths = depth_of(encoder)
    assert set(depths.values()) == {0, 1, 2}
    assert len(layer_list(encoder)[1]) == 2
    assert all(depths[n] == 0 for n in depths if "word_embeddings" in n or "tok_embeddings" in n)


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "attention", "last"])
@pytest.mark.parametrize("depth", [1, 3])
def test_padding_never_counts(tmp_path: Path, pooling: str, depth: int) -> None:
    head = {"pooling": pooling, "depth": depth, "width": 16, "activation": "silu"}
    one = ready(tmp_path, config("share", head=head))
    model = one.model.eval()
    data = one.validation
    longest = by_length(data.lengths, 6)[0]
    with torch.no_grad():
        together = model(*collate(data.views, one.pads, longest).inputs)
        for place, index in enumerate(longest):
            alone = model(*collate(data.views, one.pads, longest[place : place + 1]).inputs)
            width = alone.starts.shape[1]
            assert torch.allclose(together.classes[place], alone.classes[0], atol=1e-5), index
            assert torch.allclose(together.starts[place, :width], alone.starts[0], atol=1e-5)


@pytest.mark.parametrize("fusion", ["concat", "gated", "attention"])
def test_two_encoders_of_two_families_are_fused(tmp_path: Path, fusion: str) -> None:
    wanted = config(
        "joint",
        evidence_encoder={"name": "tiny-electra"},
        fusion={"name": fusion, "width": 24},
    )
    one = ready(tmp_path, wanted)
    reached = gradients(one, 12)
    for i in (0, 1):
        assert any(
            n.startswith(f"encoders.{i}.") and g.abs().max() > 0 for n, g in reached.items()
        )
    assert len(one.train.views[0]) == len(one.train.views[1])


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_reaches_the_encoder(family: str) -> None:
    source = find(family)
    quiet, loud = (load_encoder(source, prepared_config(source, p, p)) for p in (0.0, 0.5))
    rates = [
        {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)}
        for model in (quiet, loud)
    ]
    assert rates[0] <= {0.0}
    ids = torch.randint(5, 100, (4, 12))
    for model, noisy in ((quiet, False), (loud, True)):
        model.train()
        outs = [model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
                for _ in range(2)]  # fmt: skip
        assert torch.equal(*outs) is not noisy


@pytest.mark.parametrize("family", FAMILIES)
def test_every_dropout_key_is_read_by_its_model(family: str) -> None:
    """A key that the model ignores would make encoder.dropout a parameter without effect."""
    source = find(family)
    for name, keys in dropout_keys(source.config).items():
        wanted = {"dropout": None, "attention_dropout": None, name: 0.37}
        model = load_encoder(source, prepared_config(source, **wanted))  # type: ignore[arg-type]
        values = [v for m in model.modules() for v in vars(m).values() if isinstance(v, float)]
        assert (0.37 in values) == bool(keys), (family, name)
    assert dropout_keys(source.config)["attention_dropout"]
    assert bool(dropout_keys(source.config)["dropout"]) == (family != "tiny-eurobert")


def test_a_published_key_that_no_layer_reads_is_no_dropout() -> None:
    """EuroBERT's configuration on the hub has hidden_dropout, which the model never reads."""
    source = find("tiny-eurobert")
    source.config.hidden_dropout = 0.0
    assert dropout_keys(source.config)["dropout"] == []
    check_dropouts([source], 0.0, 0.3)
    check_dropouts([source], None, None)
    with pytest.raises(UserError, match=r"'tiny-eurobert' has no such dropout.*to 0, or leave"):
        check_dropouts([source], 0.1, 0.1)
    check_dropouts([source, find("tiny-bert")], 0.1, 0.1)  # applies to the other one


@pytest.mark.parametrize(
    ("name", "millions", "heads"),
    [
        ("answerdotai/ModernBERT-large", 395, 16),
        ("jhu-clsp/mmBERT-base", 307, 12),
        ("jhu-clsp/mmBERT-small", 140, 6),
        ("jhu-clsp/ettin-encoder-17m", 17, 4),
        ("jhu-clsp/ettin-encoder-32m", 32, 6),
        ("jhu-clsp/ettin-encoder-68m", 68, 8),
        ("jhu-clsp/ettin-encoder-150m", 149, 12),
        ("jhu-clsp/ettin-encoder-400m", 395, 16),
        ("EuroBERT/EuroBERT-210m", 212, 12),
        ("EuroBERT/EuroBERT-610m", 608, 6),
    ],
)
def test_encoders_of_today_have_their_published_sizes(
    name: str, millions: int, heads: int
) -> None:
    source = find(f"untrained/{name}")
    assert round(sum(p.numel() for p in outline(source).parameters()) / 1e6) == millions
    config = source.config
    assert getattr(config, "num_key_value_heads", config.num_attention_heads) == heads
    assert max_input_length(source) == 8192


def test_new_parameters_are_listed(tmp_path: Path) -> None:
    model = ready(tmp_path, config("share")).model
    assert isinstance(model, Model)
    assert model.new_parameters
    assert all("head" in name or "pooling" in name for name in model.new_parameters)


# Weights: whole, or not at all.


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    source = find("tiny-bert")
    folder = tmp_path / "encoder"
    load_encoder(source, source.config).save_pretrained(folder)
    return folder


def test_weights_from_a_folder_are_the_same_weights(saved: Path) -> None:
    source = find(str(saved))
    assert source.trained
    weights = load_file(saved / "model.safetensors")
    for name, parameter in load_encoder(source, source.config).named_parameters():
        assert torch.equal(parameter, weights[name])


def test_missing_weights_are_never_made_up(saved: Path) -> None:
    weights = load_file(saved / "model.safetensors")
    lost = next(name for name in weights if "attention" in name)
    kept = {name: w for name, w in weights.items() if name != lost}
    save_file(kept, saved / "model.safetensors", metadata={"format": "pt"})
    source = find(str(saved))
    with pytest.raises(UserError, match="not complete") as caught:
        load_encoder(source, source.config)
    assert lost in str(caught.value)


def test_encoders_that_do_not_exist_are_errors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text(json.dumps({"no": "type"}))
    broken, nowhere = str(tmp_path / "broken"), str(tmp_path / "nowhere")
    names = ["tiny", "roberta-bas", "roberta-base", broken, nowhere, "untrained/roberta-base"]
    found, missing = find_all(names)
    assert set(found) == {"tiny", "untrained/roberta-base"}
    assert "did you mean 'roberta-base'?" in missing["roberta-bas"]
    assert "hf download" in missing["roberta-bas"]
    assert "untrained/" not in missing["roberta-bas"]
    assert "use 'untrained/roberta-base'" in missing["roberta-base"]
    assert "cannot be used" in missing[broken]
    assert "no such folder" in missing[nowhere]
    assert not found["untrained/roberta-base"].trained


def test_an_encoder_without_weights_is_an_error(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    with pytest.raises(UserError, match="no weights in safetensors"):
        find(str(saved))
    for garbage in (b"", b"garbage that is no header"):
        (saved / "model.safetensors").write_bytes(garbage)
        with pytest.raises(UserError, match="cannot be used"):
            find(str(saved))


def test_an_untrained_encoder_has_fp32_weights_whatever_its_configuration_says() -> None:
    config = architectures.configuration("tiny-bert")
    config.dtype = torch.bfloat16
    assert {weight.dtype for weight in untrained(config).parameters()} == {torch.float32}


def test_code_of_a_tokenizer_is_not_run(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does anything wait for an answer on the terminal."""
    source, mark = find(str(saved)), tmp_path / "mark"
    (saved / "own.py").write_text(f"open({str(mark)!r}, 'w')\nclass Own: ...\n")
    settings = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "own.Own"]}}
    (saved / "tokenizer_config.json").write_text(json.dumps(settings))
    (saved / "config.json").write_text(json.dumps({"model_type": "own"}))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(UserError, match="cannot be loaded"):
        tokenizer_for(source, (), tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["", " ", "~nobody/x", "x" * 5000, "untrained/nonsense", "/a b"])
def test_odd_names_of_encoders(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError) as caught:
        find(name)
    assert "hf download untrained" not in str(caught.value)


def test_a_hub_that_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:  # a port at which nobody listens
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(sources, "ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        monkeypatch.setattr(sources, "getproxies", dict)
        sources._reachable.cache_clear()
        try:
            _, missing = find_all(["bert-base-uncased", "roberta-base"])
            assert sources._reachable.cache_info().misses == 1
        finally:
            sources._reachable.cache_clear()
    assert all("does not answer" in text for text in missing.values())
    assert len(missing) == 2


def test_more_frozen_layers_than_there_are_freeze_all(tmp_path: Path) -> None:
    found = ready(tmp_path, config(encoder={"frozen_layers": 3}))
    trained = {name.split(".")[0] for name, p in found.model.named_parameters() if p.requires_grad}
    assert trained
    assert not any(p.requires_grad for p in found.model.encoders[0].model.parameters())
    assert math.isfinite(train(found, Quiet()).curve[0]["train_loss"])


def test_full_size_architectures_have_the_published_sizes() -> None:
    sizes = {
        "bert-base-uncased": (768, 12, 30_522),
        "bert-large-uncased": (1024, 24, 30_522),
        "roberta-base": (768, 12, 50_265),
        "roberta-large": (1024, 24, 50_265),
        "microsoft/deberta-v3-base": (768, 12, 128_100),
        "microsoft/deberta-v3-large": (1024, 24, 128_100),
        "xlm-roberta-base": (768, 12, 250_002),
        "google/electra-large-discriminator": (1024, 24, 30_522),
    }
    for name, expected in sizes.items():
        c = architectures.configuration(f"untrained/{name}")
        assert (c.hidden_size, c.num_hidden_layers, c.vocab_size) == expected, name


@pytest.mark.slow
def test_the_same_texts_give_the_same_tokenizer(tmp_path: Path) -> None:
    learn = """
import hashlib, sys
from pathlib import Path
from supermax.training.models.sources import find
from supermax.training.models.tokenizers import tokenizer_for
from tests.training.corpora import corpus

texts = [example.text for example in corpus(60).examples]
tokenizer = tokenizer_for(find("tiny"), texts, Path(sys.argv[1]))
print(hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest())
"""
    path = os.pathsep.join([str(ROOT), *sys.path])
    found = {
        subprocess.run(
            [sys.executable, "-c", learn, str(tmp_path / seed)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
