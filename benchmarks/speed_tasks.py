"""Tasks of speed.py: encoders, data, configurations and how they are executed.

Task ──corpus_of(), config_of(), execution()──▶ the same training for every contender
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
# Asking for a GPU must not initialise CUDA: a cell does not know its MPS share yet.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import torch
from speed_agents import Pair, labelled

from supermax.engine.processes import mps
from supermax.memory.budgets import GpuBudget
from supermax.memory.sharing import share_of_each
from supermax.training.config import Config, read_config
from supermax.training.data.examples import Corpus
from supermax.training.data.synthetic import synthetic
from supermax.training.prepare import Prepared
from supermax.training.steps.cuda_graphs import CudaGraphExecutor
from supermax.training.steps.execution import Execution

HERE = Path(__file__).parent
PAIRS = 2058
SENTENCES = (1, 2, 1, 3, 2, 1, 4, 2, 3, 8)
"""Sentences per text, in turn: pairs with a median of 38 tokens and a long tail."""
RATE, WARMUP, CLIP = 2e-5, 0.1, 1.0
RATES = [1e-5, 2e-5, 3e-5, 5e-5]
DROPOUTS = [round(0.04 + 0.01 * i, 2) for i in range(24)]
"""Dropouts of the trials of a search, in turn."""
EPOCHS = 3
"""Epochs of a trial."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MIXED = Execution(device=DEVICE, precision="bf16" if DEVICE == "cuda" else "fp32")
REFERENCE, EAGER = "Trainer", "eager"

Line = dict[str, Any]
Keep = Callable[[Line], None]


class NotAvailable(Exception):
    """A contender is not available here; the message says why."""


def error_text(error: Exception) -> str:
    """Return the reason why a contender has no figures."""
    kind = "" if isinstance(error, NotAvailable) else f"{type(error).__name__}: "
    return f"{kind}{error}"[:300]


@dataclass(frozen=True)
class Task:
    """An encoder, its data, and the speed-ups that are required of it."""

    encoder: str
    batch: int
    length: int
    bar: float | None = None
    """Required speed-up of captured steps over Trainer; None: no threshold."""
    best: float | None = None
    """Required speed-up of the best contender over Trainer; None: no threshold."""
    pairs: int = PAIRS
    whole_posts: bool = False
    agent: str = "criteria"
    trial_bar: float | None = None
    """Required speed-up of trials in one cell over those of Trainer; None: no threshold."""
    called: str = ""
    """Name in tables, if it is not the name of the encoder."""

    @property
    def title(self) -> str:
        return f"{self.called or self.encoder.rpartition('/')[2]} {self.batch}"


TASKS = {
    "base16": Task("untrained/bert-base-uncased", 16, 128, bar=6.0, best=10.0, trial_bar=4.0),
    "base64": Task("untrained/bert-base-uncased", 64, 128, bar=3.0),
    "large16": Task("untrained/bert-large-uncased", 16, 128, bar=4.0),
    "deberta16": Task("untrained/microsoft/deberta-v3-base", 16, 128),
    "roberta32": Task("untrained/roberta-base", 32, 256, whole_posts=True),
    "minilm16": Task("untrained/sentence-transformers/all-MiniLM-L6-v2", 16, 128),
    # A pretrained encoder, so that metrics can be compared. MINILM: its folder.
    "trained16": Task(os.environ.get("MINILM", "minilm"), 16, 128, called="MiniLM, pretrained"),
    "tiny": Task("tiny", 16, 128, pairs=200),
}
AGENTS = {
    "multilabel16": "multilabel",
    "regression16": "regression",
    "tokens16": "token-classification",
    "answers16": "evidence",
    "share16": "share",
    "joint16": "joint",
}
"""Tasks of the other agents, by name."""
COMPARED = [name for name in TASKS if name not in ("trained16", "tiny")]
"""Tasks of `steady`: encoders of real sizes, from their configuration."""
for _name, _agent in AGENTS.items():
    # A pair is two sequences where there are classes and spans.
    _pairs = PAIRS // 2 if _agent in ("share", "joint") else PAIRS
    TASKS[_name] = replace(
        TASKS["base16"], agent=_agent, bar=None, best=None, pairs=_pairs,
        called=f"bert-base-uncased, {_agent}",
    )  # fmt: skip
    TASKS[f"tiny-{_agent}"] = replace(
        TASKS["tiny"], agent=_agent, pairs=TASKS["tiny"].pairs * _pairs // PAIRS,
        called=f"tiny, {_agent}",
    )  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """Hyperparameters of a trial."""

    rate: float
    dropout: float


def choice(number: int) -> Choice:
    """Return the hyperparameters of a trial by its number: the same list for every contender."""
    return Choice(RATES[number % len(RATES)], DROPOUTS[number % len(DROPOUTS)])


def corpus_of(what: Task) -> Corpus:
    """Return labelled pairs of a criterion and a text: sentences, or whole posts."""
    made = synthetic(difficulty=0.5, seed=0)
    texts = [e.text for e in made.classes]
    counts = [SENTENCES[i % len(SENTENCES)] for i in range(what.pairs)]
    pairs = [
        Pair(replace(e, text=" ".join(texts[i : i + count])), len(e.text), count)
        for i, (e, count) in enumerate(zip(made.classes, counts, strict=False))
    ]
    if what.whole_posts:
        posts = (made.spans * 4)[: what.pairs]
        pairs = [
            Pair(replace(e, id=f"{e.id} {i}", label=int(bool(e.spans)), spans=None), 0, 1)
            for i, e in enumerate(posts)
        ]
    return labelled(what.agent, pairs, made.label_names)


def validation_of(corpus: Corpus) -> Corpus:
    """Return an eighth of the pairs: the evaluation must take its time, not be independent."""
    chosen = {example.id for example in corpus.examples[::8]}
    return replace(corpus.only(lambda example: example.id in chosen), name="some")


def config_of(
    what: Task,
    epochs: int = EPOCHS,
    *,
    rate: float = RATE,
    seed: int = 1,
    dropout: float | None = 0.1,
) -> Config:
    dropouts = {"dropout": dropout, "attention_dropout": dropout}
    return read_config(
        {
            "agent": what.agent,
            "encoder": {"name": what.encoder, **dropouts},
            "text": {"max_length": what.length, "doc_stride": 0},
            "train": {"effective_batch": what.batch, "epochs": epochs, "clip": CLIP, "seed": seed},
            "optim": {"lr": rate, "weight_decay": 0.0},
            "schedule": {"name": "linear", "warmup": WARMUP},
        }
    )


def execution(*, captured: bool, compiled: bool = False) -> Execution:
    return replace(MIXED, captured=captured, compiled=compiled)


def check_compiled(prepared: Prepared) -> None:
    """Raise NotAvailable if captured steps should be compiled and are not."""
    executor = prepared.executor
    if (
        prepared.execution.compiled
        and isinstance(executor, CudaGraphExecutor)
        and executor.why_eager is None
        and executor._compiled is None
    ):
        raise NotAvailable(executor.how)


@dataclass(frozen=True)
class Cells:
    """Several cells at a time, as in the contender "4 cells MPS compiled".

    "4 cells MPS 70% compiled" has another share of the multiprocessors than a run assigns.
    """

    count: int
    mps: bool = False
    compiled: bool = False
    percent: int | None = None

    @property
    def name(self) -> str:
        words = [f"{self.count} cell{'s' if self.count > 1 else ''}"]
        words += ["MPS"] * self.mps
        words += [f"{self.percent}%"] if self.percent is not None else []
        return " ".join(words + ["compiled"] * self.compiled)

    @property
    def share(self) -> int | None:
        """Share of the GPU's multiprocessors per cell, in percent; None without MPS."""
        if not self.mps:
            return None
        return self.percent or share_of_each(self.count, GpuBudget().whole)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Start MPS with the share of these cells. Raise NotAvailable if that is impossible."""
        if self.share is None:
            yield
            return
        with service(), _share_set(self.share):
            yield


@contextmanager
def service() -> Iterator[None]:
    """Start MPS, or use a running one. Raise NotAvailable if that is impossible."""
    if DEVICE == "cpu":
        raise NotAvailable("there is no GPU to share")
    messages: list[str] = []
    with mps.shared(messages.append) as on:
        if not on:
            raise NotAvailable(" ".join(messages))
        yield


@contextmanager
def _share_set(percent: int) -> Iterator[None]:
    before = os.environ.get(mps.SHARE)
    os.environ[mps.SHARE] = str(percent)
    try:
        yield
    finally:
        os.environ.pop(mps.SHARE)
        if before is not None:
            os.environ[mps.SHARE] = before


def cells_of(contender: str) -> Cells | None:
    """Parse the name of a contender; None if it is not "N cells …"."""
    pattern = r"([1-9]\d*) cells?( MPS( ([1-9]\d?|100)%)?)?( compiled)?"
    if (found := re.fullmatch(pattern, contender)) is None:
        return None
    percent = int(found[4]) if found[4] else None
    return Cells(int(found[1]), bool(found[2]), bool(found[5]), percent)


def device_name() -> str:
    return torch.cuda.get_device_name() if DEVICE == "cuda" else "none"


def synchronize() -> None:
    """Wait for the device."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
