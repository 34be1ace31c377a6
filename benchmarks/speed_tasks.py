"""What is trained in speed.py: tasks, their pairs and configurations, and how ours executes them.

Task ──corpus_of(), config_of(), execution()──▶ what every contender trains
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
# To ask whether there is a GPU must not begin to use it: a cell has yet to hear how it is shared.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import torch

from supermax import mps
from supermax.memory.budgets import GpuBudget
from supermax.memory.sharing import share_of_each
from supermax.training.config import Config, read_config
from supermax.training.data.examples import Corpus
from supermax.training.data.synthetic import synthetic
from supermax.training.prepare import Prepared
from supermax.training.steps import Execution

HERE = Path(__file__).parent
PAIRS = 2058
SENTENCES = (1, 2, 1, 3, 2, 1, 4, 2, 3, 8)
"""That a text is made of: pairs of 38 tokens in the middle, with a long tail."""
RATE, WARMUP, CLIP = 2e-5, 0.1, 1.0
RATES = [1e-5, 2e-5, 3e-5, 5e-5]
DROPOUTS = [round(0.04 + 0.01 * i, 2) for i in range(24)]
"""Of a search's trials, one after the other and then again."""
EPOCHS = 3
"""Of a trial."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = Execution(device=DEVICE, precision="bf16" if DEVICE == "cuda" else "fp32")
REFERENCE, ONE_BY_ONE = "Trainer", "one by one"

Line = dict[str, Any]
Keep = Callable[[Line], None]


class NotAvailable(Exception):
    """A contender that cannot be had here; says why."""


def in_words(error: Exception) -> str:
    """Why a contender has no figures."""
    kind = "" if isinstance(error, NotAvailable) else f"{type(error).__name__}: "
    return f"{kind}{error}"[:300]


@dataclass(frozen=True)
class Task:
    encoder: str
    batch: int
    length: int
    bar: float | None = None
    """How many times Trainer the captured steps must reach."""
    best: float | None = None
    """How many times Trainer the best of all contenders must reach."""
    pairs: int = PAIRS
    whole_posts: bool = False
    called: str = ""
    """What it is called in tables, where that is not its encoder's name."""

    @property
    def title(self) -> str:
        return f"{self.called or self.encoder.rpartition('/')[2]} {self.batch}"


def task(encoder: str, batch: int, length: int = 128, **more: Any) -> Task:
    return Task(f"untrained/{encoder}", batch, length, **more)


TASKS = {
    "base16": task("bert-base-uncased", 16, bar=6.0, best=10.0),
    "base64": task("bert-base-uncased", 64, bar=3.0),
    "large16": task("bert-large-uncased", 16, bar=4.0),
    "deberta16": task("microsoft/deberta-v3-base", 16),
    "roberta32": task("roberta-base", 32, 256, whole_posts=True),
    "minilm16": task("sentence-transformers/all-MiniLM-L6-v2", 16),
    # One that has learnt before, so that there is a metric to compare. MINILM: a folder of it.
    "trained16": Task(os.environ.get("MINILM", "minilm"), 16, 128, called="MiniLM, pretrained"),
    "tiny": Task("tiny", 16, 128, pairs=200),
}
COMPARED = [name for name in TASKS if name not in ("trained16", "tiny")]
"""Whose samples a second are compared: encoders from their configuration, of real sizes."""


@dataclass(frozen=True)
class Choice:
    """What a trial of a search tries."""

    rate: float
    dropout: float


def choice(number: int) -> Choice:
    """Of the list that every contender tries, by the trial's number."""
    return Choice(RATES[number % len(RATES)], DROPOUTS[number % len(DROPOUTS)])


def corpus_of(what: Task) -> Corpus:
    """Labelled pairs of a criterion and a text: sentences, or whole posts."""
    made = synthetic(difficulty=0.5, seed=0)
    texts = [e.text for e in made.classes]
    examples = tuple(
        replace(e, text=" ".join(texts[i : i + SENTENCES[i % len(SENTENCES)]]))
        for i, e in enumerate(made.classes[: what.pairs])
    )
    if what.whole_posts:
        posts = (made.spans * 4)[: what.pairs]
        examples = tuple(
            replace(e, id=f"{e.id} {i}", label=int(bool(e.spans)), spans=None)
            for i, e in enumerate(posts)
        )
    return Corpus("pairs", made.label_names, examples)


def validation_of(corpus: Corpus) -> Corpus:
    """An eighth of the pairs: what is learnt does not matter here, only that it is looked at."""
    return Corpus("some", corpus.label_names, corpus.examples[::8])


def config_of(
    what: Task,
    epochs: int = EPOCHS,
    *,
    rate: float = RATE,
    seed: int = 1,
    dropout: float = 0.1,
) -> Config:
    dropouts = {"dropout": dropout, "attention_dropout": dropout}
    return read_config(
        {
            "encoder": {"name": what.encoder, **dropouts},
            "text": {"max_length": what.length, "doc_stride": 0},
            "train": {"effective_batch": what.batch, "epochs": epochs, "clip": CLIP, "seed": seed},
            "optim": {"lr": rate, "weight_decay": 0.0},
            "schedule": {"name": "linear", "warmup": WARMUP},
        }
    )


def execution(*, captured: bool, compiled: bool = False) -> Execution:
    return replace(HALF, captured=captured, compiled=compiled)


def check_compiled(prepared: Prepared) -> None:
    """Raises NotAvailable where steps that were to be compiled are recorded without."""
    way = prepared.way
    wanted = prepared.execution.compiled and way.why_eager is None
    if wanted and not way.how.startswith("compiled"):
        raise NotAvailable(way.how)


@dataclass(frozen=True)
class Cells:
    """So many cells at a time, as a contender's name says it: "4 cells MPS compiled", or
    "4 cells MPS 70% compiled" for another share of the GPU's processors than a run gives each."""

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
        """Of the GPU's processors that each has, in percent; None where they take turns."""
        if not self.mps:
            return None
        return self.percent or share_of_each(self.count, GpuBudget().whole)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Raises NotAvailable where the GPU cannot be shared."""
        if self.share is None:
            yield
            return
        with service(), _each_has(self.share):
            yield


@contextmanager
def service() -> Iterator[None]:
    """One that is there already is used. Raises NotAvailable where there can be none."""
    if DEVICE == "cpu":
        raise NotAvailable("there is no GPU to share")
    said: list[str] = []
    with mps.shared(said.append) as on:
        if not on:
            raise NotAvailable(" ".join(said))
        yield


@contextmanager
def _each_has(percent: int) -> Iterator[None]:
    before = os.environ.get(mps.SHARE)
    os.environ[mps.SHARE] = str(percent)
    try:
        yield
    finally:
        os.environ.pop(mps.SHARE)
        if before is not None:
            os.environ[mps.SHARE] = before


def cells_of(contender: str) -> Cells | None:
    """None for a contender that is none of ours in cells."""
    pattern = r"([1-9]\d*) cells?( MPS( ([1-9]\d?|100)%)?)?( compiled)?"
    if (found := re.fullmatch(pattern, contender)) is None:
        return None
    percent = int(found[4]) if found[4] else None
    return Cells(int(found[1]), bool(found[2]), bool(found[5]), percent)


def device_name() -> str:
    return torch.cuda.get_device_name() if DEVICE == "cuda" else "none"


def settled() -> None:
    """What the device was asked for is done."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
