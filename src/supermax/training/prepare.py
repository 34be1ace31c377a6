"""Preparation of a trial: model, optimizer, tokenized data and step executor, all seeded.

Config, Splits, Execution ──prepare()──▶ Prepared
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from supermax.agents import agent_of
from supermax.agents.agent import TARGETS, Target
from supermax.errors import Infeasible, UserError
from supermax.training.config import Config
from supermax.training.data.examples import Corpus, Example
from supermax.training.data.label_sets import indicators
from supermax.training.data.tokenized_split import TokenizedSplit
from supermax.training.data.tokens import NONE, Tokens, tokenized
from supermax.training.eval.evaluate import Evaluation, evaluation_of
from supermax.training.eval.metrics import check_metric, decoding_objective
from supermax.training.models.adapters import add_adapter
from supermax.training.models.assembly import Model, Scaling
from supermax.training.models.encoders import check_dropouts, load_encoder, prepared_config
from supermax.training.models.initial_weights import InitialWeights
from supermax.training.models.sources import Source, find
from supermax.training.models.tokenizers import special_ids, tokenizer_for
from supermax.training.optim.fused_adamw import cache_kernels_in
from supermax.training.optim.losses import class_weights, positive_weights
from supermax.training.optim.optimizers import make_optimizer, parameter_groups
from supermax.training.optim.schedules import make_schedule
from supermax.training.steps.compilation import COMPILER
from supermax.training.steps.cuda_graphs import CudaGraphExecutor
from supermax.training.steps.execution import Execution, avoid_onednn, why_eager
from supermax.training.steps.executors import EagerExecutor, StepExecutor
from supermax.training.steps.graph_capture import CudaGraphBackend
from supermax.training.steps.step import TrainingStep

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


@dataclass
class Prepared:
    config: Config
    execution: Execution
    model: Model
    step: TrainingStep
    executor: StepExecutor
    schedule: Callable[[int], float]
    """Factor of the learning rate, by update."""
    train: TokenizedSplit
    validation: TokenizedSplit
    pads: tuple[int, ...]
    """Id of the padding token, for each encoder."""
    tokenizers: tuple[PreTrainedTokenizerFast, ...]
    sources: tuple[Source, ...]
    objective: str
    """Metric that decides which epoch is the best."""
    sign: float
    """1 if a higher objective is better, else -1."""
    seed: int

    def evaluate(self) -> Evaluation:
        """Evaluate the model on the validation split and leave it in evaluation mode.

        Decoding settings that the configuration leaves open are chosen for the objective.
        """
        outputs = self.executor.run_inference(self.validation, self.config.train.epochs)
        choose_for = decoding_objective(self.objective, self.config.agent)
        unit = self.model.unit
        return evaluation_of(outputs, self.config, self.validation, choose_for, unit=unit)


def examples_for(agent: str, corpus: Corpus) -> tuple[Example, ...]:
    """Return the examples that an agent trains on, each with either a label or spans.

    Raises UserError if the corpus lacks the classes or the spans that the agent needs.
    """
    targets = agent_of(agent).targets
    if missing := [t.examples for t in targets if not corpus.of(t)]:
        raise UserError(
            f"The agent '{agent}' needs {' and '.join(missing)}, which '{corpus.name}' does not "
            f"have."
        )
    return tuple(_for_target(target, e) for target in targets for e in corpus.of(target))


def _for_target(target: Target, example: Example) -> Example:
    """Return the example without what other heads learn from."""
    others: dict[str, Any] = {t.field: None for t in TARGETS if t != target}
    return replace(example, **others)


def texts_of(train: Corpus) -> list[str]:
    """Return the texts that a tokenizer is trained on if its encoder comes without one."""
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
    """Load the encoders and build everything that training needs.

    Seeded by `config.train.seed`: the same call gives the same model. `objective` defaults to the
    agent's own metric. `cache` holds tokenized data, trained tokenizers and compiled kernels.
    """
    objective = objective or agent_of(config.agent).metric
    sign = 1.0 if check_metric(objective, config.agent).higher else -1.0
    if execution.threads is not None:
        torch.set_num_threads(execution.threads)
    avoid_onednn(execution)
    sources = encoders_of(config)
    tokenizers = tuple(tokenizer_for(source, texts_of(train), cache) for source in sources)
    seed = config.train.seed
    torch.manual_seed(seed)
    classes = len(train.label_names) or 2
    model = _build_model(config, sources, tokenizers, classes, execution.device)
    model.to(execution.device)
    train_data = tokenize(config, train, sources, tokenizers, cache, sampled=True)
    validation_data = tokenize(config, validation, sources, tokenizers, cache)
    train_data = _standardised(model, train_data)
    weights = _class_weights(config, train_data, len(train.label_names), execution.device)
    step = make_step(model, weights, config, execution)
    updates = -(-len(train_data.chosen) // config.train.effective_batch) * config.train.epochs
    COMPILER.folder = cache / "compiled"
    if execution.device.startswith("cuda"):
        cache_kernels_in(COMPILER.folder / "triton")
    pads = tuple(int(tokenizer.pad_token_id) for tokenizer in tokenizers)
    return Prepared(
        config=config,
        execution=execution,
        model=model,
        step=step,
        executor=make_executor(step, train_data, pads),
        schedule=make_schedule(config.schedule, updates),
        train=train_data,
        validation=validation_data,
        pads=pads,
        tokenizers=tokenizers,
        sources=sources,
        objective=objective,
        sign=sign,
        seed=seed,
    )


def _standardised(model: Model, data: TokenizedSplit) -> TokenizedSplit:
    """Standardise the numbers of the training split, and store mean and deviation in the model.

    Returns the split itself if the model has no head for numbers.
    """
    if model.number_head is None:
        return data
    tokens = data.views[-1]
    numbers = np.asarray(tokens.label, dtype=np.float64)
    scaling = Scaling.of(numbers[data.chosen])
    model.set_scaling(scaling)
    label = (numbers - scaling.mean) / scaling.deviation
    return replace(data, views=(*data.views[:-1], replace(tokens, label=label)))


def make_step(
    model: Model, weights: Tensor | None, config: Config, execution: Execution
) -> TrainingStep:
    """Return the eager step of a model on its device, with its optimizer."""
    if execution.checkpoint_activations:
        model.checkpoint_activations()
    groups = parameter_groups(model, config.optim, model.layers_above())
    optimizer = make_optimizer(groups, config.optim, execution.device)
    return TrainingStep(model, optimizer, config, weights, execution)


def make_executor(step: TrainingStep, data: TokenizedSplit, pads: tuple[int, ...]) -> StepExecutor:
    """Return the CUDA graph executor, or the eager one where steps cannot be captured."""
    reason = why_eager(step.execution)
    eager = EagerExecutor(step, data, pads, reason)
    if reason is not None:
        return eager
    return CudaGraphExecutor(eager, CudaGraphBackend(step.execution.device), COMPILER)


def encoders_of(config: Config) -> tuple[Source, ...]:
    """Find the encoder of a configuration, or both encoders of an agent with two."""
    first = find(config.encoder.name)
    if agent_of(config.agent).encoders == 1:
        return (first,)
    other = config.evidence_encoder
    return (first, find(other.name) if other is not None else first)


INITIAL_WEIGHTS = InitialWeights()
"""Cache of the encoders' initial weights in this process."""


def _build_model(
    config: Config,
    sources: tuple[Source, ...],
    tokenizers: tuple[PreTrainedTokenizerFast, ...],
    classes: int,
    device: str,
) -> Model:
    encoders: list[PreTrainedModel] = []
    dropouts = config.encoder.dropout, config.encoder.attention_dropout
    check_dropouts(sources, *dropouts)
    for source, tokenizer in zip(sources, tokenizers, strict=True):
        ids = special_ids(tokenizer)
        encoder_config = prepared_config(source, *dropouts, **ids)
        if device == "cpu":  # a cached copy would count against the trial's memory budget
            encoders.append(load_encoder(source, encoder_config))
        else:
            encoder = INITIAL_WEIGHTS.encoder(source, encoder_config, device, of=len(sources))
            encoders.append(encoder)
    model = Model(config, encoders, classes)
    add_adapter(model, config.adapter, [source.name for source in sources])
    return model


def tokenize(
    config: Config,
    corpus: Corpus,
    sources: tuple[Source, ...],
    tokenizers: tuple[PreTrainedTokenizerFast, ...],
    cache: Path,
    sampled: bool = False,
) -> TokenizedSplit:
    """Tokenize a split, or read its tokens from the cache.

    With `sampled`, only the share `train.negative_ratio` of the windows without an answer is
    chosen. Raises Infeasible if no window is left.
    """
    examples = examples_for(config.agent, corpus)
    key = f"{config.agent} {corpus.fingerprint}"
    last = _tokens(examples, tokenizers[-1], sources[-1], config, cache, key)
    if agent_of(config.agent).label_sets:
        label = indicators(examples, len(corpus.label_names))[last.example]
        last = replace(last, label=label)
    views: tuple[Tokens, ...] = (last,)
    if len(sources) == 2:
        same_windows = tuple(_windows(examples, last))
        lengths = config.text.max_length, config.text.doc_stride
        windows_key = f"{key} windows of {sources[1].fingerprint} {lengths}"
        first = _tokens(same_windows, tokenizers[0], sources[0], config, cache, windows_key)
        views = (first, last)
    if agent_of(config.agent).entities and not config.train.label_all_tokens:
        views = (last.with_first_tags(),)
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
    return TokenizedSplit(examples, views, chosen)


def _tokens(
    examples: tuple[Example, ...],
    tokenizer: PreTrainedTokenizerFast,
    source: Source,
    config: Config,
    cache: Path,
    key: str,
) -> Tokens:
    return tokenized(
        examples,
        tokenizer,
        max_length=min(config.text.max_length, max_input_length(source)),
        doc_stride=config.text.doc_stride,
        cache=cache,
        key=f"{key} {_tokenizer_digest(tokenizer)}",
        windows=config.window_stride is not None,
    )


_LIMITS = {"neobert": "max_length"}
"""Keys of the limit of tokens, of model types that have another one."""


def max_input_length(source: Source) -> int:
    """Return the most tokens that the encoder's position embeddings allow."""
    key = _LIMITS.get(source.config.model_type, "max_position_embeddings")
    positions = getattr(source.config, key, None) or 1 << 30
    # RoBERTa's positions start at the padding index + 1.
    shifted = source.config.model_type in ("roberta", "xlm-roberta", "camembert")
    return int(positions) - (2 if shifted else 0)


def _tokenizer_digest(tokenizer: PreTrainedTokenizerFast) -> str:
    """Return a digest of everything that decides how the tokenizer splits a text."""
    backend = tokenizer.backend_tokenizer
    # The backend keeps truncation and padding of its last call, and every call sets them again.
    backend.no_truncation()
    backend.no_padding()
    facts = f"{tokenizer.truncation_side} {backend.to_str()}"
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def _windows(examples: tuple[Example, ...], tokens: Tokens) -> list[Example]:
    """Return the piece of text of every window of `tokens`.

    The other encoder of a pair reads these pieces, so that both see the same text.
    """
    result = []
    for i in range(len(tokens)):
        example = examples[int(tokens.example[i])]
        offsets = tokens.offsets[tokens.begin[i] : tokens.begin[i + 1]]
        context = offsets[offsets[:, 0] >= 0]
        text = example.text
        if len(context):
            text = text[int(context[0, 0]) : int(context[-1, 1])]
        result.append(replace(example, text=text, spans=None, label=None))
    return result


def _class_weights(
    config: Config, data: TokenizedSplit, classes: int, device: str
) -> Tensor | None:
    """Return the loss's weights of classes, also those of tokens, or of the positive examples of
    labels; None without them, or if all weigh the same."""
    last = data.views[-1]
    labels = last.tags_of(data.chosen) if len(last.tag) else last.label[data.chosen]
    if labels.ndim > 1:
        positives = [int(count) for count in labels.sum(0)]
        found = positive_weights(positives, len(labels), config.loss)
        return None if found is None else found.to(device)
    if labels.dtype.kind == "f":
        return None
    classes = 2 * classes + 1 if len(last.tag) else classes
    counts = np.bincount(labels[labels != NONE], minlength=classes)
    if not counts.sum():
        return None
    weights = class_weights([int(count) for count in counts], config.loss)
    return None if weights is None else weights.to(device)
