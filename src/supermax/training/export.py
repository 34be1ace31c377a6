"""A trained model as a folder: for Supermax whole, for transformers its encoders.

    Prepared, weights ──export()──▶ folder ──load_exported()──▶ Loaded

    supermax.json        what the model is, and the size of every other file
    model.safetensors    all weights: encoders, pooling, fusion, heads
    encoder/             an encoder and its tokenizer, as transformers reads them
    evidence_encoder/    the second one of a joint model
    README.md            the model card

The folder is there whole or not at all, and holds no text of any example.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig

from supermax.errors import EnvironmentFault, UserError
from supermax.training.card import card
from supermax.training.config import Config, read_config
from supermax.training.encoders import load
from supermax.training.exported import FACTS, FORMAT, read_facts
from supermax.training.intervals import Estimate
from supermax.training.models import Model
from supermax.training.prepare import Prepared
from supermax.training.sources import Source
from supermax.training.tokenizers import tokenizer_for
from supermax.words import in_short, listed

WEIGHTS, CARD = "model.safetensors", "README.md"
_FOLDERS = ("encoder", "evidence_encoder")
_LIBRARIES = ("supermax", "torch", "transformers", "tokenizers", "safetensors", "numpy")


@dataclass(frozen=True)
class Loaded:
    """A model that is ready to predict."""

    config: Config
    model: Model
    tokenizers: tuple[Any, ...]
    pads: tuple[int, ...]
    label_names: tuple[str, ...]
    threshold: float | None
    """Of the no-answer policy "calibrated"."""
    asks: bool
    """Whether it was trained on questions and texts, and not on texts alone."""
    precision: str = "fp32"
    """Precision in which it was judged and its threshold fitted."""


# Writing.


def export(
    folder: str | Path,
    prepared: Prepared,
    weights: Mapping[str, torch.Tensor],
    *,
    label_names: Sequence[str],
    threshold: float | None,
    metrics: Mapping[str, float],
    fingerprint: str,
    untrained: bool,
    estimates: Mapping[str, Estimate] | None = None,
    cautions: Sequence[str] = (),
    epochs: int | None = None,
    clinical: bool = False,
    columns: Mapping[str, str] | None = None,
) -> None:
    """Write the model with these weights. `estimates` are the metrics over several seeds,
    `cautions` what makes them worth less than they look, and `epochs` is how long it was trained,
    where that is not what its configuration says. `clinical`: the model was trained to find
    symptoms, and its card says that it makes no diagnosis. `columns` are those of the table that
    it was trained on, by their roles."""
    folder = Path(folder).expanduser().absolute()
    check_free(folder)
    _check_facts(prepared, label_names, threshold)
    whole = {name: weight.detach().cpu().contiguous() for name, weight in weights.items()}
    facts = {
        "format": FORMAT,
        "config": prepared.config.model_dump(mode="json"),
        "label_names": list(label_names),
        "threshold": threshold,
        "asks": any(example.question for example in prepared.train.examples),
        "precision": prepared.execution.precision,
        "epochs": epochs,
        "fingerprint": fingerprint,
        "columns": dict(columns or {}),
        "untrained": untrained,
        "clinical": clinical,
        "metrics": dict(metrics),
        "estimates": {name: asdict(value) for name, value in (estimates or {}).items()},
        "versions": _versions(),
    }
    names = _FOLDERS[: len(prepared.tokenizers)]
    text = card(facts, metrics, estimates or {}, names, cautions)
    temporary = folder.parent / f".{folder.name}.{uuid.uuid4().hex}"
    try:
        temporary.mkdir(parents=True)
        _write_model(temporary, prepared, whole)
        (temporary / CARD).write_text(text, "utf-8")
        _seal(temporary, facts)
        _put(temporary, folder)
    except (OSError, SafetensorError) as error:
        raise EnvironmentFault(f"{folder} cannot be written: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_free(folder: str | Path) -> None:
    """Raises UserError where something is that an export would overwrite."""
    folder = Path(folder).expanduser()
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(
            f"{folder} is there already and not empty, and nothing is overwritten: name another "
            "folder, or remove this one."
        )


def _check_facts(prepared: Prepared, label_names: Sequence[str], threshold: float | None) -> None:
    """What the model cannot be used without."""
    policy, model = prepared.config.no_answer.policy, prepared.model
    if model.span_head is not None and policy == "calibrated" and threshold is None:
        raise UserError("The no-answer policy 'calibrated' needs its threshold to be exported.")
    if model.class_head is None:
        return
    outputs = model.class_head[-1].out_features
    if outputs != len(label_names):
        raise UserError(f"The model has {outputs} classes; {len(label_names)} names were given.")


def _write_model(folder: Path, prepared: Prepared, weights: dict[str, torch.Tensor]) -> None:
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    for i, tokenizer in enumerate(prepared.tokenizers):
        prefix = f"encoders.{i}.model."
        own = {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}
        encoder: Any = prepared.model.encoders[i].model
        encoder.save_pretrained(folder / _FOLDERS[i], state_dict=own)
        tokenizer.save_pretrained(folder / _FOLDERS[i])


def _seal(folder: Path, facts: dict[str, Any]) -> None:
    """The facts with all files' sizes, then everything on disk, readable as new files are."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    sizes = {p.relative_to(folder).as_posix(): p.stat().st_size for p in files if p.name != CARD}
    text = json.dumps(_plain(facts | {"files": sizes}), indent=2, ensure_ascii=False)
    (folder / FACTS).write_text(text + "\n", "utf-8")
    mode = (folder / FACTS).stat().st_mode & 0o777
    for path in [*files, folder / FACTS]:
        path.chmod(mode)
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _put(temporary: Path, folder: Path) -> None:
    try:
        temporary.rename(folder)
    except OSError:
        check_free(folder)  # somebody was faster
        raise


def _plain(value: Any) -> Any:
    """What JSON has: null where a number is not defined."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found


# Reading.


def load_exported(folder: str | Path) -> Loaded:
    """The model of an exported folder, on the CPU. Raises UserError where it is not whole."""
    folder = Path(folder).expanduser()
    facts = read_facts(folder)
    _check_files(folder, facts["files"])
    config = read_config(facts["config"])
    names = tuple(facts["label_names"])
    places = _FOLDERS[: 2 if config.agent == "joint" else 1]
    try:
        sources = [_source(folder / name) for name in places]
        tokenizers = tuple(tokenizer_for(source, (), folder) for source in sources)
        model = Model(config, [_empty(source) for source in sources], len(names) or 2)
        model.load_state_dict(load_file(folder / WEIGHTS))
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"{folder} cannot be loaded: {in_short(error)}. Export the model again."
        ) from None
    model.eval()
    pads = tuple(int(tokenizer.pad_token_id) for tokenizer in tokenizers)
    precision = facts.get("precision", "fp32")  # which earlier versions did not note
    threshold, asks = facts["threshold"], facts["asks"]
    return Loaded(config, model, tokenizers, pads, names, threshold, asks, precision)


def _source(place: Path) -> Source:
    return Source(place.name, str(place), AutoConfig.from_pretrained(place, local_files_only=True))


def _empty(source: Source) -> nn.Module:
    """The encoder to be filled with the model's weights."""
    return load(Source(source.name, None, source.config), source.config)


def _check_files(folder: Path, sizes: Mapping[str, int]) -> None:
    wrong = []
    for name, size in sizes.items():
        path = folder / name
        if not path.is_file():
            wrong.append(f"{name} is missing")
        elif path.stat().st_size != size:
            wrong.append(f"{name} has {path.stat().st_size:,} bytes instead of {size:,}")
    if wrong:
        head = f"The model in {folder} is not as it was exported. Copy or export it again:"
        raise UserError(listed(head, wrong))
