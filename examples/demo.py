"""Search all four agents on synthetic data with a tiny encoder, beside a TF-IDF baseline. Then
refit the best criteria model with two seeds, export it, and predict one example.

    python examples/demo.py [folder]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import optuna
from rich.console import Console
from rich.table import Table

from supermax.search.search import Search
from supermax.search.tuned import Tuned
from supermax.training.data.examples import Corpus
from supermax.training.data.synthetic import synthetic
from supermax.training.deploy.export import load_exported
from supermax.training.deploy.predict import predict_examples
from supermax.training.deploy.refit import refit
from supermax.training.eval.baseline import baseline, trivial
from supermax.training.steps.execution import Execution

TRIALS = {"criteria": 6, "evidence": 6, "share": 4, "joint": 4}
SHOWN = {
    "criteria": ("macro_f1", "auroc"),
    "evidence": ("token_f1", "has_answer_f1"),
    "share": ("macro_f1", "token_f1"),
    "joint": ("macro_f1", "token_f1"),
}
console = Console()


def main(folder: Path) -> None:
    started = time.monotonic()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    corpus = synthetic_posts()
    positives = sum(example.label == 1 for example in corpus.classes)
    console.print(
        f"Synthetic data: {len(corpus.classes)} sentences ({positives} show their criterion) and "
        f"{len(corpus.spans)} posts to find evidence in. The encoder is tiny and not pretrained."
    )
    tuned = {agent: search(agent, corpus, folder) for agent in TRIALS}
    splits = tuned["criteria"].splits
    references = {
        "TF-IDF": baseline(splits.train, splits.validation),
        "most frequent class, no answer": trivial(splits.train, splits.validation),
    }
    for agent, one in tuned.items():
        leaderboard(agent, one, references)
    refit_and_predict(tuned["criteria"], folder)
    console.print(f"All in {time.monotonic() - started:.0f} s; files in {folder}")


def synthetic_posts() -> Corpus:
    """Return short posts, on which a CPU trains in seconds."""
    return synthetic(posts=900, difficulty=0.05, seed=2, max_words=24)


def search(agent: str, corpus: Corpus, folder: Path) -> Tuned:
    search = Search(
        agent, corpus, str(folder / "demo.db"), folder / "cache", trials=TRIALS[agent], seed=1,
        tell=lambda _: None,
    )  # fmt: skip
    return search.run(workers=2)


def leaderboard(agent: str, tuned: Tuned, references: dict[str, dict[str, float]]) -> None:
    names = SHOWN[agent]
    table = Table("trial", *names, "best epoch", title=agent)
    for row in tuned.best(3):
        scores = [f"{row['metrics'][name]:.3f}" for name in names]
        table.add_row(str(row["trial"]), *scores, str(row["best_epoch"]))
    for title, values in references.items():
        known = [f"{values[name]:.3f}" if name in values else "–" for name in names]
        table.add_row(title, *known, "")
    console.print(table)


def refit_and_predict(tuned: Tuned, folder: Path) -> None:
    """Refit the best trial, export the model to a folder, and predict one example with it."""
    best = tuned.winner()
    exported = folder / "criteria-model"
    result = refit(
        tuned.config(best["trial"]),
        tuned.splits,
        seeds=(1, 2),
        cache=folder / "cache",
        execution=Execution(threads=2),
        epochs=best["best_epoch"],
        folder=exported,
    )
    f1 = result.metrics["macro_f1"]
    console.print(
        f"Refit of trial {best['trial']} with 2 seeds, evaluated on the test split: macro-F1 "
        f"{f1.mean:.3f} (95 % interval {f1.low:.3f} to {f1.high:.3f}). Exported to {exported}"
    )
    asked = next(example for example in tuned.splits.test.classes if example.label == 1)
    (answer,) = predict_examples(load_exported(exported), [asked])
    shares = ", ".join(f"{name} {share:.0%}" for name, share in answer.probabilities.items())
    console.print(f"Text: '{asked.text}' Question: '{asked.question}' Its answer: {shares}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="supermax-demo-")))
