"""Measure the overhead of the engine against Optuna alone in the same run.

    make bench                 everything, about ten minutes on two cores
    python benchmarks/engine.py --only noop,sleep,growth,start,joblib,promotion --scale 0.1

Prints one table and writes dated JSON under benchmarks/results/. Every ratio is against
Optuna in the same run, on the same kind of storage, with the same objective and sampler.
"""

from __future__ import annotations

import functools
import gc
import statistics
import sys
import time
from collections.abc import Callable

import optuna
import psutil
from common import Line, at_least, at_most, main, unlimited
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import cross_val_score

import supermax
from supermax.engine import events
from supermax.engine.storage.patient import PatientStorage

optuna.logging.set_verbosity(optuna.logging.ERROR)
STEPS = 9
"""Reports of a trial in (f)."""


def noop(trial: optuna.Trial) -> float:
    return float(trial.suggest_float("x", 0.0, 1.0))


def sleeping(trial: optuna.Trial) -> float:
    x = trial.suggest_float("x", 0.0, 1.0)
    time.sleep(0.05)
    return float(x)


def first_line(trial: optuna.Trial) -> float:
    return time.monotonic()  # one clock for all processes of a machine


def cross_validated(trial: optuna.Trial) -> float:
    """Run four folds in joblib processes, one per core."""
    trees = trial.suggest_int("trees", 20, 21)
    forest = RandomForestClassifier(n_estimators=trees, random_state=0)
    x, y = load_digits(return_X_y=True)
    return float(cross_val_score(forest, x, y, cv=4, n_jobs=-1).mean())


def new_study(folder: str, name: str) -> optuna.Study:
    sampler = optuna.samplers.RandomSampler(seed=0)
    return optuna.create_study(
        storage=f"sqlite:///{folder}/{name}.db", study_name=name, sampler=sampler
    )


def timed(action: Callable[[], object]) -> float:
    gc.collect()
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def bench_noop(folder: str, scale: float) -> list[Line]:
    """(a) Measure the overhead of a trial that does nothing."""
    n = int(2000 * scale)
    alone = timed(lambda: new_study(folder, "alone").optimize(noop, n_trials=n))
    ours = timed(
        lambda: supermax.optimize(
            new_study(folder, "ours"), noop, n_trials=n, reuse_cells=True, progress=False
        )
    )
    fresh = timed(
        lambda: supermax.optimize(new_study(folder, "fresh"), noop, n_trials=n, progress=False)
    )
    theirs = f"{alone / n * 1e3:.1f} ms/trial"
    each = "    the same, a fresh process for every trial"
    return [
        at_most(
            f"(a) {n} no-op trials, one worker, cells reused",
            f"{ours / n * 1e3:.1f} ms/trial",
            theirs,
            ours / alone,
            1.5,
        ),
        unlimited(each, f"{fresh / n * 1e3:.1f} ms/trial", theirs, fresh / alone),
    ]


def bench_sleep(folder: str, scale: float) -> list[Line]:
    """(b) Measure the throughput of two workers on trials that take 50 ms."""
    n = int(300 * scale)
    alone = timed(lambda: new_study(folder, "alone").optimize(sleeping, n_trials=n))
    ours = timed(
        lambda: supermax.optimize(
            new_study(folder, "ours"),
            sleeping,
            n_trials=n,
            workers=2,
            reuse_cells=True,
            progress=False,
        )
    )
    name = f"(b) {n} trials of 50 ms, two workers, cells reused"
    rates = f"{n / ours:.1f} trials/s", f"{n / alone:.1f} trials/s"
    return [at_least(name, *rates, alone / ours, 1.8)]


class Stopwatch:
    """Time spent inside Optuna's own storage and sampler, per finished trial."""

    def __init__(self) -> None:
        self.inside = 0.0
        self.marks: list[tuple[float, float]] = []  # (wall, inside) after each trial
        self._depth = 0

    def wrap(self, owner: type, name: str) -> None:
        original = getattr(owner, name)

        def measured(*args: object, **kwargs: object) -> object:
            self._depth += 1
            started = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self.inside += time.perf_counter() - started

        setattr(owner, name, measured)

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.TrialFinished):
            self.marks.append((time.perf_counter(), self.inside))

    def per_trial(self, first: int, last: int) -> tuple[float, float]:
        """Return (harness, Optuna) seconds per trial, from trial `first` to trial `last`."""
        (wall_a, inside_a), (wall_b, inside_b) = self.marks[first], self.marks[last]
        n = last - first
        inside = (inside_b - inside_a) / n
        return (wall_b - wall_a) / n - inside, inside


def bench_growth(folder: str, scale: float) -> list[Line]:
    """(c) Measure memory growth and the harness time, early and late, over ten thousand trials."""
    n = int(10_000 * scale)
    tenth = n // 10
    watch = Stopwatch()
    originals = {name: getattr(PatientStorage, name) for name in ("_do",)}
    for name in ("ask", "tell"):
        originals[f"study.{name}"] = getattr(optuna.Study, name)
        watch.wrap(optuna.Study, name)
    watch.wrap(PatientStorage, "_do")
    me = psutil.Process()
    rss: list[int] = []

    def listener(event: events.Event) -> None:
        watch(event)
        if isinstance(event, events.TrialFinished) and event.number in (20, n - 1):
            rss.append(me.memory_info().rss)

    try:
        supermax.optimize(
            new_study(folder, "ours"), noop, n_trials=n, reuse_cells=True, progress=listener
        )
    finally:
        PatientStorage._do = originals["_do"]  # type: ignore[method-assign]
        optuna.Study.ask = originals["study.ask"]  # type: ignore[method-assign]
        optuna.Study.tell = originals["study.tell"]  # type: ignore[method-assign]
    early, optuna_early = watch.per_trial(0, tenth - 1)
    late, optuna_late = watch.per_trial(n - tenth, n - 1)
    growth = (rss[-1] - rss[0]) / 1e6
    alone = alone_growth(folder, n)
    name, sizes = f"(c) memory growth over {n} trials", (f"{growth:.0f} MB", f"{alone:.0f} MB")
    return [
        at_most(name, *sizes, growth, 60, " MB"),
        at_most(
            f"    harness time a trial, last {tenth} / first {tenth}",
            f"{late * 1e3:.2f} / {early * 1e3:.2f} ms",
            f"{optuna_late * 1e3:.1f} / {optuna_early * 1e3:.1f} ms in ask, tell, storage",
            late / early,
            1.5,
        ),
    ]


def alone_growth(folder: str, n: int) -> float:
    me = psutil.Process()
    study = new_study(folder, "alone-growth")
    study.optimize(noop, n_trials=20)
    before = me.memory_info().rss
    study.optimize(noop, n_trials=n - 20)
    return (me.memory_info().rss - before) / 1e6


def bench_start(folder: str, scale: float) -> list[Line]:
    """(d) Measure the time from sending a task to the first line of the objective."""
    n = int(200 * scale)
    lines = []
    for reuse, limit in ((True, 5.0), (False, 100.0)):
        sent: dict[int, float] = {}
        waits: list[float] = []

        def listener(
            event: events.Event, sent: dict[int, float] = sent, waits: list[float] = waits
        ) -> None:
            if isinstance(event, events.TrialStarted):
                sent[event.number] = event.at
            if isinstance(event, events.TrialFinished) and event.values:
                waits.append((event.values[0] - sent[event.number]) * 1e3)

        name = "reused" if reuse else "fresh"
        supermax.optimize(
            new_study(folder, name), first_line, n_trials=n, reuse_cells=reuse, progress=listener
        )
        median = statistics.median(waits)
        tail = statistics.quantiles(waits, n=20)[-1]
        title = f"(d) task sent to first line, {name} cells"
        found = f"median {median:.2f} ms, 95 % under {tail:.2f} ms"
        lines.append(at_most(title, found, "–", median, limit, " ms"))
    return lines


def bench_joblib(folder: str, scale: float) -> list[Line]:
    """(e) Measure scikit-learn with n_jobs=-1, from the second trial on.

    The first trial starts joblib's processes with every contender.
    """
    n = max(2, int(8 * scale))

    def seconds_per_trial(run: Callable[..., object]) -> float:
        ends: list[float] = []
        run(callbacks=[lambda *_: ends.append(time.perf_counter())])
        return (ends[-1] - ends[0]) / (n - 1)

    def optimize(name: str, reuse_cells: bool) -> Callable[..., object]:
        study = new_study(folder, name)
        return functools.partial(
            supermax.optimize, study, cross_validated, n, progress=False, reuse_cells=reuse_cells
        )

    alone_study = new_study(folder, "alone")
    alone = seconds_per_trial(functools.partial(alone_study.optimize, cross_validated, n_trials=n))
    reused = seconds_per_trial(optimize("reused", True))
    fresh = seconds_per_trial(optimize("fresh", False))
    theirs = f"{alone:.2f} s/trial"
    name = f"(e) {n} trials with n_jobs=-1, cells reused, from the second on"
    each = "    the same, a fresh process for every trial"
    return [
        at_most(name, f"{reused:.2f} s/trial", theirs, reused / alone, 1.5),
        unlimited(each, f"{fresh:.2f} s/trial", theirs, fresh / alone),
    ]


def reporting(trial: optuna.Trial) -> float:
    """Report a value after each of nine steps."""
    x = float(trial.suggest_float("x", 0.0, 1.0))
    for step in range(1, STEPS + 1):
        trial.report(x + 1 / step, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return x


def bench_promotion(folder: str, scale: float) -> list[Line]:
    """(f) Measure the cost of a trial where trials pause at rungs, early and late."""
    n = int(1000 * scale)
    started: list[float] = []

    def listener(event: events.Event) -> None:
        if isinstance(event, events.TrialStarted) and event.number == len(started):
            started.append(time.perf_counter())

    run = functools.partial(supermax.optimize, n_trials=n, reuse_cells=True)
    plain = timed(lambda: run(new_study(folder, "plain"), reporting, progress=False))
    pruner = supermax.Promotion(max_reports=STEPS)
    paused = timed(
        lambda: run(new_study(folder, "paused"), reporting, pruner=pruner, progress=listener)
    )
    tenth = n // 10
    early = (started[2 * tenth] - started[tenth]) / tenth  # the first ones are not paused
    late = (started[-1] - started[-1 - tenth]) / tenth
    name = f"(f) {n} trials with {STEPS} reports, that pause at rungs"
    times = f"{paused / n * 1e3:.1f} ms/trial", f"{plain / n * 1e3:.1f} ms/trial without pauses"
    each = f"    time a trial, last {tenth} / second {tenth}"
    return [
        unlimited(name, *times, paused / plain),
        at_most(each, f"{late * 1e3:.1f} / {early * 1e3:.1f} ms", "–", late / early, 1.5),
    ]


BENCHES = {
    "noop": bench_noop,
    "sleep": bench_sleep,
    "growth": bench_growth,
    "start": bench_start,
    "joblib": bench_joblib,
    "promotion": bench_promotion,
}


if __name__ == "__main__":
    sys.exit(main("engine", "The engine compared with Optuna alone, same run", BENCHES, __doc__))
