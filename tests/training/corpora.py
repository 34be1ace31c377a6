"""Small generated corpora for tests."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from supermax.training.config import Config, read_config
from supermax.training.data.entities import Entity
from supermax.training.data.examples import Corpus, Example
from supermax.training.prepare import Prepared, prepare
from supermax.training.steps.batches import collate
from supermax.training.steps.execution import Execution

SIGNS = {"sleep": ["awake", "insomnia"], "mood": ["sad", "low"], "food": ["hungry", "meal"]}
WORDS = ["the", "a", "my", "day", "was", "and", "then", "we", "went", "to", "work", "home"]
WORDS += ["with", "some", "friends", "after", "it", "rained"]


def corpus(n: int, seed: int = 0) -> Corpus:
    rng = random.Random(seed)
    classes, spans = [], []
    for i in range(n):
        question = rng.choice(list(SIGNS))
        other = rng.choice([q for q in SIGNS if q != question])
        for kind, length in (("c", 8), ("s", rng.choice([10, 30, 60]))):
            shows = rng.random() < 0.4
            words = [rng.choice(WORDS) for _ in range(length)]
            place = rng.randrange(length)
            words[place] = rng.choice(SIGNS[question if shows else other])
            text = " ".join(words)
            begin = len(" ".join(words[:place])) + (1 if place else 0)
            found = ((begin, begin + len(words[place])),) if shows else ()
            name = f"{seed}-{kind}{i}"
            if kind == "c":
                classes.append(Example(name, f"g{i}", text, question, int(shows)))
            else:
                spans.append(Example(name, f"g{i}", text, question, None, found))
    return Corpus("toy", ("no", "yes"), tuple(classes), tuple(spans))


def numeric(n: int, seed: int = 0) -> Corpus:
    """Return a corpus of numbers that depend on the texts."""
    numbers = tuple(
        replace(e, label=None, value=300.0 + 25 * (e.label or 0) + len(e.text))
        for e in corpus(n, seed).classes
    )
    return Corpus("toy", (), numbers=numbers)


def labelled(n: int, seed: int = 0) -> Corpus:
    """Return a corpus of sets of labels that depend on the texts."""
    words = ("we", "rained", "sad", "meal")
    sets = tuple(
        replace(e, label=None, labels=tuple(i for i, w in enumerate(words) if w in e.text.split()))
        for e in corpus(n, seed).classes
    )
    return Corpus("toy", words, label_sets=sets)


def tagged(n: int, seed: int = 0) -> Corpus:
    """Return a corpus of entities: the signs of a corpus of spans, by their kind."""

    def example(e: Example) -> Example:
        words = tuple(match.span() for match in re.finditer(r"\S+", e.text))
        kinds = {sign: kind for kind, signs in enumerate(SIGNS.values()) for sign in signs}
        entities = tuple(
            Entity(a, b, kinds[e.text[a:b]]) for a, b in words if e.text[a:b] in kinds
        )
        return replace(e, question="", spans=None, entities=entities, words=words)

    return Corpus("toy", tuple(SIGNS), entities=tuple(map(example, corpus(n, seed).spans)))


def config(agent: str = "criteria", **parts: Any) -> Config:
    data: dict[str, Any] = {
        "agent": agent,
        "encoder": {"name": "tiny", "dropout": 0.0, "attention_dropout": 0.0},
        "text": {"max_length": 32, "doc_stride": 8},
        "train": {"effective_batch": 12, "epochs": 2},
        "optim": {"lr": 1e-3},
        "head": {"dropout": 0.0},
        "no_answer": {"policy": "threshold"},
        "decode": {"n_best": 10, "max_answer": 64},
    }
    for key, value in parts.items():
        data[key] = {**data.get(key, {}), **value} if isinstance(value, dict) else value
    return read_config(data)


def ready(cache: Path, wanted: Config, n: int = 30, **execution: Any) -> Prepared:
    made = partial(corpus_for, wanted.agent)
    return prepare(
        wanted, made(n, 1), made(n // 2, 2), cache=cache, execution=Execution(**execution)
    )


def logits(model: Any, prepared: Prepared) -> Tensor:
    """Return all outputs of a model for the first training examples."""
    model.eval()
    batch = collate(prepared.train.views, prepared.pads, prepared.train.chosen[:6])
    with torch.inference_mode():
        found = model(*batch.inputs)
    parts = [part for part in (found.classes, found.starts, found.ends) if part is not None]
    return torch.cat([part.flatten() for part in parts])


def corpus_for(agent: str, n: int, seed: int = 0) -> Corpus:
    """Return a corpus that an agent learns from."""
    made = {"regression": numeric, "multilabel": labelled, "token-classification": tagged}
    return made.get(agent, corpus)(n, seed)


OPEN: dict[str, Any] = {
    "no_answer": {"policy": None},
    "decode": {"n_best": None, "max_answer": None},
}
"""Parts of a configuration that leave the decoding of spans to each evaluation."""


class Quiet:
    """Reporter that lets training go on; `stop_at` requests a stop after so many checks."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.values: list[float] = []
        self.notes: list[tuple[float, float | None]] = []
        self.looks = 0
        self.stop_at = stop_at

    def report(self, value: float, epoch: int) -> None:
        self.values.append(value)
        if self.stop_at is not None and self.looks >= self.stop_at:
            raise Stopped

    def note(self, *, epoch: float, samples_per_second: float | None) -> None:
        self.notes.append((epoch, samples_per_second))

    def should_prune(self) -> bool:
        return False

    def prune(self) -> Any:
        raise AssertionError

    @property
    def stop_requested(self) -> bool:
        self.looks += 1
        return self.stop_at is not None and self.looks >= self.stop_at

    def stop(self) -> Any:
        raise Stopped


class Stopped(Exception):
    pass
