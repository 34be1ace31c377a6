"""Searches of the peers in speed.py: Trainer's own, Optuna with a plain loop, the fp32 baseline.

All of them run the same list of learning rates and dropouts, with a new network per trial and an
evaluation after every epoch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import optuna
from optuna.pruners import NopPruner
from speed_agents import metric_of
from speed_baseline import open_study, suggested
from speed_peers import BareLoop, Peer, training_arguments
from speed_tasks import EPOCHS, TASKS, Line, NotAvailable, Task, choice, corpus_of, validation_of
from speed_trials import BASELINE_SECONDS, BASELINE_WORKERS, Finished, finished_of, summarised
from transformers import EvalPrediction, Trainer


def trainer_search(what: Task, number: int, since: float, folder: Path) -> Line:
    """Run Trainer.hyperparameter_search with Optuna."""
    corpus = corpus_of(what)
    peer = Peer(what, corpus, folder)
    ends: list[float] = []
    values: list[float] = []

    metric = metric_of(what.agent)

    def metrics(prediction: EvalPrediction) -> dict[str, float]:
        return {"metric": metric(prediction.predictions, prediction.label_ids)}

    def objective(found: dict[str, float]) -> float:
        ends.append(time.time())
        values.append(found["eval_metric"])
        return found["eval_metric"]

    run = Trainer(
        None,
        training_arguments(what, folder, num_train_epochs=EPOCHS, eval_strategy="epoch"),
        model_init=lambda trial: peer.network(choice(trial.number if trial else 0).dropout),
        train_dataset=peer.rows(corpus),
        eval_dataset=peer.rows(validation_of(corpus)),
        processing_class=peer.tokenizer,
        data_collator=peer.collator,
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
    assert len(ends) == EPOCHS * number  # called after every epoch
    trials = []
    for i in range(number):
        epochs = slice(i * EPOCHS, (i + 1) * EPOCHS)
        best, at = max(values[epochs]), ends[epochs][-1]  # best epoch, as with the others
        trials.append(Finished(choice(i).rate, choice(i).dropout, best, at))
    return summarised(trials, since, 1)


def bare_search(what: Task, number: int, since: float, folder: Path) -> Line:
    """Run study.optimize in one process, with a plain PyTorch loop."""
    corpus = corpus_of(what)
    peer = Peer(what, corpus, folder)
    rows, some = peer.rows(corpus), peer.rows(validation_of(corpus))

    def objective(trial: optuna.Trial) -> float:
        chosen = suggested(trial)
        loop = BareLoop(peer, rows, chosen.rate, EPOCHS, chosen.dropout)
        values = []
        for epoch in range(EPOCHS):
            loop.epoch(epoch)
            values.append(loop.score(some))
            trial.report(values[-1], epoch)
        return max(values)

    study = open_study(None, number)
    study.optimize(objective, n_trials=number)
    return summarised(finished_of(study), since, 1)


def baseline_search(what: Task, number: int, since: float, folder: Path) -> Line:
    """Run the fp32 baseline: workers that share a study in SQLite; see speed_baseline.py.

    Workers are warm when their first trial begins, so all trials count. If they do not finish in
    time, the duration of a trial is extrapolated from the steps they made.
    """
    if what.agent != "criteria":
        raise NotAvailable(f"the fp32 baseline has no data of {what.agent}")
    storage = f"sqlite:///{folder / 'baseline.db'}"
    study = open_study(storage, number)
    name = next(name for name, one in TASKS.items() if one == what)
    script = str(Path(__file__).parent / "speed_baseline.py")
    each = str(number // BASELINE_WORKERS)
    command = [sys.executable, script, name, storage, each, str(BASELINE_SECONDS)]
    environment = {**os.environ, "CUDA_LAUNCH_BLOCKING": "1"}
    workers = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(BASELINE_WORKERS)
    ]
    outputs = [worker.communicate()[0] for worker in workers]
    if any(worker.returncode for worker in workers):
        raise RuntimeError(f"workers ended with the codes {[w.returncode for w in workers]}")
    progress = [json.loads(output.splitlines()[-1]) for output in outputs]
    rate = sum(one["steps"] / one["seconds"] for one in progress)
    per_trial = progress[0]["steps_of_a_trial"] / rate
    finished = finished_of(study)
    if len(finished) == number:
        return summarised(finished, since, BASELINE_WORKERS, per_trial, came=progress)
    first_start = min(t.datetime_start.timestamp() for t in study.trials if t.datetime_start)
    return {
        "trials": len(finished),
        "reckoned": True,
        "before_first": first_start - since + BASELINE_WORKERS * per_trial,
        "whole": time.time() - since,
        "together": BASELINE_WORKERS,
        "per_trial": per_trial,
        "came": progress,
    }
