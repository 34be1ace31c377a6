"""Export of a trained model to a folder that transformers can load, and loading it.

    Prepared, weights ──export()──▶ folder ──load_exported()──▶ LoadedModel

    supermax.json         facts about the model, and the size of every other file
    config.json           with model.safetensors and a tokenizer: the whole model for transformers
    modeling_supermax.py  classes of the model, if transformers has none that predicts the same
    heads.safetensors     otherwise: everything above the encoder, as Supermax names it
    encoder/              the encoder and its tokenizer, in the format of transformers
    evidence_encoder/     the second encoder of a joint model
    adapter_*             in place of the whole model if only an adapter is exported: adapter.py
    README.md             the model card

The export is atomic: the folder is complete or absent. It holds no text of any example.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import torch
from pydantic_core import to_json
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from supermax._util.attributes import TRUST
from supermax._util.scratch import folder_beside
from supermax._util.text import in_short
from supermax.agents import agent_of
from supermax.errors import EnvironmentFault, UserError
from supermax.training.config import Config, read_config
from supermax.training.deploy.adapter import (
    ENCODER_FOLDERS,
    base_of,
    check_adapter_export,
    load_adapter,
    write_adapter,
)
from supermax.training.deploy.card import card
from supermax.training.deploy.exported import (
    CARD,
    FACTS,
    FORMAT,
    Description,
    Facts,
    check_files,
    check_free,
    check_trust,
    read_facts,
)
from supermax.training.deploy.transformers_format import ENCODER, HEADS, WEIGHTS, write_model
from supermax.training.models.adapters import merged
from supermax.training.models.assembly import Model
from supermax.training.models.encoders import load_encoder
from supermax.training.models.sources import Source, configuration_in, find, has_own_code
from supermax.training.models.tokenizers import tokenizer_for
from supermax.training.prepare import Prepared

_LIBRARIES = ("supermax", "torch", "transformers", "tokenizers", "safetensors", "numpy")


@dataclass(frozen=True)
class LoadedModel:
    """Exported model, ready to predict."""

    config: Config
    model: Model
    tokenizers: tuple[PreTrainedTokenizerBase, ...]
    pads: tuple[int, ...]
    label_names: tuple[str, ...]
    threshold: float | None
    """Threshold of the no-answer policy "calibrated"; None with other policies."""
    asks: bool
    """True: it was trained on questions and texts; False: on texts alone."""
    precision: str = "fp32"
    """Precision in which it was evaluated and its threshold fitted."""


def export(
    folder: str | Path,
    prepared: Prepared,
    weights: Mapping[str, torch.Tensor],
    description: Description,
    *,
    adapter: bool = False,
) -> None:
    """Write the model with these weights to a new or empty folder.

    An adapter is merged into the weights of the encoders, which transformers then loads without
    peft. With `adapter`, it is written for peft instead, without those weights.
    """
    folder = Path(folder).expanduser().absolute()
    check_free(folder)
    _check(prepared, description)
    if adapter:
        check_adapter_export(prepared.config, prepared.sources)
    whole = {**prepared.model.state_dict(), **weights}  # those of a trial lack the frozen ones
    on_cpu = {name: weight.detach().cpu().contiguous() for name, weight in whole.items()}
    try:
        with folder_beside(folder) as temporary:
            facts = _facts(prepared, description)
            if adapter:
                facts["base"] = base_of(prepared, on_cpu)
                write_adapter(temporary, prepared, on_cpu)
            else:
                names, on_cpu = description.label_names, merged(prepared.model, on_cpu)
                facts["encoder_prefix"] = write_model(temporary, prepared, on_cpu, names)
                _write_encoders(temporary, prepared, on_cpu)
            folders = ENCODER_FOLDERS[: len(prepared.tokenizers)]
            bases = list(dict.fromkeys(s.hub_name for s in prepared.sources if s.hub_name))
            text = card(facts, description, folders, bases)
            (temporary / CARD).write_text(text, "utf-8")
            _write_facts(temporary, facts)
            _move(temporary, folder)
    except (OSError, SafetensorError) as error:
        raise EnvironmentFault(
            f"{folder} cannot be written: {in_short(error)}. Make room there, or name another "
            f"folder (-o), and run the command again."
        ) from error


def _facts(prepared: Prepared, description: Description) -> Facts:
    """Return the facts, still without the sizes of the files."""
    return {
        "format": FORMAT,
        "config": prepared.config.model_dump(mode="json"),
        "label_names": list(description.label_names),
        "threshold": description.threshold,
        "asks": any(example.question for example in prepared.train.examples),
        "precision": prepared.execution.precision,
        "epochs": description.epochs,
        "fingerprint": description.fingerprint,
        "columns": dict(description.columns),
        "untrained": not all(source.trained for source in prepared.sources),
        "clinical": description.clinical,
        "metrics": dict(description.metrics),
        "estimates": {name: asdict(value) for name, value in description.estimates.items()},
        "versions": _versions(),
        "files": {},
    }


def _check(prepared: Prepared, description: Description) -> None:
    """Raise UserError if a decoding setting or a class name is missing."""
    config, model = prepared.config, prepared.model
    if agent_of(config.agent).label_sets and config.labels.threshold is None:
        raise UserError(
            "A configuration that leaves labels.threshold open cannot be exported: put the "
            "thresholds of an evaluation into it, with_decoding(config, evaluation.decoding)."
        )
    policy, decode = config.no_answer.policy, config.decode
    if model.span_head is not None:
        if None in (policy, decode.n_best, decode.max_answer):
            raise UserError(
                "A configuration that leaves decoding settings open cannot be exported: put those "
                "of an evaluation into it, with_decoding(config, evaluation.decoding)."
            )
        if policy == "calibrated" and description.threshold is None:
            raise UserError(
                "The no-answer policy 'calibrated' cannot be exported without its threshold."
            )
    head = model.class_head if model.token_head is None else model.token_head
    if head is None:
        return
    names = len(description.label_names)
    outputs = cast(nn.Linear, head[-1]).out_features
    if model.token_head is not None:
        outputs = (outputs - 1) // 2  # B- and I- of each type, and O
    if outputs != names:
        raise UserError(f"The model has {outputs} classes; {names} names were given.")


def _write_encoders(folder: Path, prepared: Prepared, weights: dict[str, torch.Tensor]) -> None:
    for i, tokenizer in enumerate(prepared.tokenizers):
        prefix = f"encoders.{i}.model."
        state = {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}
        encoder = cast(PreTrainedModel, prepared.model.encoders[i].model)
        with _any_config(encoder.config):
            encoder.save_pretrained(folder / ENCODER_FOLDERS[i], state_dict=state)
        tokenizer.save_pretrained(folder / ENCODER_FOLDERS[i])


@contextlib.contextmanager
def _any_config(config: PretrainedConfig) -> Iterator[None]:
    """Let a configuration with code of its own be saved whatever it calls its settings.

    NeoBERT's limit of tokens is `max_length`, which transformers takes for a setting of generation
    and refuses to save.
    """
    kind = type(config)
    if not has_own_code(config) or "_get_generation_parameters" in vars(kind):
        yield
        return
    kind._get_generation_parameters = lambda _: {}
    try:
        yield
    finally:
        del kind._get_generation_parameters


def _write_facts(folder: Path, facts: Facts) -> None:
    """Write the facts with the sizes of all files, then sync every file to disk.

    All files get the permissions that the umask gives to new ones.
    """
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    sizes = {p.relative_to(folder).as_posix(): p.stat().st_size for p in files if p.name != CARD}
    text = to_json({**facts, "files": sizes}, indent=2, inf_nan_mode="null")
    (folder / FACTS).write_bytes(text + b"\n")
    mode = (folder / FACTS).stat().st_mode & 0o777
    for path in [*files, folder / FACTS]:
        path.chmod(mode)
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _move(temporary: Path, folder: Path) -> None:
    try:
        temporary.rename(folder)
    except OSError:
        check_free(folder)  # another process created it meanwhile
        raise


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found


def load_exported(folder: str | Path, *, trust_remote_code: bool = False) -> LoadedModel:
    """Load the model of an exported folder to the CPU.

    Raises UserError if files are missing or damaged, or if an encoder has code of its own without
    `trust_remote_code`: the folder, or that of the encoder of an adapter, holds that code.
    """
    folder = Path(folder).expanduser()
    facts = read_facts(folder)
    check_files(folder, facts["files"])
    check_trust(facts, trust_remote_code)
    config = read_config(facts["config"])
    names = tuple(facts["label_names"])
    try:
        model, sources = (
            load_adapter(folder, facts) if "base" in facts else _load_model(folder, facts, config)
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"{folder} cannot be loaded: {in_short(error)}. Copy or export the model again."
        ) from None
    try:
        tokenizers = tuple(tokenizer_for(source, (), folder) for source in sources)
    except UserError as error:
        raise UserError(
            f"{folder} cannot be loaded: {error} Copy or export the model again."
        ) from None
    model.eval()
    pads = tuple(int(tokenizer.pad_token_id) for tokenizer in tokenizers)
    precision = facts.get("precision", "fp32")
    threshold, asks = facts["threshold"], facts["asks"]
    return LoadedModel(config, model, tokenizers, pads, names, threshold, asks, precision)


def _load_model(folder: Path, facts: Facts, config: Config) -> tuple[Model, tuple[Source, ...]]:
    """Return the model of an export with all weights, and its encoders."""
    encoders = (config.encoder, config.evidence_encoder or config.encoder)
    count = agent_of(config.agent).encoders
    sources = tuple(
        _source(folder / place, encoder.name.startswith(TRUST))
        for place, encoder in zip(ENCODER_FOLDERS[:count], encoders, strict=False)
    )
    untrained = [_untrained_encoder(source) for source in sources]
    model = Model(config, untrained, len(facts["label_names"]) or 2)
    model.load_state_dict(_weights(folder, facts.get("encoder_prefix")))
    return model, sources


def _weights(folder: Path, prefix: str | None) -> dict[str, torch.Tensor]:
    """Return the weights under the names of Supermax. `prefix`: see `Facts.encoder_prefix`."""
    stored = load_file(folder / WEIGHTS)
    if prefix is None:
        return stored
    encoder = {
        ENCODER + name.removeprefix(prefix): weight
        for name, weight in stored.items()
        if name.startswith(prefix) and not name.startswith(f"{prefix}pooler.")
    }
    return encoder | load_file(folder / HEADS)


def _source(folder: Path, trusted: bool) -> Source:
    if trusted:
        return find(f"{TRUST}{folder}", weights=False)
    return Source(folder.name, str(folder), configuration_in(str(folder), trusted=False))


def _untrained_encoder(source: Source) -> nn.Module:
    """Return the encoder with random weights, which the model's weights replace."""
    encoder: nn.Module = load_encoder(Source(source.name, None, source.config), source.config)
    return encoder
