"""Synthetic studies with run folders as a run leaves them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from supermax._util.attributes import EXPERIMENT, branch_name
from supermax.engine.storage.locations import find_location
from supermax.results.records import StudyRecord, read_record

START = datetime(2026, 3, 2, 8, 0, 0)
ENCODERS = {"roberta-base": 0.78, "deberta-v3-base": 0.82, "minilm": 0.71}
HOSTILE = (
    "<script>window.ran=1</script>",
    "</script><script>window.ran=1</script>",
    "<img src=x onerror=window.ran=1>",
    '<a href="javascript:window.ran=1">click</a>',
    "<b>bold</b> %{x} $x^2$ &amp; &lt;",
)
FAULTS: tuple[dict[str, Any], ...] = (
    {
        "kind": "device out of memory",
        "culprit": "configuration",
        "message": "CUDA out of memory. Tried to allocate 2.00 GiB.",
        "advice": "Smaller batches or shorter texts need less; the sampler learns from it.",
        "signature": "device out of memory",
    },
    {
        "kind": "signal",
        "culprit": "machine",
        "message": "The process was ended by SIGSEGV.",
        "advice": "Look at the end of the output; if it happens again, at the libraries.",
        "signature": "SIGSEGV",
    },
    {
        "kind": "exception",
        "culprit": "code",
        "message": "ValueError: the target 7 is out of bounds",
        "advice": "Mend the objective, then `supermax study retry`.",
        "signature": "ValueError train.py:71",
    },
)


def rich(
    study: optuna.Study, trials: int = 120, cells: int = 3, seed: int = 1, steps: int = 8
) -> StudyRecord:
    """Three encoders, conditional parameters, a branch, curves, faults, retries."""
    rng = random.Random(seed)
    free = [START] * cells
    made, ledgers = [], {}
    several = len(study.directions) > 1
    for number in range(trials):
        cell = min(range(cells), key=lambda i: free[i])
        params, distributions = drawn(rng, min(1.0, number / (0.7 * trials)))
        quality = worth(params, rng)
        seconds = rng.uniform(40, 90) * (2.2 if "deberta" in params["encoder.name"] else 1)
        start = free[cell] + timedelta(seconds=rng.uniform(0.5, 3))
        lines, at = [], start
        fault = None
        if rng.random() < 0.11:
            fault = FAULTS[rng.choices((0, 1, 2), (5, 3, 2))[0]]
        attempt = 1
        if fault is not None and fault["kind"] != "exception":
            end = at + timedelta(seconds=seconds * rng.uniform(0.1, 0.7))
            lines += [launch(1, cell + 1, at), fell(1, fault, end, (end - at).total_seconds())]
            at, attempt = end + timedelta(seconds=2), 2
        failed = fault is not None and (fault["kind"] == "exception" or rng.random() < 0.2)
        pruned = not failed and not several and number > 10 and quality < 0.72
        if pruned:
            seconds *= rng.uniform(0.3, 0.7)
        end = at + timedelta(seconds=seconds)
        lines.append(launch(attempt, cell + 1, at))
        if failed:
            lines.append(fell(attempt, fault or FAULTS[2], end, seconds))
        free[cell] = end
        shown = steps if not pruned else max(1, steps // 2)
        curve = {s: quality * (1 - math.exp(-0.7 * (s + 1))) for s in range(shown)}
        state = TrialState.FAIL if failed else TrialState.PRUNED if pruned else TrialState.COMPLETE
        values = [quality, seconds / 60][: len(study.directions)]
        made.append(
            frozen(
                state,
                values if state is TrialState.COMPLETE else None,
                params,
                distributions,
                {} if several else curve,
                notes(rng, params, attempt, seconds, state, curve),
                (start, end),
            )
        )
        ledgers[number] = lines
    study.add_trials(made)
    write_ledgers(study, ledgers)
    return read_record(study)


def drawn(rng: random.Random, learnt: float) -> tuple[dict[str, Any], dict[str, Any]]:
    names = list(ENCODERS)
    name = rng.choices(names, [1, 1 + 2 * learnt, 1 - 0.7 * learnt])[0]
    batch = CategoricalDistribution((8, 16) if "deberta" in name else (8, 16, 32, 64))
    warm = rng.random() < 0.6
    params: dict[str, Any] = {
        "encoder.name": name,
        branch_name("train.batch_size", batch): rng.choice(batch.choices),
        "optim.lr": 10 ** rng.gauss(-4.6, 0.6 - 0.3 * learnt),
        "head.dropout": rng.uniform(0, 0.5),
        "text.length": rng.randrange(128, 513, 32),
        "schedule.name": "warmup" if warm else "constant",
    }
    distributions: dict[str, Any] = {
        "encoder.name": CategoricalDistribution(names),
        branch_name("train.batch_size", batch): batch,
        "optim.lr": FloatDistribution(1e-7, 1e-1, log=True),
        "head.dropout": FloatDistribution(0, 0.5),
        "text.length": IntDistribution(128, 512, step=32),
        "schedule.name": CategoricalDistribution(("constant", "warmup")),
    }
    if warm:
        params["schedule.warmup"] = rng.uniform(0, 0.2)
        distributions["schedule.warmup"] = FloatDistribution(0, 0.2)
    return params, distributions


def worth(params: dict[str, Any], rng: random.Random) -> float:
    off = math.log10(params["optim.lr"]) + 4.6
    return (
        ENCODERS[params["encoder.name"]]
        - 0.06 * off * off
        - 0.1 * params["head.dropout"] ** 2
        + 0.03 * params["text.length"] / 512
        + rng.gauss(0, 0.012)
    )


def notes(
    rng: random.Random,
    params: dict[str, Any],
    attempt: int,
    seconds: float,
    state: TrialState,
    curve: dict[int, float],
) -> dict[str, Any]:
    device = int(1.2e9 + 6e6 * params["text.length"] * rng.uniform(0.9, 1.1))
    found: dict[str, Any] = {
        "supermax": {
            "format": 1,
            "attempts": attempt,
            "seconds": round(seconds, 3),
            "peak_rss": int(1.5e9 + 4e8 * rng.random()),
            "device_allocated": device,
            "device_reserved": int(device * 1.1),
            "reserved": {"device": int(1.3e9 + 6.5e6 * params["text.length"])},
        }
    }
    if state is TrialState.COMPLETE:
        best = max(curve.values())
        found["result"] = {
            "metrics": {"macro_f1": round(best, 4), "accuracy": round(best + 0.03, 4)},
            "best_epoch": len(curve),
            "epochs": len(curve),
            "seconds": seconds,
            "parameters": 124_645_632,
            "threshold": 0.5,
            "decoding": {
                "n_best": 20,
                "max_answer": 32,
                "policy": "calibrated",
                "threshold": 0.5,
            },
            "train_loss": [round(1.1 * math.exp(-0.4 * s), 4) for s in curve],
            "samples_per_second": rng.uniform(80, 120),
            "steps": "compiled and recorded",
        }
    return found


def frozen(
    state: TrialState,
    values: Sequence[float] | None,
    params: dict[str, Any],
    distributions: dict[str, Any],
    curve: dict[int, float],
    attributes: dict[str, Any],
    times: tuple[datetime, datetime],
) -> FrozenTrial:
    trial = create_trial(
        state=state,
        values=values,
        params=params,
        distributions=distributions,
        intermediate_values=curve,
        user_attrs=attributes,
    )
    trial.datetime_start, trial.datetime_complete = times
    return trial


def launch(attempt: int, cell: int, at: datetime) -> dict[str, Any]:
    return {"launch": attempt, "cell": cell, "at": at.timestamp()}


def fell(attempt: int, fault: dict[str, Any], at: datetime, seconds: float) -> dict[str, Any]:
    raised = fault["kind"] == "exception"
    return {
        "fault": {**fault, "fresh_cell": True, "violation": 1.0},
        "attempt": attempt,
        "decision": "fail" if raised else "retry in a fresh cell",
        "exit_code": 1 if raised else None,
        "signal": 11 if fault["kind"] == "signal" else None,
        "seconds": round(seconds, 3),
        "last_step": 3,
        "peak_rss": 1_800_000_000,
        "traceback": 'Traceback (most recent call last):\n  File "train.py", line 71, in step\n'
        f"{fault['message']}\n"
        if raised
        else None,
        "log_tail": "epoch 3: loss 0.412\nepoch 4: loss 0.377\n",
        "at": at.timestamp(),
    }


def write_ledgers(study: optuna.Study, ledgers: dict[int, list[dict[str, Any]]]) -> Path:
    run_dir = find_location(study).run_dir
    for number, lines in ledgers.items():
        folder = run_dir / "trials" / f"{number:05d}"
        folder.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "ledger.jsonl").write_text(text)
    return run_dir


def agent_study(storage: str | None, name: str = "criteria", objectives: int = 1) -> optuna.Study:
    """A study as a search over an agent leaves it."""
    names = ["macro_f1", "latency"][:objectives]
    study = optuna.create_study(
        storage=storage, study_name=name, directions=["maximize", "minimize"][:objectives]
    )
    experiment = {"data": "made-up 0a1b2c3d4e5f", "objectives": names, "limits": {"epochs": 8}}
    study.set_user_attr(EXPERIMENT, experiment)
    return study


def hostile(storage: str | BaseStorage | None) -> StudyRecord:
    """Make a study whose names and texts all try to inject HTML or scripts."""
    script, end, image, link, plot = HOSTILE
    study = optuna.create_study(storage=storage, study_name=f"{script} {link}")
    study.set_user_attr(
        EXPERIMENT, {"data": image, "objectives": [plot], "limits": {image: script}, "agent": end}
    )
    rng = random.Random(3)
    made, ledgers = [], {}
    for number in range(14):
        choice = HOSTILE[number % len(HOSTILE)]
        state = TrialState.FAIL if number % 4 == 3 else TrialState.COMPLETE
        at = START + timedelta(minutes=number)
        fault = {**FAULTS[2], "message": f"{image} {link}", "advice": end, "signature": script}
        lines = [launch(1, 1, at)]
        if state is TrialState.FAIL:
            line = fell(1, fault, at + timedelta(seconds=40), 40.0)
            line |= {"traceback": end + image, "log_tail": "\x1b[31m" + "\n".join(HOSTILE)}
            lines.append(line | {"decision": script})
        ledgers[number] = lines
        params = {image: choice, link: rng.random(), "encoder.name": choice, end: rng.random()}
        distributions: dict[str, Any] = {
            image: CategoricalDistribution(HOSTILE),
            link: FloatDistribution(0, 1),
            "encoder.name": CategoricalDistribution(HOSTILE),
            end: FloatDistribution(0, 1),
        }
        values = [rng.random()] if state is TrialState.COMPLETE else None
        attributes = {"supermax": {"format": 1, "attempts": 1, "seconds": 40.0, "peak_rss": 10**9}}
        if values:
            metrics = {script: 0.5, "f1_0": 0.5}
            attributes["result"] = {"metrics": metrics, "labels": [script], "best_epoch": image}  # type: ignore[dict-item]
        curve = {s: rng.random() for s in range(4)}
        times = (at, at + timedelta(seconds=40))
        made.append(frozen(state, values, params, distributions, curve, attributes, times))
    study.add_trials(made)
    write_ledgers(study, ledgers)
    return read_record(study)
