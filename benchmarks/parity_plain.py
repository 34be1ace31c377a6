"""Plain side of parity.py: a loop of PyTorch and transformers as their documentation uses them.

Nothing here imports Supermax. It has share and joint, which transformers has no model for, and the
agents with one of their heads. One process, eager, dynamic padding, random batches, AdamW without
weight decay on biases and norms, linear schedule with warm-up, clipping, bf16 autocast on a GPU.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from parity_data import CLIP, DECAY, DROPOUT, WARMUP, Row, Split, Task
from parity_metrics import Answer, answer_metrics, macro_f1
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    get_linear_schedule_with_warmup,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
IGNORED = -100


@dataclass(frozen=True)
class Feature:
    """One sequence: token ids, targets, and character offsets of its tokens in the passage."""

    ids: list[int]
    types: list[int]
    label: int = IGNORED
    start: int = IGNORED
    end: int = IGNORED
    row: int = 0
    offsets: tuple[tuple[int, int], ...] = ()


def class_features(
    rows: list[Row], tokenizer: PreTrainedTokenizerBase, length: int
) -> list[Feature]:
    texts = [r.text for r in rows]
    pairs = ([r.question for r in rows], texts) if rows[0].question else (texts,)
    cut = "only_second" if rows[0].question else True
    encoded = tokenizer(*pairs, truncation=cut, max_length=length)
    types = encoded.get("token_type_ids") or [[0] * len(ids) for ids in encoded["input_ids"]]
    return [
        Feature(ids, kinds, label=row.label, row=i)
        for i, (ids, kinds, row) in enumerate(zip(encoded["input_ids"], types, rows, strict=True))
    ]


def span_features(
    rows: list[Row], tokenizer: PreTrainedTokenizerBase, length: int, stride: int
) -> list[Feature]:
    """Return windows of a passage. The target is position 0 if a window lacks the whole answer."""
    encoded = tokenizer(
        [r.question for r in rows],
        [r.text for r in rows],
        truncation="only_second",
        max_length=length,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    found = []
    for i, number in enumerate(encoded["overflow_to_sample_mapping"]):
        row, parts = rows[number], encoded.sequence_ids(i)
        offsets = tuple(
            tuple(o) if part == 1 else (-1, -1)
            for o, part in zip(encoded["offset_mapping"][i], parts, strict=True)
        )
        start = end = 0
        if row.start >= 0:
            begin, stop = row.start, row.start + len(row.answer)
            inside = [k for k, (a, b) in enumerate(offsets) if a >= 0 and a < stop and b > begin]
            if inside and offsets[inside[0]][0] <= begin and offsets[inside[-1]][1] >= stop:
                start, end = inside[0], inside[-1]
        found.append(
            Feature(encoded["input_ids"][i], encoded["token_type_ids"][i], start=start, end=end,
                    row=number, offsets=offsets)
        )  # fmt: skip
    return found


def collate(features: list[Feature], pad: int) -> dict[str, Tensor]:
    longest = max(len(f.ids) for f in features)

    def padded(values: list[int], filler: int) -> list[int]:
        return values + [filler] * (longest - len(values))

    columns = {
        "input_ids": [padded(f.ids, pad) for f in features],
        "attention_mask": [padded([1] * len(f.ids), 0) for f in features],
        "token_type_ids": [padded(f.types, 0) for f in features],
        "labels": [f.label for f in features],
        "starts": [f.start for f in features],
        "ends": [f.end for f in features],
    }
    return {name: torch.tensor(values).to(DEVICE) for name, values in columns.items()}


# Models: class logits, start logits and end logits; None where a model has none.


class Classifier(nn.Module):
    def __init__(self, encoder: str, classes: int) -> None:
        super().__init__()
        self.model = AutoModelForSequenceClassification.from_pretrained(
            encoder, num_labels=classes, dtype=torch.float32
        )

    def forward(self, **inputs: Tensor) -> tuple[Tensor | None, ...]:
        return self.model(**inputs).logits, None, None


class Answerer(nn.Module):
    def __init__(self, encoder: str, classes: int) -> None:
        super().__init__()
        self.model = AutoModelForQuestionAnswering.from_pretrained(encoder, dtype=torch.float32)

    def forward(self, **inputs: Tensor) -> tuple[Tensor | None, ...]:
        outputs = self.model(**inputs)
        return None, outputs.start_logits, outputs.end_logits


def head(size: int, outputs: int) -> nn.Linear:
    """Return a linear layer, initialised as transformers initialises its heads."""
    made = nn.Linear(size, outputs)
    nn.init.normal_(made.weight, std=0.02)
    nn.init.zeros_(made.bias)
    return made


class TwoHeads(nn.Module):
    """One encoder with a class head on the first token and a span head on all tokens."""

    def __init__(self, encoder: str, classes: int) -> None:
        super().__init__()
        self.encoder = AutoModel.from_pretrained(encoder, dtype=torch.float32)
        size = self.encoder.config.hidden_size
        self.dropout = nn.Dropout(DROPOUT)
        self.classes, self.spans = head(size, classes), head(size, 2)

    def forward(self, **inputs: Tensor) -> tuple[Tensor | None, ...]:
        states = self.encoder(**inputs).last_hidden_state
        starts, ends = self.spans(self.dropout(states)).unbind(-1)
        return self.classes(self.dropout(states[:, 0])), starts, ends


class TwoEncoders(nn.Module):
    """Two encoders: each token of the second, concatenated with the first token of the first."""

    SIZE = 256

    def __init__(self, encoder: str, classes: int) -> None:
        super().__init__()
        self.first = AutoModel.from_pretrained(encoder, dtype=torch.float32)
        self.second = AutoModel.from_pretrained(encoder, dtype=torch.float32)
        size = self.first.config.hidden_size
        self.dropout = nn.Dropout(DROPOUT)
        # Default initialisation of torch: with a standard deviation of 0.02, three linear layers
        # in a row would start with an output near zero.
        self.of_first, self.of_second = nn.Linear(size, self.SIZE), nn.Linear(size, self.SIZE)
        self.mix = nn.Linear(2 * self.SIZE, self.SIZE)
        self.classes, self.spans = nn.Linear(self.SIZE, classes), nn.Linear(self.SIZE, 2)

    def forward(self, **inputs: Tensor) -> tuple[Tensor | None, ...]:
        summary = self.of_first(self.first(**inputs).last_hidden_state[:, :1])
        tokens = self.of_second(self.second(**inputs).last_hidden_state)
        both = torch.cat([tokens, summary.expand_as(tokens)], dim=-1)
        mixed = nn.functional.gelu(self.mix(both))
        starts, ends = self.spans(self.dropout(mixed)).unbind(-1)
        return self.classes(self.dropout(mixed[:, 0])), starts, ends


MODELS: dict[str, Callable[[str, int], nn.Module]] = {
    "criteria": Classifier,
    "evidence": Answerer,
    "share": TwoHeads,
    "joint": TwoEncoders,
}


def loss_of(outputs: tuple[Tensor | None, ...], batch: dict[str, Tensor]) -> Tensor:
    """Return the mean loss; for two heads, the mean of both."""
    classes, starts, ends = outputs
    parts = []
    if classes is not None and (batch["labels"] != IGNORED).any():
        parts.append(nn.functional.cross_entropy(classes.float(), batch["labels"]))
    if starts is not None and ends is not None and (batch["starts"] != IGNORED).any():
        hidden = batch["attention_mask"] == 0
        both = [
            nn.functional.cross_entropy(logits.float().masked_fill(hidden, -1e9), batch[name])
            for logits, name in ((starts, "starts"), (ends, "ends"))
        ]
        parts.append((both[0] + both[1]) / 2)
    several = classes is not None and starts is not None
    return sum(parts) * (0.5 if several else 1.0)  # type: ignore[return-value]


def train(task: Task, encoder: str, data: Split, seed: int) -> Iterator[dict[str, float]]:
    """Yield the held-out metrics after each epoch."""
    train_rows, held, names = data
    torch.manual_seed(seed)
    shuffling = random.Random(seed)
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    features: list[Feature] = []
    if task.agent != "evidence":
        features += class_features(train_rows, tokenizer, task.length)
    if task.agent != "criteria":
        features += span_features(train_rows, tokenizer, task.length, task.stride)
    model = MODELS[task.agent](encoder, len(names)).to(DEVICE)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}],
        lr=task.rate,
    )
    updates = -(-len(features) // task.batch) * task.epochs
    schedule = get_linear_schedule_with_warmup(optimizer, round(WARMUP * updates), updates)
    for _ in range(task.epochs):
        model.train()
        order = list(range(len(features)))
        shuffling.shuffle(order)
        for first in range(0, len(order), task.batch):
            some = [features[i] for i in order[first : first + task.batch]]
            batch = collate(some, tokenizer.pad_token_id)
            with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
                outputs = model(**inputs_of(batch))
            loss_of(outputs, batch).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        yield evaluate(task, model, tokenizer, held)


def inputs_of(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: batch[k] for k in ("input_ids", "attention_mask", "token_type_ids")}


@torch.inference_mode()
def evaluate(
    task: Task, model: nn.Module, tokenizer: PreTrainedTokenizerBase, held: list[Row]
) -> dict[str, float]:
    model.eval()
    found: dict[str, float] = {}

    def outputs(features: list[Feature]) -> Iterator[tuple[Feature, list[Any]]]:
        for first in range(0, len(features), 64):
            some = features[first : first + 64]
            batch = collate(some, tokenizer.pad_token_id)
            with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
                logits = model(**inputs_of(batch))
            parts = [None if x is None else x.float().cpu() for x in logits]
            for i, feature in enumerate(some):
                yield feature, [None if x is None else x[i] for x in parts]

    if task.agent != "evidence":
        features = class_features(held, tokenizer, task.length)
        predicted = [int(logits[0].argmax()) for _, logits in outputs(features)]
        found["macro_f1"] = macro_f1([row.label for row in held], predicted)
    if task.agent != "criteria":
        best: dict[int, Answer] = {}
        for feature, (_, starts, ends) in outputs(
            span_features(held, tokenizer, task.length, task.stride)
        ):
            answer = best_answer(feature, starts, ends, task.max_answer)
            if feature.row not in best or answer.margin > best[feature.row].margin:
                best[feature.row] = answer
        found |= answer_metrics(held, [best[i] for i in range(len(held))])
    return found


def best_answer(feature: Feature, starts: Tensor, ends: Tensor, longest: int) -> Answer:
    """Return the best span of a window."""
    count = len(feature.ids)
    inside = torch.tensor([a >= 0 for a, _ in feature.offsets])
    scores = starts[:count, None] + ends[None, :count]
    allowed = torch.ones(count, count).triu().tril(longest - 1).bool()
    scores = scores.masked_fill(~(allowed & inside[:, None] & inside[None]), -1e9)
    place = int(scores.argmax())
    first, last = place // count, place % count
    margin = float(scores.max() - starts[0] - ends[0])
    return Answer(feature.offsets[first][0], feature.offsets[last][1], margin)
