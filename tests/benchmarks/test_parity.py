"""Both sides of the comparison with Trainer: data, metrics, and that they train alike.

With the same initial weights and the same batches, without dropout, each update of the script with
Trainer and of Supermax has the same loss: model, loss, optimizer, schedule and clipping agree.
"""

from __future__ import annotations

import gzip
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertModel, Trainer
from transformers.trainer_utils import IntervalStrategy

from supermax.training.loop import train
from supermax.training.models.architectures import configuration
from supermax.training.models.sources import find
from supermax.training.models.tokenizers import tokenizer_for
from supermax.training.prepare import Prepared
from supermax.training.steps.batches import order
from tests import ROOT
from tests.reference.test_agents import Watching

sys.path.append(str(ROOT / "benchmarks"))
import parity  # isort: skip
import parity_data as data  # isort: skip
import parity_metrics as metrics  # isort: skip
import parity_ours as ours  # isort: skip
import parity_trainer as plain  # isort: skip

BATCH, UPDATES, EPOCHS, LENGTH, RATE = 8, 5, 6, 32, 5e-3
WORDS = [*"bcdefghijklm"]  # not "a", which is no word in the metrics of SQuAD


# Data.


def test_sets_of_labels_are_read_without_quoting() -> None:
    rows = list(data.sets_of_labels('"Why" now?\t4\tx1\nA "quote\t3,0\tx2\n'))
    assert [row.text for row in rows] == ['"Why" now?', 'A "quote']
    assert [row.labels for row in rows] == [(4,), (0, 3)]
    assert [row.group for row in rows] == ["x1", "x2"]


def test_rated_pairs_are_read_as_csv() -> None:
    rows = list(data.rated_pairs('A plane, red.,"It ""flies"", now.",4.75\nB,C,0.0\n'.replace(
        "A plane, red.", '"A plane, red."'
    )))  # fmt: skip
    assert [row.question for row in rows] == ["A plane, red.", "B"]
    assert [row.text for row in rows] == ['It "flies", now.', "C"]
    assert [row.value for row in rows] == [4.75, 0.0]


def test_sentences_end_at_blank_lines_and_at_the_end_of_the_file() -> None:
    text = "Ann\tB-person\nis\tO\n\t\n\nin\tO\nNew\tB-location\nYork\tI-location"
    first, second = data.tagged_sentences(text)
    assert first.text == "Ann is"
    assert first.words == ("Ann", "is")
    assert second.tags == ("O", "B-location", "I-location")
    assert [second.text[a:b] for a, b in second.word_spans] == ["in", "New", "York"]
    assert data.entity_types([first, second]) == ["location", "person"]


def test_read_draws_the_same_rows_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "".join(f"text {i}\t{i % 3}\tid{i}\n" for i in range(50))
    with gzip.open(tmp_path / "goemotions-ekman-train.tsv.gz", "wt") as file:
        file.write(lines)
    (tmp_path / "goemotions-ekman-dev.tsv").write_text("one\t1\ta\n")
    (tmp_path / "goemotions-ekman-labels.txt").write_text("anger\njoy\nfear")
    monkeypatch.setattr(data, "MOST_TRAINED", 20)
    first, held, names = data.read(tmp_path, data.TASKS["goemotions"])
    assert len({row.text for row in first}) == 20
    assert first == data.read(tmp_path, data.TASKS["goemotions"])[0]
    assert [row.text for row in held] == ["one"]
    assert names == ["anger", "joy", "fear"]


def test_each_agent_has_a_reference() -> None:
    for task in data.TASKS.values():
        sides = parity.default_sides(task)
        assert all(parity.has_side(task, side) for side in sides)
        assert sides[0] == ("plain" if task.agent in ("share", "joint") else "trainer")
        assert (task.agent in plain.MODELS) == parity.has_side(task, "trainer")


# Metrics.


def test_entities_become_tags() -> None:
    row = data.Row("Ann Lee is in Rome", words=("Ann", "Lee", "is", "in", "Rome"), tags=("O",) * 5)
    found = metrics.tags_of_entities(row, [(0, 7, "person"), (14, 18, "place")])
    assert found == ["B-person", "I-person", "O", "O", "B-place"]


def test_metrics_of_labels_and_numbers_by_hand() -> None:
    rows = [data.Row("", labels=(0,)), data.Row("", labels=(0, 1)), data.Row("", labels=())]
    found = metrics.label_metrics(rows, [[0.9, 0.6], [0.8, 0.7], [0.1, 0.2]])
    assert found["macro_f1"] == pytest.approx((1 + 2 / 3) / 2)
    assert found["micro_f1"] == pytest.approx(6 / 7)
    assert found["auprc"] == 1
    more = metrics.label_metrics(rows, [[0.9, 0.6, 0.1], [0.8, 0.7, 0.2], [0.1, 0.2, 0.3]])
    assert more["auprc"] == 1  # no row has the third label
    assert more["macro_f1"] == pytest.approx((1 + 2 / 3) / 3)
    rated = [data.Row("", value=v) for v in (1, 2, 4)]
    assert metrics.number_metrics(rated, [2, 2, 2])["spearman"] == 0
    numbers = metrics.number_metrics(rated, [1, 3, 2])
    assert numbers["spearman"] == pytest.approx(0.5)
    assert numbers["pearson"] == pytest.approx(np.corrcoef([1, 2, 4], [1, 3, 2])[0, 1])


# Training.


def rows_of(agent: str, count: int, seed: int) -> list[data.Row]:
    """Return rows whose words decide their labels."""
    rng = random.Random(seed)
    rows = []
    for i in range(count):
        # The questions of transformers' model may have their answer in the padding.
        words = tuple(rng.choices(WORDS, k=8 if agent == "evidence" else rng.randint(3, 12)))
        text, group = " ".join(words), str(i)
        if agent == "token-classification":
            tags = tuple("B-x" if w == "b" else "B-y" if w == "c" else "O" for w in words)
            rows.append(data.Row(text, words=words, tags=tags, group=group))
            continue
        first = words.index("b") if "b" in words else -1
        rows.append(
            data.Row(
                text,
                label=int(first >= 0),
                question="where is b" if agent in ("evidence", "regression") else "",
                start=2 * first if first >= 0 else -1,
                answer="b" if first >= 0 else "",
                value=float(len(words)),
                labels=tuple(k for k, word in enumerate("bcd") if word in words),
                group=group,
            )
        )
    return rows


NAMES = {
    "criteria": ["no", "yes"],
    "multilabel": ["a", "b", "c"],
    "regression": [],
    "token-classification": ["x", "y"],
    "evidence": ["none", "answer"],
}


def saved_encoder(folder: Path, texts: list[str]) -> str:
    torch.manual_seed(0)
    settings: Any = configuration("tiny-bert")
    settings.hidden_dropout_prob = settings.attention_probs_dropout_prob = 0.0
    BertModel(settings).save_pretrained(folder)
    tokenizer_for(find("tiny-bert"), texts, folder / "cache").save_pretrained(folder)
    return str(folder)


def copy_weights(trainer: Trainer, prepared: Prepared) -> None:
    """Give the model of Supermax the weights of the model of transformers."""
    theirs: Any = trainer.model
    model: Any = prepared.model
    own = model.encoders[0].model
    state = theirs.bert.state_dict()
    own.load_state_dict({name: state[name] for name in own.state_dict()})
    for mine, other in heads(theirs, model):
        mine.load_state_dict(other.state_dict())


def heads(theirs: Any, model: Any) -> list[tuple[nn.Module, nn.Module]]:
    """Return the layers of the head of Supermax, each with that of transformers."""
    if model.token_head is not None:
        return [(model.token_head.classifier, theirs.classifier)]
    if model.span_head is not None:
        return [(model.span_head[-1], theirs.qa_outputs)]
    own = model.class_head if model.number_head is None else model.number_head
    layers = [layer for layer in own if isinstance(layer, nn.Linear)]
    return [*zip(layers, (theirs.bert.pooler.dense, theirs.classifier), strict=True)]


class Sampler:
    """Rows in the order in which Supermax trains on them."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared, self._epoch = prepared, 0

    def __len__(self) -> int:
        return len(self._prepared.train.chosen)

    def __iter__(self) -> Iterator[int]:
        batches = order(self._prepared.train.lengths, BATCH, self._prepared.seed, self._epoch)
        self._epoch += 1
        return iter(np.concatenate(batches).tolist())


@pytest.mark.parametrize(
    "agent",
    [
        "multilabel",
        "token-classification",
        pytest.param("regression", marks=pytest.mark.slow),
        pytest.param("evidence", marks=pytest.mark.slow),
    ],
)
def test_trainer_and_supermax_train_alike(
    tmp_path: Path, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if agent == "token-classification":
        pytest.importorskip("seqeval")
    monkeypatch.setattr(ours, "DROPOUT", 0.0)
    for module in (ours, plain):
        monkeypatch.setattr(module, "DEVICE", "cpu")
    names = {a: t.metrics for t in data.TASKS.values() for a in [t.agent]}[agent]
    task = data.Task("", agent, names, LENGTH, EPOCHS, BATCH, rate=RATE, stride=4)
    rows, held = rows_of(agent, UPDATES * BATCH, 1), rows_of(agent, 30, 2)
    encoder = saved_encoder(tmp_path / "encoder", [row.text for row in rows])
    split = rows, held, NAMES[agent]

    trainer = plain.make_trainer(task, encoder, split, 1, str(tmp_path))
    prepared = ours.prepared_for(task, encoder, split, 1, tmp_path / "cache")
    copy_weights(trainer, prepared)
    monkeypatch.setattr(trainer, "_get_train_sampler", lambda *_: Sampler(prepared))
    trainer.args.logging_strategy, trainer.args.logging_steps = IntervalStrategy.STEPS, 1
    trainer.train()
    watching = Watching(prepared)
    train(prepared, watching)

    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert len(losses) == UPDATES * EPOCHS
    assert watching.losses == pytest.approx(losses, rel=1e-3, abs=1e-4)
    assert losses[-1] < losses[0]
    theirs = plain.epochs_of(trainer, task)
    found = [ours.metrics_of(each, held, NAMES[agent]) for each in watching.predictions]
    assert found == [pytest.approx(epoch, abs=0.02) for epoch in theirs]
    assert theirs[-1][names[0]] > 0.2
