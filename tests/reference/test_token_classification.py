"""The agent token-classification compared with `AutoModelForTokenClassification`, in float64.

Both start with the same weights and see the same sentences in the same order. The plain side gives
the model lists of words and labels as the token classification example of transformers does, pads,
and takes every effective batch at once; Supermax tokenizes texts, packs and splits batches.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForTokenClassification

from supermax.training.data.entities import tags_of
from supermax.training.data.examples import Corpus, Example
from supermax.training.deploy.transformers_format import write_model
from supermax.training.loop import train
from supermax.training.prepare import Prepared
from supermax.training.steps.batches import Indices, collate, packed
from supermax.training.steps.step import loss_denominators, loss_of
from tests.reference.plain_loop import BATCH, prepared_in_float64, train_plainly
from tests.reference.test_agents import Watching
from tests.training.corpora import tagged

TRAIN, HELD_OUT = tagged(30, 1), tagged(15, 2)
LENGTH = 128
IGNORED = -100


def prepared_for(
    cache: Path, *, all_tokens: bool, encoder: str = "tiny-bert", micro_batch: int | None = None
) -> Prepared:
    parts: dict[str, dict[str, Any]] = {
        "encoder": {"name": encoder},
        "text": {"max_length": LENGTH},
        "train": {"label_all_tokens": all_tokens},
    }
    data = TRAIN, HELD_OUT
    return prepared_in_float64("token-classification", data, cache, micro_batch, **parts)


def twin(prepared: Prepared, folder: Path) -> Any:
    """Return the model of transformers, saved and loaded with copies of the weights of ours."""
    folder.mkdir()
    weights = {name: weight.float() for name, weight in prepared.model.state_dict().items()}
    assert write_model(folder, prepared, weights, TRAIN.label_names) is not None
    return AutoModelForTokenClassification.from_pretrained(folder).double()


def words_of(example: Example) -> list[str]:
    return [example.text[start:end] for start, end in example.words]


def encoded(prepared: Prepared, corpus: Corpus, indices: Any, all_tokens: bool) -> dict[str, Any]:
    """Return the inputs and labels of a batch, as run_ner.py of transformers makes them."""
    examples = [corpus.entities[i] for i in indices]
    tokenizer: Any = prepared.tokenizers[0]
    inputs = tokenizer(
        [*map(words_of, examples)], is_split_into_words=True, padding=True, return_tensors="pt"
    )
    labels = torch.full(inputs["input_ids"].shape, IGNORED)
    for row, example in enumerate(examples):
        tags, before = tags_of(example.words, example.entities or ()), None
        for column, word in enumerate(inputs.word_ids(row)):
            if word is not None and word != before:
                labels[row, column] = tags[word]
            elif word is not None and all_tokens:  # B- becomes I-
                labels[row, column] = tags[word] + tags[word] % 2
            before = word
    return {**inputs, "labels": labels}


@pytest.mark.parametrize(
    ("encoder", "all_tokens"),
    [
        ("tiny-bert", False),
        ("tiny-bert", True),
        ("tiny-modernbert", False),
        ("tiny-deberta", True),
    ],
)
def test_loss_and_gradients_are_those_of_transformers(
    tmp_path: Path, encoder: str, all_tokens: bool
) -> None:
    prepared = prepared_for(tmp_path, encoder=encoder, all_tokens=all_tokens)
    theirs = twin(prepared, tmp_path / "plain").eval()
    indices = np.arange(BATCH)
    inputs = encoded(prepared, TRAIN, indices, all_tokens)
    expected = theirs(**inputs).loss
    expected.backward()

    model, data = prepared.model.eval(), prepared.train
    batch = packed(
        collate(data.views, prepared.pads, indices), data.views, indices, [model.encoders[0].packs]
    )
    denominators = loss_denominators(*data.targets(indices), None)
    loss = loss_of(model(*batch.inputs), batch, denominators, prepared.config, None)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-10)
    assert (batch.labels != IGNORED).sum() == (inputs["labels"] != IGNORED).sum()
    ours = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    renamed = {f"encoders.0.model.{n}": p for n, p in theirs.base_model.named_parameters()}
    renamed |= {f"token_head.classifier.{n}": p for n, p in theirs.classifier.named_parameters()}
    if hasattr(theirs, "head"):
        renamed |= {f"token_head.prediction.{n}": p for n, p in theirs.head.named_parameters()}
    assert set(ours) == {name for name, p in renamed.items() if p.grad is not None}
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, renamed[name].grad, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize(("micro_batch", "all_tokens"), [(None, False), (4, True)])
def test_training_and_predictions_as_in_a_plain_loop(
    tmp_path: Path, micro_batch: int | None, all_tokens: bool
) -> None:
    prepared = prepared_for(tmp_path, micro_batch=micro_batch, all_tokens=all_tokens)
    model = twin(prepared, tmp_path / "plain")
    ours = Watching(prepared)
    train(prepared, ours)

    def loss_of(indices: Indices) -> Tensor:
        loss: Tensor = model(**encoded(prepared, TRAIN, indices, all_tokens)).loss
        return loss

    theirs = train_plainly(model, prepared, loss_of)
    assert ours.losses == pytest.approx(theirs, abs=1e-7)

    model.eval()
    with torch.inference_mode():
        inputs = encoded(prepared, HELD_OUT, range(len(HELD_OUT.entities)), False)
        outputs = model(**inputs).logits.softmax(-1).max(-1)
    for row, example in enumerate(HELD_OUT.entities):
        first = inputs["labels"][row] != IGNORED
        classes = outputs.indices[row][first].tolist()
        found = ours.predictions[-1].entities[example.id]
        begun = [i for i, c in enumerate(classes) if c % 2]  # B- always begins an entity
        starts = {each.entity.start for each in found}
        assert {example.words[i][0] for i in begun} <= starts
        inside = {
            i
            for i, (a, b) in enumerate(example.words)
            if any(e.entity.start <= a and b <= e.entity.end for e in found)
        }
        assert inside == {i for i, c in enumerate(classes) if c}
