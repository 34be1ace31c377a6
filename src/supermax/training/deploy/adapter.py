"""Export of the adapter of a model without the weights of its encoders, and loading it.

    Prepared, weights ──write_adapter()──▶ folder ──load_adapter()──▶ Model

    adapter_config.json, adapter_model.safetensors    adapter, pooling, fusion and heads: together
                                                      a peft.PeftModel of `base_model(folder)`
    encoder/                                          the adapter alone, and the tokenizer

Pooling, fusion and heads are modules_to_save of peft: they are in one file with the adapter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from supermax._util.attributes import TRUST
from supermax.errors import UserError
from supermax.training.config import Config, read_config
from supermax.training.deploy.exported import Base, Facts, check_trust, read_facts
from supermax.training.models.adapters import NAME, adapted, add_adapter, import_peft, lora_config
from supermax.training.models.assembly import Model, Scaling
from supermax.training.models.encoders import load_encoder, prepared_config
from supermax.training.models.sources import Source, find
from supermax.training.prepare import Prepared

ENCODER_FOLDERS = ("encoder", "evidence_encoder")
_FILE = "adapter_model.safetensors"
_PREFIX = "base_model.model."
"""First part of the names of weights in peft's files."""


def check_adapter_export(config: Config, sources: Sequence[Source]) -> None:
    """Raise UserError unless the model has an adapter and its encoders can be found again."""
    if config.adapter.name == "none":
        raise UserError(
            "The configuration has no adapter (adapter.name is none), so none can be exported: "
            "leave --adapter out, or refit a trial with LoRA (--trial N)."
        )
    if untrained := [source.name for source in sources if not source.trained]:
        raise UserError(
            f"The adapter alone would be of no use: the weights of '{untrained[0]}' are random, "
            "and not stored. Leave --adapter out to export the whole model."
        )


def base_of(prepared: Prepared, weights: Mapping[str, Tensor]) -> Base:
    """Return the facts about the encoders' frozen weights, which the export lacks."""
    frozen = {n for n, p in prepared.model.named_parameters() if not p.requires_grad}
    scaling = prepared.model.unit
    return {
        "encoders": [_found_again(source) for source in prepared.sources],
        "digest": _digest({_plain(n): w for n, w in weights.items() if n in frozen}),
        "scaling": None if scaling is None else [scaling.mean, scaling.deviation],
    }


def _place(source: Source) -> str:
    return source.name if source.name == "minilm" or source.place is None else source.place


def _for_peft(source: Source) -> str:
    """Return the name by which transformers and peft find an encoder."""
    return source.hub_name or _place(source)


def _found_again(source: Source) -> str:
    """Return the name by which `find` finds an encoder, with the permission to run its code."""
    return f"{TRUST}{_place(source)}" if source.trusted else _place(source)


def _plain(name: str) -> str:
    return name.replace(".base_layer.", ".")


def _digest(weights: Mapping[str, Tensor]) -> str:
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(name.encode())
        found.update(weights[name].detach().cpu().contiguous().numpy().data)
    return found.hexdigest()


def write_adapter(folder: Path, prepared: Prepared, weights: Mapping[str, Tensor]) -> None:
    """Write the trained ones of these weights, as peft does."""
    model, config = prepared.model, prepared.config.adapter
    trained = {n: weights[n] for n, p in model.named_parameters() if p.requires_grad}
    paths: list[str] = []
    for i, (encoder, source) in enumerate(zip(model.encoders, prepared.sources, strict=True)):
        prefix, own = f"encoders.{i}.model.", folder / ENCODER_FOLDERS[i]
        names = sorted(name for name, _ in adapted(encoder.model))
        paths += [prefix + name for name in names]
        made = lora_config(config, names)
        made.base_model_name_or_path, made.inference_mode = _for_peft(source), True
        made.task_type = import_peft().TaskType.FEATURE_EXTRACTION
        _save(own, {n.removeprefix(prefix): w for n, w in trained.items() if prefix in n})
        made.save_pretrained(str(own))
        prepared.tokenizers[i].save_pretrained(own)
    whole = lora_config(config, paths)
    whole.base_model_name_or_path = _for_peft(prepared.sources[0])
    whole.inference_mode = True
    whole.modules_to_save = sorted({_module(n) for n in trained if not n.startswith("encoders.")})
    _save(folder, trained)
    whole.save_pretrained(str(folder))


def _module(name: str) -> str:
    """Return the module that a weight outside of the encoders belongs to."""
    parts = name.split(".")
    return ".".join(parts[:2] if parts[0] == "pooling" else parts[:1])  # pooling is a list


def _save(folder: Path, weights: Mapping[str, Tensor]) -> None:
    folder.mkdir(exist_ok=True)
    named = {_peft_name(name): weight for name, weight in weights.items()}
    save_file(named, folder / _FILE, metadata={"format": "pt"})


def _peft_name(name: str) -> str:
    return _PREFIX + name.replace(f".{NAME}.", ".")


def base_model(folder: str | Path, *, trust_remote_code: bool = False) -> Model:
    """Return the model without its adapter: `peft.PeftModel.from_pretrained(base_model(folder),
    folder)` is the exported model.

    Raises UserError unless the encoders have the weights that the adapter was trained on, or if
    one has code of its own without `trust_remote_code`.
    """
    facts = read_facts(Path(folder).expanduser())
    check_trust(facts, trust_remote_code)
    return _base_model(Path(folder), facts)


def _base_model(folder: Path, facts: Facts) -> Model:
    if (base := facts.get("base")) is None:
        raise UserError(
            f"{folder} holds a whole model, and no adapter. Load it with "
            f"AutoModel.from_pretrained of transformers, or export the adapter: "
            f"supermax refit STUDY --adapter."
        )
    config = read_config(facts["config"])
    sources = [find(name) for name in base["encoders"]]
    rates = config.encoder.dropout, config.encoder.attention_dropout
    encoders = [load_encoder(source, prepared_config(source, *rates)) for source in sources]
    model = Model(config, [*encoders], len(facts["label_names"]) or 2)
    own = {n: p for n, p in model.named_parameters() if n.startswith("encoders.")}
    if _digest(own) != base["digest"]:
        names = " and ".join(name.removeprefix(TRUST) for name in base["encoders"])
        raise UserError(
            f"The adapter in {folder} was trained on other weights of {names} than are there now. "
            "Restore them, or refit with the encoder as it is."
        )
    if base["scaling"] is not None:
        model.set_scaling(Scaling(*base["scaling"]))
    return model


def load_adapter(folder: Path, facts: Facts) -> tuple[Model, tuple[Source, ...]]:
    """Return the model of an exported adapter, and its encoders."""
    model, config = _base_model(folder, facts), read_config(facts["config"])
    sources = tuple(find(name) for name in (facts.get("base") or {"encoders": []})["encoders"])
    add_adapter(model, config.adapter, [source.name for source in sources])
    stored = load_file(folder / _FILE)
    trained = {n: _peft_name(n) for n, p in model.named_parameters() if p.requires_grad}
    buffers = {n: w for n, w in model.saved_state().items() if n not in trained}
    loaded = {n: stored.pop(key) for n, key in trained.items() if key in stored}
    model.load_saved({**buffers, **loaded, **stored})  # raises for missing and left weights
    return model, sources
