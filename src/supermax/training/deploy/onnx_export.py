"""ONNX file of an exported model, compared with the model before it is written.

    folder ──load_exported()──▶ LoadedModel ──export_onnx()──▶ model.onnx

Inputs: input_ids, attention_mask and, if the encoder uses them, token_type_ids, of any batch size
and length; those of a second encoder begin with `evidence_`. Outputs: logits (a number is in the
unit of the data; those of tokens are [batch, length, classes]), start_logits, end_logits, as far
as the model has the heads.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from supermax._util.files import write_whole
from supermax._util.scratch import folder_beside
from supermax._util.text import in_short
from supermax.errors import EnvironmentFault, UserError
from supermax.training.deploy.adapter import ENCODER_FOLDERS
from supermax.training.deploy.card import with_onnx
from supermax.training.deploy.export import LoadedModel, load_exported
from supermax.training.deploy.exported import CARD, ONNX, Facts, read_whole_facts
from supermax.training.deploy.transformers_format import TOLERANCE
from supermax.training.models.assembly import Encoder, Inputs, Model
from supermax.training.models.encoders import uncache_positions
from supermax.training.models.sources import Source
from supermax.training.prepare import max_input_length

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_INLINE = 1_900_000_000
"""Bytes of weights that fit in the file itself: a protocol buffer has at most 2 GiB."""
_BATCHES = ((1, 5), (2, 16), (3, 33))
"""Batch sizes and lengths that are compared, in addition to the model's maximum length."""


@dataclass(frozen=True)
class OnnxFile:
    """Written file, with the largest difference from the model that was found."""

    path: Path
    difference: float


class _Graph(nn.Module):
    """Model whose inputs and outputs are tensors, in the order of their names."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.inputs = [
            [f"{prefix}{name}" for name in _input_names(encoder)]
            for prefix, encoder in zip(("", "evidence_"), model.encoders, strict=False)
        ]
        heads = (model.class_head, model.number_head, model.token_head)
        classes = any(head is not None for head in heads)
        spans = model.span_head is not None
        self.outputs = ["logits"] * classes + ["start_logits", "end_logits"] * spans

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        sequences, rest = [], list(tensors)
        for names in self.inputs:
            ids, mask, *types = rest[: len(names)]
            del rest[: len(names)]
            sequences.append(Inputs(ids, mask, types[0] if types else torch.zeros_like(ids)))
        found = self.model(*sequences)
        logits = found.classes
        if self.model.number_head is not None:
            mean, deviation = self.model.scaling
            logits = (mean + deviation * logits.double()).float()
        return tuple(each for each in (logits, found.starts, found.ends) if each is not None)


def _input_names(encoder: Encoder) -> list[str]:
    return ["input_ids", "attention_mask"] + ["token_type_ids"] * encoder.takes_types


def _config(encoder: Encoder) -> PretrainedConfig:
    return cast(PreTrainedModel, encoder.model).config


def check_packages() -> None:
    """Raise UserError if a package of the extra `onnx` is missing."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"ONNX files need packages that are not installed: pip install {' '.join(missing)} "
            f"(extra onnx of supermax)."
        )


def export_onnx(folder: str | Path, out: Path, *, trust_remote_code: bool = False) -> OnnxFile:
    """Convert an exported model, compare the result with the model, and write it to `out`.

    Raises UserError if it is an adapter alone, if it cannot be converted, or if a prediction
    differs by more than `TOLERANCE`. `out` is then not written. Where `push` uploads the file, the
    model card gets a program that runs it. `trust_remote_code` permits the code that comes with
    some encoders.
    """
    check_packages()
    folder = Path(folder).expanduser()
    facts = read_whole_facts(folder)
    loaded = load_exported(folder, trust_remote_code=trust_remote_code)
    for encoder in loaded.model.encoders:
        uncache_positions(encoder.model)  # cached ones would be constants of one length
    graph = _Graph(loaded.model).eval()
    try:
        with folder_beside(out) as temporary:
            _convert(graph, loaded, temporary / out.name)
            difference = compare(temporary / out.name, graph, loaded)
            if not difference <= TOLERANCE:  # NaN is a difference
                raise UserError(
                    f"The ONNX file of {folder} was not written: its predictions differ by up to "
                    f"{difference:.1e} from those of the model, and {TOLERANCE:g} is allowed. Use "
                    f"the folder with transformers instead: pipeline() and from_pretrained load "
                    f"it."
                )
            for path in sorted(temporary.iterdir(), reverse=True):  # weights before the graph
                path.replace(out.parent / path.name)
        if out.absolute() == (folder / ONNX).absolute():
            _add_to_card(folder, facts, loaded)
    except OSError as error:
        raise EnvironmentFault(
            f"{out} cannot be written: {in_short(error)}. Make room there, or name another file "
            f"with -o."
        ) from error
    return OnnxFile(out, difference)


def _add_to_card(folder: Path, facts: Facts, loaded: LoadedModel) -> None:
    if not (card := folder / CARD).is_file():
        return
    folders = ENCODER_FOLDERS[: len(loaded.tokenizers)]
    configs = [_config(encoder) for encoder in loaded.model.encoders]
    limits = [max_input_length(Source("", None, config)) for config in configs]
    longest = min(loaded.config.text.max_length, *limits)
    text = with_onnx(card.read_text("utf-8"), facts, folders, longest)
    write_whole(card, text, shared=True)


def _convert(graph: _Graph, loaded: LoadedModel, path: Path) -> None:
    names = [name for names in graph.inputs for name in names]
    batch = torch.export.Dim("batch")
    shapes = tuple(
        {0: batch, 1: torch.export.Dim(f"{prefix}length")}
        for prefix, names in zip(("", "evidence_"), graph.inputs, strict=False)
        for _ in names
    )
    weights = sum(parameter.nbytes for parameter in graph.parameters())
    try:
        with _quiet():
            program = torch.onnx.export(
                graph,
                example(loaded, 2, 16, seed=0),
                dynamo=True,
                dynamic_shapes=(shapes,),
                input_names=names,
                output_names=graph.outputs,
                verbose=False,
            )
    except Exception as error:  # the exporter raises whatever an architecture provokes
        kind = _config(next(iter(loaded.model.encoders))).model_type
        raise UserError(
            f"An encoder of the type {kind!r} cannot be converted to ONNX by torch "
            f"{torch.__version__}: {in_short(error)}. Use the folder with transformers instead: "
            f"pipeline() and from_pretrained load it."
        ) from error
    assert program is not None  # since dynamo=True
    program.save(str(path), external_data=weights > _INLINE)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings about missing packages for other models and about skipped optimizations."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def example(loaded: LoadedModel, batch: int, length: int, seed: int) -> tuple[Tensor, ...]:
    """Return random inputs of the graph. All sequences but the first are padded."""
    generator = torch.Generator().manual_seed(seed)
    tensors: list[Tensor] = []
    for encoder, pad in zip(loaded.model.encoders, loaded.pads, strict=True):
        size = _config(encoder).vocab_size
        ids = torch.randint(0, size, (batch, length), generator=generator)
        ids = torch.where(ids == pad, (pad + 1) % size, ids)
        lengths = torch.tensor([max(1, length - row * length // batch) for row in range(batch)])
        mask = (torch.arange(length) < lengths[:, None]).long()
        types = (torch.arange(length) >= lengths[:, None] // 2).long() * mask
        given = [torch.where(mask.bool(), ids, pad), mask, types]
        tensors += given[: len(_input_names(encoder))]
    return tuple(tensors)


def compare(path: Path, graph: _Graph, loaded: LoadedModel) -> float:
    """Return the largest difference between the file, in ONNX Runtime, and the model."""
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    longest = min(loaded.config.text.max_length, *(_positions(e) for e in loaded.model.encoders))
    batches = [*((b, min(n, longest)) for b, n in _BATCHES), (2, longest)]
    return max(_difference(session, graph, loaded, *batch) for batch in batches)


def _positions(encoder: Encoder) -> int:
    """Return a length that every encoder with these position embeddings supports."""
    return (getattr(_config(encoder), "max_position_embeddings", None) or 1 << 30) - 2


def _difference(
    session: InferenceSession, graph: _Graph, loaded: LoadedModel, batch: int, length: int
) -> float:
    """Return the largest difference in a batch, ignoring padding; NaN if a value is NaN."""
    tensors = example(loaded, batch, length, seed=length)
    with torch.inference_mode():
        ours = [each.numpy() for each in graph(*tensors)]
    names = [name for names in graph.inputs for name in names]
    given = dict(zip(names, (each.numpy() for each in tensors), strict=True))
    used = {each.name for each in session.get_inputs()}
    theirs = session.run(graph.outputs, {n: each for n, each in given.items() if n in used})
    real = given[f"{'evidence_' if len(graph.inputs) == 2 else ''}attention_mask"] == 1
    found = []
    for name, own, other in zip(graph.outputs, ours, theirs, strict=True):
        if name != "logits" or graph.model.token_head is not None:
            own, other = own[real], other[real]
        found.append(np.abs(own - other) / _scale(loaded.model, own))
    return float(np.max(np.concatenate([each.ravel() for each in found])))


def _scale(model: Model, values: NDArray[Any]) -> NDArray[Any] | float:
    """Return 1 for logits; for numbers their size and deviation, as fp32 is relative to them."""
    unit = model.unit
    return 1.0 if unit is None else np.abs(values) + unit.deviation
