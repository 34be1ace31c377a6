"""A machine on which trials fail that succeed elsewhere is quarantined; a bug quarantines none."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

import supermax
from supermax.engine import events
from supermax.engine.processes import gpu_probe
from supermax.engine.processes.gpu_probe import Probe
from supermax.engine.sharing.shared_run import RunOfStudy
from supermax.engine.storage.lease_tables import read_owners, read_runs
from tests import ROOT
from tests.conftest import eventually
from tests.engine.sharing.shared_runs import (
    Run,
    check,
    created,
    execute,
    leases_are_renewed,
    opened,
    running,
    stored,
)
from tests.engine.storage.postgres import Proxy

CRASH = {"CRASH": "yes"}


def states_of_runs(proxy: Proxy) -> dict[str, str]:
    """Return run folder → state."""
    with opened(proxy) as storage:
        rows = read_runs(storage, storage.get_study_id_from_name("shared"))
    return {Path(row.run_dir).parent.name: RunOfStudy(row, ()).state for row in rows}


def no_lease_is_left(proxy: Proxy) -> bool:
    with opened(proxy) as storage:
        return read_owners(storage, storage.get_study_id_from_name("shared")) == {}


def status(proxy: Proxy, *more: str) -> str:
    command = [sys.executable, "-m", "supermax", "status", "shared", "--storage", proxy.url, *more]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


@pytest.mark.slow
def test_a_run_whose_trials_succeed_elsewhere_is_quarantined(proxy: Proxy, tmp_path: Path) -> None:
    good = Run(proxy, tmp_path / "good", 16, pace=0.2)
    bad = Run(proxy, tmp_path / "bad", 16, env=CRASH)
    with running(good, bad):
        assert bad.process.wait(60) != 0
        good.finish()
    check(proxy, 16)  # all complete: no trial was lost to the bad run
    assert len((tmp_path / "marks").read_text().splitlines()) == 16
    assert "is quarantined: trials " in bad.output
    assert "(signal SIGSEGV) and then succeeded in other runs" in bad.output
    assert states_of_runs(proxy) == {"good": "ended", "bad": "quarantined"}
    shown = status(proxy)
    assert "quarantined" in shown
    assert "failed here (signal SIGSEGV)" in shown
    (row,) = [r for r in json.loads(status(proxy, "--json"))["runs"] if "bad" in r["run_dir"]]
    assert row["state"] == "quarantined"
    assert "then succeeded in other runs" in row["note"]
    assert row["running"] == []


@pytest.mark.slow
def test_after_a_repair_the_same_command_continues(proxy: Proxy, tmp_path: Path) -> None:
    good = Run(proxy, tmp_path / "good", 24, pace=0.2)
    bad = Run(proxy, tmp_path / "bad", 24, env=CRASH)
    with running(good, bad):
        assert bad.process.wait(60) != 0
        bad.env = {}
        bad.start()
        good.finish()
        bad.finish()
    check(proxy, 24)
    assert states_of_runs(proxy) == {"good": "ended", "bad": "ended"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "count", "limit"),
    [(CRASH, 8, -math.inf), ({"LIMIT": "-4"}, 24, -4)],
    ids=["all trials", "some parameters"],
)
def test_failures_that_do_not_depend_on_the_run_quarantine_none(
    proxy: Proxy,
    tmp_path: Path,
    env: dict[str, str],
    count: int,
    limit: float,
) -> None:
    """Trials with x above `limit` fail in both runs."""
    runs = [Run(proxy, tmp_path / name, count, pace=0.02, env=env) for name in ("one", "other")]
    with running(*runs):
        for run in runs:
            run.finish(120)
    trials = stored(proxy)
    assert [trial.number for trial in trials] == list(range(count))
    for trial in trials:
        failed = trial.params.get("x", 0.0) > limit
        assert trial.state is (TrialState.FAIL if failed else TrialState.COMPLETE)
    assert no_lease_is_left(proxy)
    assert set(states_of_runs(proxy).values()) == {"ended"}
    assert any("is tried in this one" in run.output for run in runs)


@pytest.mark.slow
def test_a_bug_of_the_objective_halts_all_runs_soon(proxy: Proxy, tmp_path: Path) -> None:
    runs = [Run(proxy, tmp_path / name, 500, env={"LIMIT": "-20"}) for name in ("one", "other")]
    with running(*runs):
        for run in runs:
            assert run.process.wait(120) != 0
            assert "none has ever succeeded" in run.output
    assert len(stored(proxy)) < 40
    assert set(states_of_runs(proxy).values()) == {"ended"}


@pytest.mark.slow
def test_a_run_alone_offers_nothing(proxy: Proxy, tmp_path: Path) -> None:
    alone = Run(proxy, tmp_path / "alone", 4, env=CRASH)
    with running(alone):
        alone.finish()
    assert [t.state for t in stored(proxy)] == [TrialState.FAIL] * 4
    assert "offered" not in alone.output


@pytest.mark.slow
def test_offered_trials_are_taken_back_if_no_other_run_is_left(
    proxy: Proxy, tmp_path: Path
) -> None:
    busy = Run(proxy, tmp_path / "busy", 12, pace=60)
    bad = Run(proxy, tmp_path / "bad", 12, env=CRASH)
    with running(busy):
        assert eventually(lambda: len(stored(proxy)) == 2)
        with running(bad):
            assert eventually(
                lambda: bad.output.count("offered to the other runs") >= 3, within=30
            )
            assert bad.process.poll() is None
            busy.end()
            bad.finish(120)
    assert [t.state for t in stored(proxy)] == [TrialState.FAIL] * 12
    assert no_lease_is_left(proxy)
    assert states_of_runs(proxy) == {"bad": "ended", "busy": "lost"}


@pytest.mark.slow
def test_a_lost_gpu_is_shown_to_all_machines(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supermax._util.system.count_gpus", lambda: None)
    monkeypatch.setattr(gpu_probe, "probe_gpu", lambda device, tag: Probe((int(device) and 214,)))

    def objective(trial: Any) -> float:
        if os.environ["CUDA_VISIBLE_DEVICES"] == "1":
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
        return 0.0

    with created(proxy) as study:
        supermax.optimize(
            study, objective, 6, workers=2, devices=["0", "1"], run_dir=tmp_path, progress=False
        )
    with opened(proxy) as storage:
        (row,) = read_runs(storage, storage.get_study_id_from_name("shared"))
    note = "Out of service: GPU 1: it has an uncorrectable ECC error (code 214)"
    assert (row.state, row.note) == ("ended", note)
    assert note in status(proxy)


def test_a_trial_that_is_taken_over_during_a_probe_is_not_launched_again(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would run without a lease, beside its new owner."""
    monkeypatch.setattr("supermax._util.system.count_gpus", lambda: None)
    take = "UPDATE supermax_leases SET run = 'other', token = token + 1"

    over = threading.Event()
    probing = []

    def probe(*_: object) -> Probe:
        """Probe until the run has renewed its leases, or has ended, after another one has taken
        its trial."""
        probing.append(threading.current_thread())
        execute(proxy, take)
        leases_are_renewed(proxy, unless=over.is_set)
        return Probe((0,))

    def objective(trial: Any) -> float:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(gpu_probe, "probe_gpu", probe)
    launches, notices = [], []

    def listen(event: events.Event) -> None:
        launches.extend([event] if isinstance(event, events.TrialStarted) else [])
        notices.extend([event.text] if isinstance(event, events.Notice) else [])
        if notices or len(launches) > 1:
            with opened(proxy) as storage:  # its new owner finishes it
                (trial,) = storage.get_all_trials(storage.get_study_id_from_name("shared"))
                if trial.state is TrialState.RUNNING:
                    storage.set_trial_state_values(trial._trial_id, TrialState.COMPLETE, [1.0])

    with created(proxy) as study:
        supermax.optimize(
            study, objective, 1, devices=["0"], lease=1.0, run_dir=tmp_path, progress=listen
        )
    over.set()
    for thread in probing:  # its connections would outlive the test
        thread.join()
    assert len(launches) == 1
    assert len(notices) == 1
    assert "taken over by another run" in notices[0]
