"""The others' searches in speed.py: Trainer's own, Optuna around a plain loop, and the old way.

All of them try the same list of learning rates and dropouts, with a new network each trial and an
evaluation after every epoch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.pruners import NopPruner
from speed_old import open_study, suggested
from speed_peers import BareLoop, Peer, macro_f1, training_arguments
from speed_tasks import EPOCHS, TASKS, Line, Task, choice, corpus_of, validation_of
from speed_trials import OLD_SECONDS, OLD_WORKERS, Ended, ended_of, summed_up
from transformers import Trainer


def trainer_search(what: Task, number: int, since: float, folder: Path) -> Line:
    """Trainer's own search, with Optuna."""
    corpus = corpus_of(what)
    peer = Peer(what, corpus, folder)
    ends: list[float] = []
    values: list[float] = []

    def metrics(prediction: Any) -> dict[str, float]:
        return {"f1": macro_f1(prediction.label_ids, np.argmax(prediction.predictions, axis=-1))}

    def objective(found: dict[str, float]) -> float:
        ends.append(time.time())
        values.append(found["eval_f1"])
        return found["eval_f1"]

    run = Trainer(
        None,
        training_arguments(what, folder, num_train_epochs=EPOCHS, eval_strategy="epoch"),
        model_init=lambda trial: peer.network(choice(trial.number if trial else 0).dropout),
        train_dataset=peer.rows(corpus),
        eval_dataset=peer.rows(validation_of(corpus)),
        processing_class=peer.tokenizer,
        compute_metrics=metrics,
    )
    run.hyperparameter_search(
        hp_space=lambda trial: {"learning_rate": choice(trial.number).rate},
        n_trials=number,
        direction="maximize",
        backend="optuna",
        pruner=NopPruner(),
        compute_objective=objective,
    )
    assert len(ends) == EPOCHS * number  # it is asked every epoch
    trials = []
    for i in range(number):
        epochs = slice(i * EPOCHS, (i + 1) * EPOCHS)
        best, at = max(values[epochs]), ends[epochs][-1]  # the best epoch's, as the others say
        trials.append(Ended(choice(i).rate, choice(i).dropout, best, at))
    return summed_up(trials, since, 1)


def bare_search(what: Task, number: int, since: float, folder: Path) -> Line:
    """study.optimize in one process, around a plain loop."""
    corpus = corpus_of(what)
    peer = Peer(what, corpus, folder)
    rows, some = peer.rows(corpus), peer.rows(validation_of(corpus))

    def objective(trial: optuna.Trial) -> float:
        tried = suggested(trial)
        loop = BareLoop(peer, rows, tried.rate, EPOCHS, tried.dropout)
        values = []
        for epoch in range(EPOCHS):
            loop.epoch(epoch)
            values.append(loop.score(some))
            trial.report(values[-1], epoch)
        return max(values)

    study = open_study(None, number)
    study.optimize(objective, n_trials=number)
    return summed_up(ended_of(study), since, 1)


def old_search(what: Task, number: int, since: float, folder: Path) -> Line:
    """Three workers that share a study in SQLite; see speed_old.py. They are warm when their
    first trial begins, so all of their trials count. Where they do not come to the end of one in
    time, how long it takes is reckoned from the steps they came to."""
    storage = f"sqlite:///{folder / 'old.db'}"
    study = open_study(storage, number)
    name = next(name for name, one in TASKS.items() if one == what)
    script = str(Path(__file__).parent / "speed_old.py")
    each = str(number // OLD_WORKERS)
    command = [sys.executable, script, name, storage, each, str(OLD_SECONDS)]
    environment = {**os.environ, "CUDA_LAUNCH_BLOCKING": "1"}
    workers = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(OLD_WORKERS)
    ]
    said = [worker.communicate()[0] for worker in workers]
    if any(worker.returncode for worker in workers):
        raise RuntimeError(f"workers ended with the codes {[w.returncode for w in workers]}")
    came = [json.loads(words.splitlines()[-1]) for words in said]
    rate = sum(one["steps"] / one["seconds"] for one in came)
    per_trial = came[0]["steps_of_a_trial"] / rate
    ended = ended_of(study)
    if len(ended) == number:
        return summed_up(ended, since, OLD_WORKERS, per_trial, came=came)
    begun = min(t.datetime_start.timestamp() for t in study.trials if t.datetime_start)
    return {
        "trials": len(ended),
        "reckoned": True,
        "before_first": begun - since + OLD_WORKERS * per_trial,
        "whole": time.time() - since,
        "together": OLD_WORKERS,
        "per_trial": per_trial,
        "came": came,
    }
