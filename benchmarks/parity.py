"""Compare metrics of Supermax with plain transformers, on public data with the same settings.

    python benchmarks/parity.py run DATA ENCODER [TASK ...] [--sides trainer,ours] [--seeds 5]
    python benchmarks/parity.py table

DATA: a folder with the files that parity_data.py names. ENCODER: a folder or a name that
transformers loads. A process does `--each` runs; each result is a line in --results, and existing
results are not run again. Sides: "trainer" (a plain script with Trainer; for multilabel and
regression torch initialises its pooler and class layer), "plain" (a plain loop of PyTorch) and
"ours". By default those are compared that a task has: "trainer" and "ours", and "plain" and "ours"
for share and joint, which transformers has no model for. Other sides: "trainer raw" (numbers that
are not standardised), "trainer pooler" (the head of multilabel and regression begins with the
checkpoint's pooler), "ours eager", "ours compiled" (other step executors), "ours padded" (random
batches without packing), "ours sorted" (pools of fifty batches sorted by length).
wnut needs the package seqeval.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import torch
from parity_data import TASKS, Split, Task, read

_EXECUTION = {
    "ours": {"compiled": False},
    "ours eager": {"captured": False},
    "ours compiled": {"compiled": True},
    "ours padded": {"compiled": False},
    "ours sorted": {"compiled": False},
}
_LOOP, _TRAINER = "plain", "trainer"
_REFERENCES = (_TRAINER, _LOOP)
"""Sides that the others are compared with: the first one that has results."""
_OF_TRAINER = ("criteria", "multilabel", "regression", "token-classification", "evidence")
_OF_LOOP = ("criteria", "evidence", "share", "joint")
Line = dict[str, Any]


def default_sides(task: Task) -> list[str]:
    return [_TRAINER if task.agent in _OF_TRAINER else _LOOP, "ours"]


def has_side(task: Task, side: str) -> bool:
    """Return True if a task can be run by a side."""
    if side == "trainer raw":
        return task.agent == "regression"
    if side == "trainer pooler":
        return task.agent in ("multilabel", "regression")
    agents = {_LOOP: _OF_LOOP, _TRAINER: _OF_TRAINER}.get(side)
    return side in _EXECUTION if agents is None else task.agent in agents


def several(
    folder: Path, encoder: str, name: str, side: str, seeds: Sequence[int], results: Path
) -> None:
    """Run the seeds of one side in this process; append a line for each."""
    task = TASKS[name]
    data = read(folder, task)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as cache:
        for seed in seeds:
            started = time.perf_counter()
            epochs = _trained(task, encoder, data, side, seed, Path(cache))
            line = {
                "task": name, "side": side, "seed": seed, "epochs": epochs,
                "rows": len(data[0]), "held_out": len(data[1]),
                "seconds": round(time.perf_counter() - started, 1),
                "device": device, "torch": torch.__version__,
            }  # fmt: skip
            with results.open("a") as file:
                file.write(json.dumps(line) + "\n")


def _trained(
    task: Task, encoder: str, data: Split, side: str, seed: int, cache: Path
) -> list[dict[str, float]]:
    """Return the held-out metrics after each epoch, and import the libraries of one side only."""
    if side == _LOOP:
        import parity_plain as plain

        return list(plain.train(task, encoder, data, seed))
    if side.startswith(_TRAINER):
        import parity_trainer as trainer

        return trainer.train(
            task, encoder, data, seed, raw=side == "trainer raw", pooler=side == "trainer pooler"
        )
    import parity_ours as ours

    ours.change(side)
    prepared = ours.prepared_for(task, encoder, data, seed, cache, **_EXECUTION[side])
    return ours.train(prepared, *data[1:])


def run(options: argparse.Namespace) -> int:
    """Start a process for every `--each` seeds of a task and side."""
    options.results.parent.mkdir(parents=True, exist_ok=True)
    done = {(x["task"], x["side"], x["seed"]) for x in lines_of(options.results)}
    wanted = []
    for first in range(0, options.seeds, options.each):
        seeds = range(first, min(options.seeds, first + options.each))
        for task in options.tasks:
            for side in options.sides or default_sides(TASKS[task]):
                left = [seed for seed in seeds if (task, side, seed) not in done]
                wanted += [(task, side, left)] if left and has_side(TASKS[task], side) else []
    ends = time.monotonic() + options.seconds

    def work(what: tuple[str, str, list[int]]) -> str:
        left, (task, side, seeds) = ends - time.monotonic(), what
        command = [sys.executable, __file__, "several", str(options.data), options.encoder, task]
        command += [side, ",".join(map(str, seeds)), str(options.results)]
        try:
            found = subprocess.run(command, capture_output=True, text=True, timeout=max(0, left),
                                   env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"{task} {side} {seeds}: no time left; the same command continues it"
        return f"{task} {side} {seeds}: {found.stderr[-2000:]}" if found.returncode else ""

    with ThreadPoolExecutor(options.jobs) as pool:
        failed = [message for message in pool.map(work, wanted) if message]
    print(*failed, sep="\n", file=sys.stderr)
    table(options.results)
    return int(bool(failed))


def lines_of(path: Path) -> list[Line]:
    return [json.loads(x) for x in path.read_text().splitlines()] if path.exists() else []


def table(path: Path) -> None:
    """Print means of the last epoch with 95 % intervals, and Welch's t-test against Trainer or,
    where there is none, against the plain loop."""
    from scipy import stats  # type: ignore[import-untyped]

    lines = lines_of(path)
    print(f"{'task':12} {'metric':22} {'side':16} {'seeds':>5} {'mean':>7} {'±95 %':>7} "
          f"{'- ref.':>8} {'p':>7} {'epoch 1':>8} {'seconds':>8}")  # fmt: skip
    for name, task in TASKS.items():
        for metric in task.metrics:
            sides = dict.fromkeys(x["side"] for x in lines if x["task"] == name)
            base = next((side for side in _REFERENCES if side in sides), _LOOP)
            reference = _values(lines, name, base, metric)
            for side in sides:
                values = _values(lines, name, side, metric)
                half = float("nan")
                if len(values) > 1:
                    half = float(stats.sem(values) * stats.t.ppf(0.975, len(values) - 1))
                mean = sum(values) / len(values)
                more = " " * 16
                if side != base and len(reference) > 1 and len(values) > 1:
                    p = stats.ttest_ind(values, reference, equal_var=False).pvalue
                    more = f"{mean - sum(reference) / len(reference):+8.4f} {p:7.3f}"
                early = _values(lines, name, side, metric, epoch=0)
                took = [x["seconds"] for x in lines if (x["task"], x["side"]) == (name, side)]
                ends = f"{sum(early) / len(early):8.4f} {sum(took) / len(took):8.1f}"
                print(f"{name:12} {metric:22} {side:16} {len(values):5} {mean:7.4f} {half:7.4f} "
                      f"{more} {ends}")  # fmt: skip


def _values(lines: list[Line], task: str, side: str, metric: str, epoch: int = -1) -> list[float]:
    return [x["epochs"][epoch][metric] for x in lines if (x["task"], x["side"]) == (task, side)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    results = Path(__file__).parent / "results" / f"parity-{date.today().isoformat()}.jsonl"
    parts = parser.add_subparsers(dest="part", required=True)
    running = parts.add_parser("run")
    running.add_argument("data", type=Path)
    running.add_argument("encoder")
    running.add_argument("tasks", nargs="*", default=list(TASKS))
    running.add_argument("--sides", type=lambda names: names.split(","))
    running.add_argument("--seeds", type=int, default=5)
    running.add_argument("--jobs", type=int, default=8)
    running.add_argument("--seconds", type=float, default=86_400, help="time limit")
    running.add_argument("--results", type=Path, default=results)
    running.add_argument("--each", type=int, default=1, help="seeds per process")
    single = parts.add_parser("several")
    for argument in ("data", "encoder", "task", "side", "seeds", "results"):
        single.add_argument(argument)
    showing = parts.add_parser("table")
    showing.add_argument("--results", type=Path, default=results)
    options = parser.parse_args()
    if options.part == "run":
        return run(options)
    if options.part == "table":
        table(options.results)
        return 0
    seeds = [int(seed) for seed in options.seeds.split(",")]
    several(
        Path(options.data), options.encoder, options.task, options.side, seeds,
        Path(options.results),
    )  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
