"""A real Ray cluster of several nodes on this machine, and faults of its nodes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest

import supermax
from supermax.engine.events import Event, FaultSeen, Notice, TrialReported
from supermax.engine.processes.ray_cluster import connect_cluster
from supermax.search.cluster import Cluster, read_cluster
from tests import ROOT
from tests.conftest import eventually
from tests.engine.executors import EXECUTOR, cluster
from tests.engine.programs import short_trial, value_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("quick"),
    pytest.mark.skipif(EXECUTOR == "ray", reason="it has a cluster of its own"),
]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    with cluster(nodes=2) as found:
        yield found


def kill_machine(node: Any) -> None:
    """Kill all processes of a node at once, as a power cut does."""
    found = [each.process.pid for kind in node.all_processes.values() for each in kind]
    victims = [psutil.Process(pid) for pid in found]
    victims += [child for victim in victims for child in victim.children(recursive=True)]
    for victim in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()


def test_trials_of_a_killed_node_finish_elsewhere(
    nodes: Any, study: optuna.Study, tmp_path: Path
) -> None:
    extra = nodes.add_node(num_cpus=1)
    seen: list[Event] = []
    removed: list[Any] = []

    def watch(event: Event) -> None:
        seen.append(event)
        reported = {e.number for e in seen if isinstance(e, TrialReported)}
        if len(reported) == 3 and not removed:
            removed.append(extra)
            kill_machine(extra)

    def objective(trial: Any) -> float:
        saved = trial.checkpoint_dir / "step"
        first = int(saved.read_text()) if saved.exists() else 0
        for step in range(first, 4):
            saved.write_text(str(step + 1))
            trial.report(float(step), step)
            (tmp_path / f"started-{trial.number}").touch()
            while len(list(tmp_path.glob("started-*"))) < 3:  # one on each node
                time.sleep(0.05)
            time.sleep(1.0)
        return float(first)

    summary = supermax.optimize(
        study, objective, 3, workers=3, executor="ray", progress=watch, run_dir=tmp_path / "run"
    )
    assert summary.finished == 3
    assert {trial.state.name for trial in study.trials} == {"COMPLETE"}
    faults = [event for event in seen if isinstance(event, FaultSeen)]
    assert [fault.kind for fault in faults] == ["node lost"]
    assert [t.value > 0 for t in study.trials].count(True) == 1  # from its checkpoint
    assert any("was lost" in event.text for event in seen if isinstance(event, Notice))


def demand_of(nodes: Any) -> list[dict[str, float]]:
    """Return the resources that the cluster lacks, as Ray's autoscaler reads them."""
    from ray.autoscaler.v2.sdk import get_cluster_status

    found = get_cluster_status(nodes.address).resource_demands.ray_task_actor_demand
    return [dict(bundle.bundle) for demand in found for bundle in demand.bundles_by_count]


def test_a_run_waits_for_room_and_uses_a_node_that_comes_later(
    nodes: Any, study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supermax.engine.processes.hosts._NOTICE_AFTER", 1.0)
    late: list[Any] = []
    demands: list[dict[str, float]] = []

    def watch(event: Event) -> None:
        if isinstance(event, Notice) and "Waiting for the Ray cluster" in event.text and not late:
            assert eventually(lambda: demands.extend(demand_of(nodes)) or bool(demands))
            late.append(nodes.add_node(num_cpus=4))

    executor = supermax.RayExecutor(num_cpus=4)
    supermax.optimize(study, short_trial, 2, executor=executor, progress=watch)
    assert [trial.value for trial in study.trials] == [value_of(**t.params) for t in study.trials]
    assert {demand["CPU"] for demand in demands} == {4}
    nodes.remove_node(late[0])


def test_a_worker_that_ray_kills_for_memory(nodes: Any, study: optuna.Study) -> None:
    """Its trial is retried as one that ran out of memory, and that counts."""
    memory = psutil.virtual_memory()
    limit = 1 - (memory.available - (1 << 30)) / memory.total
    monitor = {"memory_usage_threshold": limit, "memory_monitor_refresh_ms": 100}
    machine = nodes.add_node(num_cpus=8, env_vars={f"RAY_{k}": str(v) for k, v in monitor.items()})
    seen: list[Event] = []

    def objective(trial: Any) -> float:
        if trial.attempt == 1:
            held = b"x" * (3 << 30)
            time.sleep(60)
            assert held
        return 1.0

    executor = supermax.RayExecutor(num_cpus=8)
    supermax.optimize(study, objective, 1, executor=executor, retries=3, progress=seen.append)
    assert [trial.value for trial in study.trials] == [1.0]
    faults = {event.kind for event in seen if isinstance(event, FaultSeen)}
    assert faults == {"host out of memory"}
    assert any("out of memory" in event.text for event in seen if isinstance(event, Notice))
    nodes.remove_node(machine)


def test_ray_assigns_gpus(nodes: Any, study: optuna.Study) -> None:
    machine = nodes.add_node(num_cpus=2, num_gpus=2)

    def objective(trial: Any) -> float:
        trial.set_user_attr("gpus", os.environ["CUDA_VISIBLE_DEVICES"])
        time.sleep(0.5)
        return 0.0

    executor = supermax.RayExecutor(num_gpus=1)
    supermax.optimize(study, objective, 6, workers=2, executor=executor, progress=False)
    assert {trial.user_attrs["gpus"] for trial in study.trials} == {"0", "1"}
    found = read_cluster(None)
    assert (found.gpus, found.trials_per_gpu) == (2, 1)
    nodes.remove_node(machine)


LOST = """
import os, sys, time, optuna, psutil, ray, supermax
from ray.cluster_utils import Cluster
from supermax.engine.events import TrialReported
from supermax.engine.processes import ray_cluster

def objective(trial):
    for step in range(1000):
        time.sleep(0.1)
        trial.report(0.0, step)

def watch(event):
    if isinstance(event, TrialReported):
        for found in cluster.head_node.all_processes.get(sys.argv[1], []):
            found.process.kill()

ray_cluster._ANSWER_TIMEOUT = 5.0
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
try:
    supermax.optimize(optuna.create_study(), objective, 1, executor="ray", progress=watch)
except supermax.EnvironmentFault as error:
    print(error)
for found in psutil.Process().children(recursive=True):
    found.kill()
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize(
    ("process", "why"),
    [
        ("raylet", "the Ray node of this machine has died"),
        ("gcs_server", "its head has not answered for 5 s"),
    ],
)
def test_a_cluster_that_is_lost_ends_the_run_with_one_sentence(process: str, why: str) -> None:
    """Not with the end of the program: Ray ends it some time later."""
    done = subprocess.run(
        [sys.executable, "-c", LOST, process],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert f"The Ray cluster is lost: {why}. Start it again" in done.stdout, done.stderr


def test_workers_are_spread_over_the_gpus_of_a_cluster() -> None:
    found = Cluster("auto", gpus=4, cpus=64, trials_per_gpu=8, gpu_name="H200", memory=1 << 30)
    assert found.workers() == 32
    assert found.executor(32).trials == 8
    assert found.executor(6).trials == 2
    assert Cluster("auto", gpus=0, cpus=12).workers() == 12


@pytest.mark.parametrize("address", ["far", "a\nb:6379", "far:port", "", "http://far:8265"])
def test_an_address_that_is_none_is_wrong_input(address: str) -> None:
    with pytest.raises(supermax.UserError, match=r"of Ray is not HOST:PORT") as caught:
        connect_cluster(address)
    assert "\n" not in str(caught.value)


def test_no_cluster_and_no_ray_are_said_in_one_sentence(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    ray.shutdown()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(supermax.EnvironmentFault, match="No Ray cluster can be reached"):
        supermax.optimize(study, short_trial, 1, executor="ray")
    executor = supermax.RayExecutor(address="ray://far:10001")
    with pytest.raises(supermax.UserError, match="an address of Ray Client"):
        supermax.optimize(study, short_trial, 1, executor=executor)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(supermax.UserError, match=r"pip install 'supermax\[ray\]'"):
        supermax.optimize(study, short_trial, 1, executor="ray")
