"""Agents compared with a plain loop of PyTorch and transformers.

Both start with the same weights and see the same examples in the same order. The plain side pads,
takes every effective batch at once and averages; Supermax packs sequences and splits batches. In
float64 the two differ only by rounding, which proves that packing, micro-batches, normalisation of
losses, clipping, schedule and evaluation are those of the plain loop.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import BertModel, get_linear_schedule_with_warmup

from supermax.training.data.examples import Corpus, Example
from supermax.training.eval.evaluate import Evaluation
from supermax.training.loop import train
from supermax.training.models.assembly import Model
from supermax.training.prepare import Prepared, prepare
from supermax.training.steps.batches import collate, micro_batches, order, packed
from supermax.training.steps.execution import Execution
from tests import ROOT
from tests.training.corpora import Quiet, config, corpus

sys.path.append(str(ROOT / "benchmarks"))
import parity_plain as plain


def of_all_lengths(n: int, seed: int) -> Corpus:
    """Return a corpus whose texts with a class are short, or too long, as those with spans."""
    spans = corpus(n, seed).spans
    more = corpus(n, seed + 10).spans
    classes = tuple(replace(e, label=int(bool(e.spans)), spans=None) for e in more)
    return Corpus("toy", ("no", "yes"), classes, spans)


TRAINED_ON, HELD_OUT = of_all_lengths(30, 1), of_all_lengths(15, 2)
BATCH, MICRO, EPOCHS, RATE, DECAY, CLIP, WARMUP = 11, 4, 2, 1e-3, 0.05, 0.5, 0.1
LENGTH, STRIDE, N_BEST, LONGEST, PAD = 40, 8, 10, 4, 0


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "DEVICE", "cpu")


# The plain side.


class Classifier(nn.Module):
    """A linear map of the first token's state."""

    def __init__(self, encoder: str, classes: int) -> None:
        super().__init__()
        self.encoder = BertModel.from_pretrained(encoder, add_pooling_layer=False)
        self.classes = nn.Linear(self.encoder.config.hidden_size, classes)

    def forward(self, **inputs: Tensor) -> tuple[Tensor | None, ...]:
        return self.classes(self.encoder(**inputs).last_hidden_state[:, 0]), None, None


def twin(agent: str, model: Model, folder: Path) -> nn.Module:
    """Return the plain model, with copies of the weights of ours."""
    for i, encoder in enumerate(model.encoders):
        encoder.model.save_pretrained(folder / str(i))
    made: Any = {**plain.MODELS, "criteria": Classifier}[agent](str(folder / "0"), 2).double()
    for module in made.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for theirs, ours in parts_of(agent, made, model):
        theirs.load_state_dict(ours.state_dict(), strict=False)  # ours have no pooler
    return made


def parts_of(agent: str, made: Any, model: Model) -> list[tuple[nn.Module, nn.Module]]:
    """Return pairs of corresponding modules of the two models."""
    first: Any = model.encoders[0].model
    if agent == "criteria":
        return [(made.encoder, first), (made.classes, model.class_head[-1])]
    if agent == "evidence":
        return [(made.model.bert, first), (made.model.qa_outputs, model.span_head[-1])]
    heads = [(made.classes, model.class_head[-1]), (made.spans, model.span_head[-1])]
    if agent == "share":
        return [(made.encoder, first), *heads]
    fusion = model.fusion
    mixed = [(made.of_first, fusion.of_state), (made.of_second, fusion.of_query)]
    encoders = [(made.first, first), (made.second, model.encoders[1].model)]
    return [*encoders, *mixed, (made.mix, fusion.mix), *heads]


def row_of(example: Example) -> Any:
    begin, end = example.spans[0] if example.spans else (-1, -1)
    label = plain.IGNORED if example.label is None else example.label
    return plain.Row(example.text, label, example.question, begin, example.text[begin:end])


def features_of(agent: str, data: Corpus, tokenizer: Any) -> tuple[list[Any], list[Any]]:
    """Return the sequences of classes and the windows of spans."""
    classes, spans = ([row_of(e) for e in some] for some in (data.classes, data.spans))
    return (
        plain.class_features(classes, tokenizer, LENGTH) if agent != "evidence" else [],
        plain.span_features(spans, tokenizer, LENGTH, STRIDE) if agent != "criteria" else [],
    )


def class_weights_of(balance: str) -> Tensor | None:
    """Return the inverse frequencies of the classes."""
    if balance == "none":
        return None
    counts = torch.bincount(torch.tensor([e.label for e in TRAINED_ON.classes]))
    return 1 / counts.double()


def plain_loss(
    outputs: Sequence[Tensor | None], batch: dict[str, Tensor], weights: Tensor | None
) -> Tensor:
    """Return the (weighted) mean over the examples of a batch; of two tasks, half of each.

    A task without an example in the batch adds 0, where torch's mean would be NaN. Its head has
    gradients of 0 then, not none: momentum and weight decay go on.
    """
    classes, starts, ends = outputs
    tasks = []
    if classes is not None:
        known = batch["labels"][batch["labels"] != plain.IGNORED]
        total = len(known) if weights is None else weights[known].sum().item()
        tasks.append(
            cross_entropy(classes, batch["labels"], weights, reduction="sum") / (total or 1)
        )
    if starts is not None and ends is not None:
        padding = batch["attention_mask"] == 0
        count = (batch["starts"] != plain.IGNORED).sum().clamp_min(1)
        halves = [
            cross_entropy(logits.masked_fill(padding, -torch.inf), batch[name], reduction="sum")
            for logits, name in ((starts, "starts"), (ends, "ends"))
        ]
        tasks.append((halves[0] + halves[1]) / 2 / count)
    return torch.stack(tasks).mean()


def train_plainly(
    model: nn.Module,
    features: list[Any],
    epochs: Sequence[Sequence[Any]],
    weights: Tensor | None,
) -> Iterator[list[tuple[float, float]]]:
    """Yield the loss and the gradient's norm of every update, after each epoch."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}],
        lr=RATE,
    )
    updates = sum(map(len, epochs))
    schedule = get_linear_schedule_with_warmup(optimizer, round(WARMUP * updates), updates)
    for batches in epochs:
        model.train()
        taken = []
        for indices in batches:
            batch = plain.collate([features[i] for i in indices], PAD)
            loss = plain_loss(model(**plain.inputs_of(batch)), batch, weights)
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            taken.append((loss.item(), norm.item()))
        yield taken


@torch.inference_mode()
def plain_outputs(model: nn.Module, features: list[Any]) -> list[list[Any]]:
    """Return the logits of each sequence, one sequence at a time: without any padding."""
    model.eval()
    found = []
    for feature in features:
        logits = model(**plain.inputs_of(plain.collate([feature], PAD)))
        found.append([None if part is None else part[0] for part in logits])
    return found


def best_answers(features: list[Any], outputs: list[list[Any]]) -> dict[int, tuple[Any, float]]:
    """Return each row's best span and its margin over no answer.

    As in SQuAD 2.0 with transformers: the best starts with the best ends, over all windows; the
    score of no answer is the least of the windows'.
    """
    spans: dict[int, list[tuple[float, Any]]] = {}
    none: dict[int, list[float]] = {}
    for feature, (_, starts, ends) in zip(features, outputs, strict=True):
        none.setdefault(feature.row, []).append(float(starts[0] + ends[0]))
        inside = [i for i, (begin, _) in enumerate(feature.offsets) if begin >= 0]
        firsts = sorted(inside, key=lambda i: -starts[i])[:N_BEST]
        lasts = sorted(inside, key=lambda i: -ends[i])[:N_BEST]
        spans.setdefault(feature.row, []).extend(
            (float(starts[i] + ends[j]), (feature.offsets[i][0], feature.offsets[j][1]))
            for i in firsts
            for j in lasts
            if i <= j < i + LONGEST
        )
    best = {row: max(some, key=lambda item: item[0]) for row, some in spans.items()}
    return {row: (span, score - min(none[row])) for row, (score, span) in best.items()}


# Ours.


def prepared_for(
    agent: str, cache: Path, balance: str = "none", micro_batch: int | None = None
) -> Prepared:
    wanted = config(
        agent,
        encoder={"name": "tiny-bert"},
        text={"max_length": LENGTH, "doc_stride": STRIDE},
        train={"effective_batch": BATCH, "epochs": EPOCHS, "clip": CLIP},
        optim={"lr": RATE, "weight_decay": DECAY},
        schedule={"name": "linear", "warmup": WARMUP},
        loss={"balance": balance},
        no_answer={"policy": "none"},
        decode={"n_best": N_BEST, "max_answer": LONGEST},
    )
    execution = Execution(micro_batch=micro_batch)
    made = prepare(wanted, TRAINED_ON, HELD_OUT, cache=cache, execution=execution)
    made.model.double()
    return made


class Watching(Quiet):
    """Reporter that keeps the loss of every update, and weights and predictions of every epoch."""

    def __init__(self, prepared: Prepared) -> None:
        super().__init__()
        self.losses: list[float] = []
        self.weights: list[dict[str, Tensor]] = []
        self.predictions: list[Evaluation] = []
        self._prepared = prepared
        executor = prepared.executor
        take = executor.take

        def watched(update: int) -> None:
            before = executor.loss()
            take(update)
            self.losses.append(executor.loss() - before)

        executor.take = watched  # type: ignore[method-assign]

    def report(self, value: float, epoch: int) -> None:
        state = self._prepared.model.state_dict()
        self.weights.append({name: weight.clone() for name, weight in state.items()})
        self.predictions.append(self._prepared.evaluate())


def assert_alike(
    evaluations: list[Evaluation], model: nn.Module, agent: str, tokenizer: Any
) -> None:
    """Check that the predictions for the held-out texts are the plain model's."""
    classes, windows = features_of(agent, HELD_OUT, tokenizer)
    if classes:
        logits = torch.stack([o[0] for o in plain_outputs(model, classes)])
        for found in evaluations:
            ours = torch.tensor([found.probabilities[e.id] for e in HELD_OUT.classes])
            torch.testing.assert_close(ours.double(), logits.softmax(-1), rtol=0, atol=1e-6)
    if windows:
        assert len(windows) > len(HELD_OUT.spans)
        best = best_answers(windows, plain_outputs(model, windows))
        for found, (row, example) in product(evaluations, enumerate(HELD_OUT.spans)):
            span, margin = best[row]
            assert found.spans[example.id] == [span]
            assert found.margins[example.id] == pytest.approx(margin, abs=1e-5)


@pytest.mark.parametrize(
    ("agent", "balance"),
    [
        ("criteria", "none"),
        pytest.param("criteria", "weighted", marks=pytest.mark.slow),
        ("evidence", "none"),
        ("share", "none"),
        pytest.param("joint", "none", marks=pytest.mark.slow),
    ],
)
def test_training_and_evaluation_as_in_a_plain_loop(
    tmp_path: Path, agent: str, balance: str
) -> None:
    trials = [prepared_for(agent, tmp_path, balance, micro) for micro in (None, MICRO)]
    model = twin(agent, trials[0].model, tmp_path)
    watching = [Watching(one) for one in trials]
    results = [train(one, seen) for one, seen in zip(trials, watching, strict=True)]

    tokenizer = trials[0].tokenizers[0]
    classes, windows = features_of(agent, TRAINED_ON, tokenizer)
    features = classes + windows
    lengths = np.array([len(feature.ids) for feature in features])
    epochs = [order(lengths, BATCH, 1, epoch) for epoch in range(EPOCHS)]
    assert {len(batch) for epoch in epochs for batch in epoch} > {BATCH}  # one is smaller
    taken: list[tuple[float, float]] = []
    weights = class_weights_of(balance)
    for epoch, some in enumerate(train_plainly(model, features, epochs, weights)):
        taken += some
        assert_alike([seen.predictions[epoch] for seen in watching], model, agent, tokenizer)

    assert any(norm > CLIP for _, norm in taken)
    for seen, result, one in zip(watching, results, trials, strict=True):
        assert seen.losses == pytest.approx([loss for loss, _ in taken], abs=1e-7)
        best = seen.weights[result.best_epoch - 1]
        assert all(torch.equal(weight, best[name]) for name, weight in result.weights.items())
        one.model.load_state_dict(seen.weights[-1])
        for theirs, ours in parts_of(agent, model, one.model):
            found = theirs.state_dict()
            for name, weight in ours.state_dict().items():
                torch.testing.assert_close(weight, found[name], rtol=0, atol=1e-8, msg=name)


@pytest.mark.parametrize("agent", ["criteria", "evidence"])
def test_sequences_of_these_batches_are_packed(tmp_path: Path, agent: str) -> None:
    """Without packed sequences, the comparison above would not cover packing."""
    one = prepared_for(agent, tmp_path)
    views = one.train.views
    for size in (BATCH, MICRO):
        some = [
            packed(collate(views, one.pads, part), views, part, [True]).inputs[0].packing
            for batch in order(one.train.lengths, BATCH, 1, 0)
            for part in micro_batches(batch, size)
        ]
        assert any(packing is not None for packing in some)
