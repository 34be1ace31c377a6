"""From a configuration and a corpus to everything the loop needs.

Config, Splits, Execution ──prepare()──▶ Prepared
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from supermax.errors import Infeasible, UserError
from supermax.training.captured import CapturedWay
from supermax.training.compiling import COMPILER
from supermax.training.config import Config
from supermax.training.data.examples import Corpus, Example
from supermax.training.encoders import load
from supermax.training.encoders import prepared as prepared_config
from supermax.training.first_weights import FirstWeights
from supermax.training.fused import keep_in
from supermax.training.losses import class_weights
from supermax.training.metrics import check_metric
from supermax.training.models import Model
from supermax.training.optimizers import make_optimizer, parameter_groups
from supermax.training.recording import Graphs
from supermax.training.schedules import make_schedule
from supermax.training.sources import Source, find
from supermax.training.steps import EagerStep, Execution, avoid_onednn, why_eager
from supermax.training.tokenizers import special_ids, tokenizer_for
from supermax.training.tokens import NONE, Tokens, tokenised
from supermax.training.ways import EagerWay, Way

DEFAULT_METRIC = {
    "criteria": "macro_f1",
    "evidence": "token_f1",
    "share": "macro_f1",
    "joint": "macro_f1",
}


@dataclass(frozen=True)
class Data:
    """One split, tokenised for each encoder; `chosen` are the sequences that count."""

    examples: tuple[Example, ...]
    views: tuple[Tokens, ...]
    chosen: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        return self.views[-1].lengths[self.chosen]

    def rows(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.chosen[indices]

    def targets(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Labels and starts of some sequences, for what sums are divided by."""
        rows = self.rows(indices)
        labels, starts = self.views[-1].label[rows], self.views[-1].start[rows]
        return (
            torch.from_numpy(labels.astype(np.int64)),
            torch.from_numpy(starts.astype(np.int64)),
        )


@dataclass
class Prepared:
    """A trial that is ready to be trained."""

    config: Config
    execution: Execution
    model: Model
    step: EagerStep
    way: Way
    schedule: Callable[[int], float]
    weights: Tensor | None
    train: Data
    validation: Data
    pads: tuple[int, ...]
    tokenizers: tuple[Any, ...]
    sources: tuple[Source, ...]
    objective: str
    sign: float
    seed: int


def examples_for(agent: str, corpus: Corpus) -> tuple[Example, ...]:
    """What an agent learns from: each example asks for one thing."""
    classes = tuple(replace(e, spans=None) for e in corpus.classes)
    spans = tuple(replace(e, label=None) for e in corpus.spans)
    wanted = {"criteria": classes, "evidence": spans}.get(agent, classes + spans)
    if not wanted or (agent in ("share", "joint") and not (classes and spans)):
        lacks = []
        if agent != "evidence" and not classes:
            lacks.append("classes (map the column of the labels)")
        if agent != "criteria" and not spans:
            lacks.append("spans (map the column of the answers)")
        needs = " and ".join(lacks)
        raise UserError(f"The agent '{agent}' needs {needs}, which '{corpus.name}' does not have.")
    return wanted


def texts_of(train: Corpus) -> list[str]:
    """What a tokenizer is learnt from where an encoder has none."""
    return [text for e in train.examples for text in (e.question, e.text) if text]


def prepare(
    config: Config,
    train: Corpus,
    validation: Corpus,
    *,
    cache: Path,
    execution: Execution = Execution(),  # noqa: B008 (frozen)
    objective: str | None = None,
) -> Prepared:
    """Find, load and build everything; seeded, so that the same call gives the same model."""
    objective = objective or DEFAULT_METRIC[config.agent]
    sign = 1.0 if check_metric(objective, config.agent).higher else -1.0
    if execution.threads is not None:
        torch.set_num_threads(execution.threads)
    avoid_onednn(execution)
    sources = encoders_of(config)
    tokenizers = tuple(tokenizer_for(source, texts_of(train), cache) for source in sources)
    seed = config.train.seed
    torch.manual_seed(seed)
    model = _model(config, sources, tokenizers, len(train.label_names) or 2, execution.device)
    model.to(execution.device)
    if execution.checkpoint_activations:
        model.checkpoint_activations()
    data = [
        tokenise(config, corpus, sources, tokenizers, cache, sampled)
        for corpus, sampled in ((train, True), (validation, False))
    ]
    weights = _weights(config, data[0], len(train.label_names), execution.device)
    groups = parameter_groups(model, config.optim, model.layers_above())
    optimizer = make_optimizer(groups, config.optim, torch.device(execution.device))
    updates = -(-len(data[0].chosen) // config.train.effective_batch) * config.train.epochs
    step = EagerStep(model, optimizer, config, weights, execution)
    COMPILER.folder = cache / "compiled"
    if execution.device.startswith("cuda"):
        keep_in(COMPILER.folder / "triton")
    pads = tuple(int(tokenizer.pad_token_id) for tokenizer in tokenizers)
    return Prepared(
        config=config,
        execution=execution,
        model=model,
        step=step,
        way=way_to_step(step, data[0], pads),
        schedule=make_schedule(config.schedule, updates),
        weights=weights,
        train=data[0],
        validation=data[1],
        pads=pads,
        tokenizers=tokenizers,
        sources=sources,
        objective=objective,
        sign=sign,
        seed=seed,
    )


def way_to_step(step: EagerStep, data: Data, pads: tuple[int, ...]) -> Way:
    """Recorded steps on a GPU, where they can be recorded."""
    reason = why_eager(step.execution)
    eager = EagerWay(step, data, pads, reason)
    if reason is not None:
        return eager
    return CapturedWay(eager, Graphs(step.execution.device), COMPILER)


def encoders_of(config: Config) -> tuple[Source, ...]:
    first = find(config.encoder.name)
    if config.agent != "joint":
        return (first,)
    other = config.evidence_encoder
    return (first, find(other.name) if other is not None else first)


FIRST = FirstWeights()
"""Of this process."""


def _model(
    config: Config,
    sources: tuple[Source, ...],
    tokenizers: tuple[Any, ...],
    classes: int,
    device: str,
) -> Model:
    encoders: list[Any] = []
    for source, tokenizer in zip(sources, tokenizers, strict=True):
        ids = special_ids(tokenizer)
        dropouts = config.encoder.dropout, config.encoder.attention_dropout
        made = prepared_config(source, *dropouts, **ids)
        if device == "cpu":  # a second copy would count against the trial's memory
            encoders.append(load(source, made))
        else:
            encoders.append(FIRST.encoder(source, made, device, of=len(sources)))
    return Model(config, encoders, classes)


def tokenise(
    config: Config,
    corpus: Corpus,
    sources: tuple[Source, ...],
    tokenizers: tuple[Any, ...],
    cache: Path,
    sampled: bool = False,
) -> Data:
    """A split's tokens. With `sampled`, only some of the windows without an answer count."""
    examples = examples_for(config.agent, corpus)
    key = f"{config.agent} {corpus.fingerprint}"
    last = _tokens(examples, tokenizers[-1], sources[-1], config, cache, key)
    views: tuple[Tokens, ...] = (last,)
    if len(sources) == 2:
        same_windows = tuple(_windows(examples, last))
        lengths = config.text.max_length, config.text.doc_stride
        more = f"{key} windows of {sources[1].fingerprint} {lengths}"
        views = (_tokens(same_windows, tokenizers[0], sources[0], config, cache, more), last)
    chosen = np.arange(len(last))
    if sampled and config.train.negative_ratio < 1:
        rng = np.random.Generator(np.random.PCG64([config.train.seed, 0]))
        keep = rng.random(len(last)) < config.train.negative_ratio
        chosen = chosen[(last.start != 0) | keep]
        if not len(chosen):
            raise Infeasible(
                f"With train.negative_ratio at {config.train.negative_ratio:g} nothing is left to "
                f"learn from: no window of {config.text.max_length} tokens holds an answer."
            )
    return Data(examples, views, chosen)


def _tokens(
    examples: tuple[Example, ...],
    tokenizer: Any,
    source: Source,
    config: Config,
    cache: Path,
    key: str,
) -> Tokens:
    limit = min(config.text.max_length, longest(source))
    return tokenised(
        examples,
        tokenizer,
        max_length=limit,
        doc_stride=config.text.doc_stride,
        cache=cache,
        key=f"{key} {_vocabulary(tokenizer)}",
    )


def longest(source: Source) -> int:
    """What the encoder's positions allow; RoBERTa's begin after the padding's."""
    positions = getattr(source.config, "max_position_embeddings", None) or 1 << 30
    shifted = source.config.model_type in ("roberta", "xlm-roberta", "camembert")
    return int(positions) - (2 if shifted else 0)


def _vocabulary(tokenizer: Any) -> str:
    """Digest of what the tokenizer makes of a text. The backend keeps the truncation and padding
    of its last call, and every call sets them anew: they are no part of it."""
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    facts = f"{tokenizer.truncation_side} {backend.to_str()}"
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def _windows(examples: tuple[Example, ...], tokens: Tokens) -> list[Example]:
    """For the other encoder of a pair: the same pieces of text, cut by the first one's tokens."""
    result = []
    for i in range(len(tokens)):
        example = examples[int(tokens.example[i])]
        offsets = tokens.offsets[tokens.begin[i] : tokens.begin[i + 1]]
        inside = offsets[offsets[:, 0] >= 0]
        text = example.text
        if len(inside):
            text = text[int(inside[0, 0]) : int(inside[-1, 1])]
        result.append(replace(example, text=text, spans=None, label=None))
    return result


def _weights(config: Config, data: Data, classes: int, device: str) -> Tensor | None:
    labels = data.views[-1].label[data.chosen]
    counts = np.bincount(labels[labels != NONE], minlength=classes)
    if not counts.sum():
        return None
    weights = class_weights([int(count) for count in counts], config.loss)
    return None if weights is None else weights.to(device)
