"""Throughput on a Ray cluster: Supermax with executor="ray" beside Ray Tune on the same nodes."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import RDBStorage
from scale_runs import SECONDS, sleeping

import supermax

CPUS = 4  # of a node


@contextlib.contextmanager
def cluster(nodes: int) -> Iterator[None]:
    """Run a Ray cluster on this machine whose nodes have CPUS logical CPUs each."""
    import ray
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={"num_cpus": CPUS})
    for _ in range(nodes - 1):
        found.add_node(num_cpus=CPUS)
    ray.init(address=found.address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()
        found.shutdown()  # type: ignore[no-untyped-call]


def ends_of_supermax(workers: int, trials: int, folder: Path) -> list[float]:
    """Return the moments at which trials ended."""
    study = optuna.create_study(storage=f"sqlite:///{folder}/{workers}.db", study_name="ray")
    supermax.optimize(
        study, sleeping, trials, workers=workers, reuse_cells=True, executor="ray", progress=False
    )
    return [t.datetime_complete.timestamp() for t in study.trials if t.datetime_complete]


def ends_of_ray_tune(
    workers: int, trials: int, folder: Path, storage: str | None = None
) -> list[float]:
    """Do the same with Ray Tune and its OptunaSearch. `storage`: of its study; None: in memory,
    where nothing is stored at the end of a trial."""
    from ray import tune
    from ray.tune.search.optuna import OptunaSearch

    def trainable(config: dict[str, Any]) -> dict[str, float]:
        time.sleep(SECONDS)
        return {"loss": config["x"] ** 2 + config["y"] ** 2, "at": time.time()}

    space = {"x": tune.uniform(-1, 1), "y": tune.uniform(-1, 1)}
    tuner = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1}),
        param_space=space,
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=trials,
            max_concurrent_trials=workers,
            reuse_actors=True,  # as reuse_cells
            search_alg=OptunaSearch(storage=RDBStorage(storage) if storage else None),
        ),
        run_config=tune.RunConfig(storage_path=str(folder), verbose=0),
    )
    return [float(result.metrics["at"]) for result in tuner.fit()]  # type: ignore[attr-defined]
