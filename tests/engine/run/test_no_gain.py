"""Runs that end by themselves: once no gain is expected, also after kill -9 and in other runs."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

import supermax
from supermax._util.attributes import NO_GAIN, RECORD
from supermax.engine import events, gain
from supermax.engine.gain import Gain, expected_gain
from supermax.engine.ranking import end_of
from supermax.engine.run.no_gain import tried_of
from tests import ROOT
from tests.conftest import eventually
from tests.engine.programs import nine_epochs
from tests.engine.sharing.shared_runs import created, opened
from tests.engine.storage.postgres import Proxy

pytestmark = pytest.mark.usefixtures("quick")
LEAST = 8


@pytest.fixture(autouse=True)
def few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gain, "FEWEST", LEAST)


def constant(trial: optuna.Trial) -> float:
    trial.suggest_float("x", 0, 1)
    return 0.7


def rising(trial: optuna.Trial) -> float:
    return float(trial.number)


def run(study: optuna.Study, objective: Any = constant, **options: Any) -> supermax.Summary:
    options = {"stop": "when_no_gain", "progress": False, "reuse_cells": True} | options
    return supermax.optimize(study, objective, options.pop("n_trials", 30), **options)


def test_run_ends_by_itself_and_stays_ended_until_it_runs_without_the_rule(
    study: optuna.Study,
) -> None:
    seen: list[events.Event] = []
    first = run(study, progress=seen.append)
    assert (first.stopped_by, first.complete) == ("no gain", True)
    assert LEAST <= first.finished <= LEAST + 1
    assert first.gain == Gain(LEAST, LEAST // 2, 0.0, 0.0, assumed=True)
    assert "Ended by itself, since no further gain is expected" in str(first)

    again = run(study, progress=seen.append)
    assert (again.told, again.stopped_by) == (0, "no gain")
    texts = [event.text for event in seen if isinstance(event, events.Notice)]
    assert "ends by itself, since no further gain is expected after 8 trials" in texts[0]
    assert "has ended by itself earlier" in texts[1]
    assert "stop=None" in texts[1]

    on = run(study, stop=None)  # as the notice advises
    assert (on.finished, on.stopped_by) == (30, None)
    assert run(study, n_trials=31, stop=None).told == 1
    assert study._storage.get_study_system_attrs(study._study_id)[NO_GAIN] is None


def test_search_that_improves_reaches_its_number_of_trials(study: optuna.Study) -> None:
    study = optuna.create_study(direction="maximize")
    summary = run(study, rising, n_trials=16)
    assert (summary.finished, summary.stopped_by) == (16, None)
    assert summary.gain is not None
    assert not summary.gain.over


def test_noise_may_be_a_function_of_the_best_trial(study: optuna.Study) -> None:
    asked: list[FrozenTrial] = []

    def noise(best: FrozenTrial) -> float:
        asked.append(best)
        return 1e6

    study = optuna.create_study(direction="maximize")
    summary = run(study, rising, stop=supermax.WhenNoGain(noise))
    assert summary.finished <= LEAST + 1
    assert [trial.number for trial in asked] == list(range(LEAST))  # once for each best one
    assert summary.gain is not None
    assert not summary.gain.assumed


def test_noise_that_is_no_number_is_refused_by_name() -> None:
    best = optuna.trial.create_trial(value=1.0)
    with pytest.raises(supermax.UserError, match="WhenNoGain must return a number or None"):
        supermax.WhenNoGain(lambda _: "0.1").noise_of(best)  # type: ignore[arg-type,return-value]


def test_paused_trials_end_with_the_run(study: optuna.Study) -> None:
    pruner = supermax.Promotion(max_reports=9, min_agreement=-1, run_through=0)
    rule = supermax.WhenNoGain(1e6)
    summary = run(study, nine_epochs, n_trials=60, stop=rule, pruner=pruner, workers=2)
    assert summary.stopped_by == "no gain"
    assert summary.trials["RUNNING"] == 0
    assert LEAST <= summary.finished < 60
    assert summary.trials["PRUNED"] > 0


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_trials_are_in_order_in_the_hour_that_the_clock_repeats() -> None:
    """A value of 0.9 comes in the first of two hours with the same local times."""
    summer = datetime(2026, 10, 25, 0, 0, tzinfo=UTC).timestamp()  # 2:00, and again after an hour
    finished = []
    for i in range(60):
        ended = summer + 120 * (i + 0.5)
        finished.append(
            optuna.trial.create_trial(
                value=0.9 if i == 20 else 0.5, user_attrs={RECORD: {"ended": ended}}
            )
        )
        finished[-1].number = i
        stored = datetime.fromtimestamp(ended).isoformat()  # without which of the two hours it is
        finished[-1].datetime_complete = datetime.fromisoformat(stored)
    assert len({trial.datetime_complete for trial in finished}) == 30
    ends = [each.ended for each in tried_of(finished, StudyDirection.MAXIMIZE)]
    assert ends == sorted(trial.user_attrs[RECORD]["ended"] for trial in finished)
    found = expected_gain(tried_of(finished, StudyDirection.MAXIMIZE), 0.01)
    assert found is not None
    assert found.expected == 0.0  # the last 30 have gained nothing


def test_ends_are_stored_and_read_where_they_are_valid(study: optuna.Study) -> None:
    before = time.time()
    run(study, n_trials=3, stop=None)
    ends = [end_of(trial) for trial in study.trials]
    assert ends == [trial.user_attrs[RECORD]["ended"] for trial in study.trials]
    assert before - 1 < min(end or 0 for end in ends) <= max(end or 0 for end in ends)
    assert max(end or 0 for end in ends) < time.time() + 1
    study.optimize(constant, n_trials=1)
    for other in ({}, {RECORD: {"ended": "late"}}, {RECORD: {"ended": math.nan}}, {RECORD: 3}):
        trial = study.trials[3]
        trial.user_attrs = other
        assert trial.datetime_complete is not None
        assert end_of(trial) == trial.datetime_complete.timestamp()
    trial.datetime_complete = None
    assert end_of(trial) is None


def test_rule_that_cannot_be_followed_is_refused(study: optuna.Study) -> None:
    two = optuna.create_study(directions=["minimize", "maximize"])
    with pytest.raises(supermax.UserError, match="only with one objective") as caught:
        run(two, lambda _: (1.0, 2.0))
    assert "stop=None" in str(caught.value)
    assert run(two, lambda _: (1.0, 2.0), stop=None, n_trials=1).finished == 1  # as it advises
    for wrong in ("soon", True, supermax.WhenNoGain(-1.0)):
        with pytest.raises(supermax.UserError, match="stop must be 'when_no_gain'"):
            run(study, stop=wrong)
    assert not study.trials


KILLED = """
import os, signal, sys, optuna, supermax
from supermax.engine import events, gain

gain.FEWEST = 8

def objective(trial):
    (trial.checkpoint_dir / "began").touch()
    trial.suggest_float("x", 0, 1)
    while trial.number >= 8 and not os.path.exists(sys.argv[2]):
        trial.report(1.0, trial.attempt)
    return 0.7

def listen(event):
    print(event, flush=True)
    if isinstance(event, events.GainEstimated) and event.gain.over and len(sys.argv) > 3:
        os.kill(os.getpid(), signal.SIGKILL)

study = optuna.create_study(storage=sys.argv[1], study_name="test", load_if_exists=True)
summary = supermax.optimize(
    study, objective, 30, workers=2, stop="when_no_gain", progress=listen, reuse_cells=True
)
print("FINISHED", summary.finished, summary.told, summary.stopped_by)
"""


def test_decision_survives_kill_9(url: str, tmp_path: Path) -> None:
    """A trial that was running is finished, and no new one starts."""
    go = tmp_path / "go"
    command = [sys.executable, "-c", KILLED, url, str(go)]
    killed = subprocess.run([*command, "kill"], cwd=ROOT, capture_output=True, timeout=60)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    storage = optuna.storages.RDBStorage(url)
    (study,) = storage.get_all_studies()
    states = [trial.state for trial in storage.get_all_trials(study._study_id)]
    assert states.count(TrialState.COMPLETE) == LEAST
    left = states.count(TrialState.RUNNING)  # 0 if the decision came before another one began
    go.touch()
    again = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, text=True)
    assert f"FINISHED {LEAST + left} {left} no gain" in again.stdout, again.stderr
    assert "has ended by itself earlier" in again.stdout
    assert len(storage.get_all_trials(study._study_id)) == LEAST + left
    storage.engine.dispose()


SHARED = """
import sys, time, optuna, supermax
from supermax.engine import gain
from supermax.engine.run import progress

progress._RECOUNT = 0.2
gain.FEWEST = 8 if sys.argv[3] == "decides" else 1000

def objective(trial):
    time.sleep(0.05)
    trial.suggest_float("x", 0, 1)
    return 0.7

study = optuna.load_study(storage=sys.argv[1], study_name="shared")
summary = supermax.optimize(
    study, objective, 400, stop="when_no_gain", run_dir=sys.argv[2],
    progress=lambda event: print(event, flush=True), reuse_cells=True,
)
print("FINISHED", summary.stopped_by)
"""


@pytest.mark.slow
def test_all_runs_on_a_shared_study_end(proxy: Proxy, tmp_path: Path) -> None:
    """Also one that would not have decided so itself."""
    with created(proxy):
        pass
    outputs = []
    runs = []
    for name in ("follows", "decides"):
        folder = tmp_path / name
        folder.mkdir()
        outputs.append(folder / "output")
        command = [sys.executable, "-c", SHARED, proxy.url, str(folder / "run"), name]
        with outputs[-1].open("w") as output:
            runs.append(
                subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, env=os.environ)
            )
        if name == "follows":
            assert eventually(lambda: "TrialStarted" in outputs[0].read_text(), within=30)
    try:
        for one, path in zip(runs, outputs, strict=True):
            assert one.wait(40) == 0, path.read_text()
    finally:
        for one in runs:
            one.kill()
    assert "as another run has decided" in outputs[0].read_text()
    assert all("FINISHED no gain" in path.read_text() for path in outputs)
    with opened(proxy) as storage:
        trials = storage.get_all_trials(storage.get_study_id_from_name("shared"))
    assert {trial.state for trial in trials} == {TrialState.COMPLETE}
    assert len(trials) < 400
