"""Plain side of parity.py with Trainer, as the example scripts of transformers use it.

Nothing here imports Supermax. AutoModelForSequenceClassification with a problem_type, or
AutoModelForTokenClassification with labels at the first token of each word (run_ner.py), or
AutoModelForQuestionAnswering; dynamic padding, random batches, torch's fused AdamW, linear
schedule with warm-up, clipping, bf16 autocast on a GPU.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from parity_data import CLIP, DECAY, WARMUP, Row, Split, Task
from parity_metrics import (
    Answer,
    answer_metrics,
    entity_metrics,
    label_metrics,
    macro_f1,
    number_metrics,
)
from parity_plain import DEVICE, IGNORED, Feature, best_answer, span_features
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    set_seed,
)

MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "criteria": (
        AutoModelForSequenceClassification,
        {"problem_type": "single_label_classification"},
    ),
    "multilabel": (
        AutoModelForSequenceClassification,
        {"problem_type": "multi_label_classification"},
    ),
    "regression": (AutoModelForSequenceClassification, {"problem_type": "regression"}),
    "token-classification": (AutoModelForTokenClassification, {}),
    "evidence": (AutoModelForQuestionAnswering, {}),
}
"""Class of the model and its settings, of the agents that transformers has a model for."""
Features = list[dict[str, Any]]
Metrics = Callable[[EvalPrediction], dict[str, float]]


def features_of(
    task: Task, rows: list[Row], names: list[str], tokenizer: PreTrainedTokenizerBase
) -> Features:
    """Return the inputs of the model, with their labels, in the order of the rows."""
    if task.agent == "evidence":
        return [span_inputs(f) for f in span_features(rows, tokenizer, task.length, task.stride)]
    if task.agent == "token-classification":
        return tagged_inputs(task, rows, names, tokenizer)
    texts = [row.text for row in rows]
    pairs = ([row.question for row in rows], texts) if rows[0].question else (texts,)
    cut = "only_second" if rows[0].question else True
    encoded = tokenizer(*pairs, truncation=cut, max_length=task.length)
    return [
        {**columns_of(encoded, i), "labels": target(task, row, names)}
        for i, row in enumerate(rows)
    ]


def columns_of(encoded: Any, i: int) -> dict[str, Any]:
    """Return the inputs of one text."""
    return {name: column[i] for name, column in encoded.items()}


def target(task: Task, row: Row, names: list[str]) -> Any:
    """Return the label of a text: a class, an indicator of each label, or a number."""
    if task.agent == "multilabel":
        return [float(i in row.labels) for i in range(len(names))]
    return row.value if task.agent == "regression" else row.label


def span_inputs(feature: Feature) -> dict[str, Any]:
    return {
        "input_ids": feature.ids,
        "attention_mask": [1] * len(feature.ids),
        "token_type_ids": feature.types,
        "start_positions": feature.start,
        "end_positions": feature.end,
    }


def tag_names(types: list[str]) -> list[str]:
    return ["O", *(f"{prefix}-{name}" for name in types for prefix in "BI")]


def first_tokens(word_ids: list[int | None]) -> dict[int, int]:
    """Return the position of the first token of each word that has one."""
    found: dict[int, int] = {}
    for position, word in enumerate(word_ids):
        if word is not None:
            found.setdefault(word, position)
    return found


def tagged_inputs(
    task: Task, rows: list[Row], types: list[str], tokenizer: PreTrainedTokenizerBase
) -> Features:
    """Return tokens with the tag of a word at its first token; other tokens are ignored."""
    classes = {name: i for i, name in enumerate(tag_names(types))}
    encoded = encoded_words(task, rows, tokenizer)
    found = []
    for i, row in enumerate(rows):
        labels = [IGNORED] * len(encoded["input_ids"][i])
        for word, position in first_tokens(encoded.word_ids(i)).items():
            labels[position] = classes[row.tags[word]]
        found.append({**columns_of(encoded, i), "labels": labels})
    return found


def encoded_words(task: Task, rows: list[Row], tokenizer: PreTrainedTokenizerBase) -> Any:
    words = [list(row.words) for row in rows]
    return tokenizer(words, is_split_into_words=True, truncation=True, max_length=task.length)


# Metrics, from the logits of all held-out features.


def metrics_for(
    task: Task, held: list[Row], names: list[str], tokenizer: PreTrainedTokenizerBase
) -> Metrics:
    if task.agent == "evidence":
        features = span_features(held, tokenizer, task.length, task.stride)
        return lambda found: _answered(task, held, features, found.predictions)
    if task.agent == "token-classification":
        encoded = encoded_words(task, held, tokenizer)
        positions = [first_tokens(encoded.word_ids(i)) for i in range(len(held))]
        return lambda found: entity_metrics(held, _tags(held, names, positions, found.predictions))
    if task.agent == "multilabel":
        return lambda found: label_metrics(held, 1 / (1 + np.exp(-_float64(found.predictions))))
    if task.agent == "regression":
        return lambda found: number_metrics(held, _float64(found.predictions)[:, 0])
    true = [row.label for row in held]
    return lambda found: {"macro_f1": macro_f1(true, found.predictions.argmax(-1))}


def _float64(logits: Any) -> Any:
    return np.asarray(logits, dtype=np.float64)


def _tags(
    rows: list[Row], types: list[str], positions: list[dict[int, int]], logits: Any
) -> list[list[str]]:
    """Return the predicted tag of each word; O for a word without a token."""
    names, likely = tag_names(types), logits.argmax(-1)
    return [
        [names[classes[places[i]]] if i in places else "O" for i in range(len(row.words))]
        for classes, row, places in zip(likely, rows, positions, strict=True)
    ]


def _answered(
    task: Task, held: list[Row], features: list[Feature], logits: Any
) -> dict[str, float]:
    best: dict[int, Answer] = {}
    starts, ends = (torch.from_numpy(each) for each in logits)
    for feature, start, end in zip(features, starts, ends, strict=True):
        answer = best_answer(feature, start, end, task.max_answer)
        if feature.row not in best or answer.margin > best[feature.row].margin:
            best[feature.row] = answer
    return answer_metrics(held, [best[i] for i in range(len(held))])


# Training.


def make_trainer(
    task: Task,
    encoder: str,
    data: Split,
    seed: int,
    folder: str,
    *,
    raw: bool = False,
    pooler: bool = False,
) -> Trainer:
    """Return a Trainer that evaluates after every epoch.

    `raw`: the numbers of a regression are trained on as they are, not standardised. `pooler`: the
    head begins with the pooler of the checkpoint and with the class layer that transformers
    initialises, not with layers as torch initialises them.
    """
    train, held, names = data
    set_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    features = [features_of(task, rows, names, tokenizer) for rows in (train, held)]
    if task.agent == "regression" and not raw:
        numbers = np.array([row.value for row in train])
        for one in (*features[0], *features[1]):
            one["labels"] = float((one["labels"] - numbers.mean()) / numbers.std())
    kind, settings = MODELS[task.agent]
    if task.agent != "evidence":
        outputs = {"regression": 1, "token-classification": len(tag_names(names))}
        settings = {**settings, "num_labels": outputs.get(task.agent, len(names))}
    padding = (
        DataCollatorForTokenClassification
        if task.agent == "token-classification"
        else DataCollatorWithPadding
    )
    # A checkpoint in fp16 would otherwise be trained in fp16.
    model = kind.from_pretrained(encoder, dtype=torch.float32, **settings)
    if task.agent in ("multilabel", "regression") and not pooler:
        model.bert.pooler.dense.reset_parameters()
        model.classifier.reset_parameters()
    return Trainer(
        model,
        TrainingArguments(
            output_dir=folder,
            num_train_epochs=task.epochs,
            per_device_train_batch_size=task.batch,
            per_device_eval_batch_size=64,
            learning_rate=task.rate,
            weight_decay=DECAY,
            lr_scheduler_type="linear",
            warmup_steps=WARMUP,
            max_grad_norm=CLIP,
            bf16=DEVICE == "cuda",
            use_cpu=DEVICE == "cpu",
            seed=seed,
            eval_strategy="epoch",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=features[0],
        eval_dataset=features[1],
        data_collator=padding(tokenizer),
        processing_class=tokenizer,
        compute_metrics=metrics_for(task, held, names, tokenizer),
    )


def train(
    task: Task, encoder: str, data: Split, seed: int, *, raw: bool = False, pooler: bool = False
) -> list[dict[str, float]]:
    """Return the held-out metrics after each epoch."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(task, encoder, data, seed, folder, raw=raw, pooler=pooler)
        trainer.train()
    return epochs_of(trainer, task)


def epochs_of(trainer: Trainer, task: Task) -> list[dict[str, float]]:
    """Return the metrics of each evaluation."""
    lines = [line for line in trainer.state.log_history if f"eval_{task.metrics[0]}" in line]
    return [{name: line[f"eval_{name}"] for name in task.metrics} for line in lines]
