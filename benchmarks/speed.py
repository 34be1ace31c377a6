"""How fast trials are trained on this GPU, beside Hugging Face Trainer in the same run.

    python benchmarks/speed.py steady [TASK ...]     samples a second, once it goes
    python benchmarks/speed.py trials [--cells 1,4,8]  whole trials an hour, in a search
    python benchmarks/speed.py table                 what is in the results so far

Contenders train the same encoder, from the same configuration, on the same pairs, with the same
effective batch, optimizer, schedule, clipping and precision (bf16). Every measurement is a line
in --results, and every command measures the reference anew: ratios are taken within one command.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

import torch
from common import machine
from rich.console import Console
from rich.table import Table
from torch.nn.functional import cross_entropy

from supermax.training.config import Config, read_config
from supermax.training.data.examples import Corpus
from supermax.training.data.synthetic import synthetic
from supermax.training.encoders import load
from supermax.training.encoders import prepared as prepared_config
from supermax.training.loop import train_blind
from supermax.training.models import Inputs, Model
from supermax.training.prepare import prepare
from supermax.training.sources import find
from supermax.training.steps import Execution
from supermax.training.tokenizers import special_ids, tokenizer_for

PAIRS = 2058
SENTENCES = (1, 2, 1, 3, 2, 1, 4, 2, 3, 8)
"""That a text is made of: pairs of 40 tokens in the middle, with a long tail."""
RATE, WARMUP = 2e-5, 0.1
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = Execution(device=DEVICE, precision="bf16" if DEVICE == "cuda" else "fp32")
REFERENCE = "Trainer"


@dataclass(frozen=True)
class Task:
    encoder: str
    batch: int
    length: int
    bar: float | None = None
    """How many times Trainer the captured steps must reach."""
    pairs: int = PAIRS
    whole_posts: bool = False

    @property
    def title(self) -> str:
        return f"{self.encoder.rpartition('/')[2]} {self.batch}"


def task(encoder: str, batch: int, length: int = 128, **more: Any) -> Task:
    return Task(f"untrained/{encoder}", batch, length, **more)


TASKS = {
    "base16": task("bert-base-uncased", 16, bar=6.0),
    "base64": task("bert-base-uncased", 64, bar=3.0),
    "large16": task("bert-large-uncased", 16, bar=4.0),
    "deberta16": task("microsoft/deberta-v3-base", 16),
    "roberta32": task("roberta-base", 32, 256, whole_posts=True),
    "minilm16": task("sentence-transformers/all-MiniLM-L6-v2", 16),
    "tiny": Task("tiny", 16, 128, pairs=200),
}


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


def config_of(what: Task, epochs: int = 3) -> Config:
    return read_config(
        {
            "encoder": {"name": what.encoder, "dropout": 0.1, "attention_dropout": 0.1},
            "text": {"max_length": what.length, "doc_stride": 0},
            "train": {"effective_batch": what.batch, "epochs": epochs},
            "optim": {"lr": RATE, "weight_decay": 0.0},
            "schedule": {"name": "linear", "warmup": WARMUP},
        }
    )


# Contenders: samples a second once it goes, and what came before.


def ours(what: Task, folder: Path, *, captured: bool) -> dict[str, Any]:
    corpus = corpus_of(what)
    started = time.perf_counter()
    prepared = prepare(
        config_of(what), corpus, corpus, cache=folder, execution=replace(HALF, captured=captured)
    )
    ready = time.perf_counter()
    ends: list[float] = []
    losses: list[float] = []

    def told(_: int, loss: float) -> None:
        ends.append(time.perf_counter())
        losses.append(loss)

    train_blind(prepared, 3, told)
    steady = [later - before for before, later in pairwise(ends)]
    return {
        "samples_per_second": len(prepared.train.chosen) / min(steady),
        "before": ready - started,
        "first_epoch": ends[0] - ready,
        "loss": losses[-1],
        "why_eager": prepared.way.why_eager,
        "peak": torch.cuda.max_memory_reserved() if DEVICE == "cuda" else 0,
        "tokens": float(prepared.train.lengths.mean()),
    }


def trainer(what: Task, folder: Path) -> dict[str, Any]:
    """The same network in Trainer: bf16, dynamic padding, sequences of like length together."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    corpus, source = corpus_of(what), find(what.encoder)
    started = time.perf_counter()
    texts = [text for e in corpus.examples for text in (e.question, e.text) if text]
    tokenizer = tokenizer_for(source, texts, folder)
    torch.manual_seed(1)
    encoder = load(source, prepared_config(source, 0.1, 0.1, **special_ids(tokenizer)))

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model(config_of(what), [encoder], 2)

        def forward(self, input_ids, attention_mask, token_type_ids, labels):  # type: ignore[no-untyped-def]
            logits = self.model(Inputs(input_ids, attention_mask, token_type_ids)).classes
            return {"loss": cross_entropy(logits.float(), labels), "logits": logits}

    cut = {"truncation": True, "max_length": what.length, "return_token_type_ids": True}
    rows = [{**tokenizer(e.question, e.text, **cut), "label": e.label} for e in corpus.examples]
    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            ends.append(time.perf_counter())

    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=what.batch,
        num_train_epochs=2,
        learning_rate=RATE,
        warmup_steps=WARMUP,
        max_grad_norm=1.0,
        bf16=DEVICE == "cuda",
        use_cpu=DEVICE == "cpu",
        train_sampling_strategy="group_by_length",
        report_to=[],
        save_strategy="no",
        logging_strategy="epoch",
        disable_tqdm=True,
    )
    run = Trainer(
        Network(), arguments, train_dataset=rows, processing_class=tokenizer, callbacks=[Clock()]
    )
    ready = time.perf_counter()
    done = run.train()
    return {
        "samples_per_second": len(rows) / (ends[1] - ends[0]),
        "before": ready - started,
        "first_epoch": ends[0] - ready,
        "loss": done.training_loss,
    }


CONTENDERS: dict[str, Callable[[Task, Path], dict[str, Any]]] = {
    REFERENCE: trainer,
    "eager": lambda what, folder: ours(what, folder, captured=False),
    "captured": lambda what, folder: ours(what, folder, captured=True),
}


def steady(
    names: list[str], contenders: list[str], keep: Callable[[dict[str, Any]], None]
) -> None:
    run = f"{time.time():.0f}"
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            for contender in contenders:
                place = Path(folder) / name / contender
                place.mkdir(parents=True)
                gc.collect()
                if DEVICE == "cuda":
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
                line = {"part": "steady", "run": run, "task": name, "contender": contender}
                try:
                    keep(line | CONTENDERS[contender](TASKS[name], place))
                except Exception as error:
                    keep(line | {"failed": f"{type(error).__name__}: {error}"[:300]})


# Whole trials: three epochs each, from one fixed list of configurations.

RATES = [1e-5, 2e-5, 3e-5, 5e-5]
BETWEEN = 2  # trials before those that count, so that nobody's first start does
SPACE = """
name: rates
parameters:
  encoder.name: {choices: [untrained/bert-base-uncased]}
  text.max_length: {choices: [128]}
  train.effective_batch: {choices: [16]}
  optim.lr: {choices: [1.0e-5, 2.0e-5, 3.0e-5, 5.0e-5]}
"""


def our_trials(what: Task, cells: int, trials: int) -> dict[str, Any]:
    from supermax.space import loads
    from supermax.training.data.splits import Splits
    from supermax.tuning import Tuning

    corpus = corpus_of(what)
    space = loads(SPACE.replace("untrained/bert-base-uncased", what.encoder))
    with tempfile.TemporaryDirectory() as folder:
        tuning = Tuning(
            "criteria",
            corpus,
            f"{folder}/s.db",
            Path(folder) / "cache",
            space=space,
            trials=trials,
            sampler="random",
            limits={"epochs": 3, "patience": None},
            splits=Splits(corpus, validation_of(corpus), validation_of(corpus)),
            top=1,
            seed=0,
            tell=lambda _: None,
        )
        started = time.time()
        tuned = tuning.run(workers=cells, progress=False)
        done = [t for t in tuned.study.trials if t.state.name == "COMPLETE"]
        ends = sorted(t.datetime_complete.timestamp() for t in done if t.datetime_complete)
        first = ends[max(BETWEEN, cells) - 1]
        results = [t.user_attrs["result"] for t in done]
    return {
        "trials": len(done),
        "whole": time.time() - started,
        "before_first": ends[0] - started,
        "per_trial": (ends[-1] - first) / (len(ends) - max(BETWEEN, cells)),
        "metric": statistics.median(t.value for t in done if t.value is not None),
        "training": statistics.median(r["seconds"] for r in results),
        "rate": statistics.median(r["samples_per_second"] or 0 for r in results),
        "cells": tuned.summary.cells,
        "faults": tuned.summary.faults,
        "steps": sorted({str(r.get("steps")) for r in results}),
    }


def validation_of(corpus: Corpus) -> Corpus:
    """An eighth of the pairs: what is learnt does not matter here, only that it is looked at."""
    return Corpus("some", corpus.label_names, corpus.examples[::8])


def trainer_trials(what: Task, trials: int) -> dict[str, Any]:
    """Trainer's own search, with Optuna."""
    import numpy as np
    from sklearn.metrics import f1_score
    from transformers import Trainer, TrainingArguments

    corpus, source = corpus_of(what), find(what.encoder)
    with tempfile.TemporaryDirectory() as folder:
        texts = [text for e in corpus.examples for text in (e.question, e.text) if text]
        tokenizer = tokenizer_for(source, texts, Path(folder))

        class Network(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                made = prepared_config(source, 0.1, 0.1, **special_ids(tokenizer))
                self.model = Model(config_of(what), [load(source, made)], 2)

            def forward(self, input_ids, attention_mask, token_type_ids, labels):  # type: ignore[no-untyped-def]
                logits = self.model(Inputs(input_ids, attention_mask, token_type_ids)).classes
                return {"loss": cross_entropy(logits.float(), labels), "logits": logits}

        cut = {"truncation": True, "max_length": what.length, "return_token_type_ids": True}

        def rows(some: Corpus) -> list[dict[str, Any]]:
            return [
                {**tokenizer(e.question, e.text, **cut), "label": e.label} for e in some.examples
            ]

        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=what.batch,
            per_device_eval_batch_size=64,
            num_train_epochs=3,
            warmup_steps=WARMUP,
            max_grad_norm=1.0,
            bf16=DEVICE == "cuda",
            use_cpu=DEVICE == "cpu",
            train_sampling_strategy="group_by_length",
            eval_strategy="epoch",
            save_strategy="no",
            report_to=[],
            logging_strategy="epoch",
            disable_tqdm=True,
        )
        ends: list[float] = []

        def metrics(prediction: Any) -> dict[str, float]:
            found = np.argmax(prediction.predictions, axis=-1)
            return {"f1": float(f1_score(prediction.label_ids, found, average="macro"))}

        def objective(values: dict[str, float]) -> float:
            ends.append(time.time())
            return values["eval_f1"]

        started = time.time()
        run = Trainer(
            None,
            arguments,
            model_init=lambda _: Network(),
            train_dataset=rows(corpus),
            eval_dataset=rows(validation_of(corpus)),
            processing_class=tokenizer,
            compute_metrics=metrics,
        )
        best = run.hyperparameter_search(
            hp_space=lambda trial: {"learning_rate": RATES[trial.number % len(RATES)]},
            n_trials=trials,
            direction="maximize",
            backend="optuna",
            compute_objective=objective,
        )
        by_trial = ends[2::3] if len(ends) >= 3 * trials else ends  # it is asked every epoch
    return {
        "trials": trials,
        "whole": time.time() - started,
        "before_first": by_trial[0] - started,
        "per_trial": (by_trial[-1] - by_trial[BETWEEN - 1]) / (len(by_trial) - BETWEEN),
        "metric": best.objective,
    }


def whole_trials(
    name: str, cells: list[int], trials: int, keep: Callable[[dict[str, Any]], None]
) -> None:
    run = f"{time.time():.0f}"
    for many in cells:
        line = {"part": "trials", "run": run, "task": name, "contender": f"{many} cells"}
        keep(line | our_trials(TASKS[name], many, max(trials, 3 * many)))
    line = {"part": "trials", "run": run, "task": name, "contender": REFERENCE}
    keep(line | trainer_trials(TASKS[name], min(trials, 5)))


def table(lines: list[dict[str, Any]], path: Path) -> int:
    shown = Table("task", "contender", "samples/s", "× Trainer", "bar", "first epoch", "loss", "")
    missed = 0
    for line in lines:
        if line["part"] != "steady":
            continue
        if "failed" in line:
            shown.add_row(line["task"], line["contender"], "failed", line["failed"][:60])
            missed += 1
            continue
        same = [
            one["samples_per_second"]
            for one in lines
            if one.get("contender") == REFERENCE
            and (one["run"], one["task"]) == (line["run"], line["task"])
            and "failed" not in one
        ]
        ratio = line["samples_per_second"] / statistics.median(same) if same else None
        bar = TASKS[line["task"]].bar if line["contender"] == "captured" else None
        met = bar is None or (ratio is not None and ratio >= bar)
        missed += not met
        shown.add_row(
            TASKS[line["task"]].title,
            line["contender"],
            f"{line['samples_per_second']:.0f}",
            "" if ratio is None else f"{ratio:.2f}",
            "" if bar is None else f"≥ {bar:g}",
            f"{line['first_epoch']:.1f} s",
            f"{line['loss']:.4f}",
            ("met" if met else "MISSED") if bar else (line.get("why_eager") or "")[:40],
        )
    Console(width=140).print(shown)
    missed += trials_table([line for line in lines if line["part"] == "trials"])
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "none"
    kept = {"machine": machine(("torch", "transformers")), "device": device, "lines": lines}
    path.with_suffix(".json").write_text(json.dumps(kept, indent=1) + "\n")
    return int(missed > 0)


def trials_table(lines: list[dict[str, Any]]) -> int:
    if not lines:
        return 0
    shown = Table("task", "contender", "s a trial", "× Trainer", "first after", "metric", "cells")
    best = 0.0
    for line in lines:
        same = [
            one["per_trial"]
            for one in lines
            if one["contender"] == REFERENCE and one["run"] == line["run"]
        ]
        ratio = statistics.median(same) / line["per_trial"] if same else None
        best = max(best, ratio or 0.0)
        shown.add_row(
            TASKS[line["task"]].title,
            line["contender"],
            f"{line['per_trial']:.2f}",
            "" if ratio is None else f"{ratio:.2f}",
            f"{line['before_first']:.1f} s",
            f"{line['metric']:.3f}",
            str(line.get("cells", "")),
        )
    Console(width=140).print(shown)
    return int(best < 10)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["steady", "trials", "table"])
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=", ".join(TASKS))
    parser.add_argument("--cells", default="1,4,8")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    name = f"speed-{date.today().isoformat()}.jsonl"
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results" / name)
    options = parser.parse_args()
    path = options.results
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def keep(line: dict[str, Any]) -> None:
        lines.append(line)
        print(json.dumps(line), file=sys.stderr, flush=True)
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    if options.part == "steady":
        names = options.tasks or [name for name in TASKS if name != "tiny"]
        steady(names, options.contenders.split(","), keep)
    if options.part == "trials":
        some = [int(many) for many in options.cells.split(",")]
        whole_trials((options.tasks or ["base16"])[0], some, options.trials, keep)
    return table(lines, path)


if __name__ == "__main__":
    raise SystemExit(main())
