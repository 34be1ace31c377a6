"""Races at the end of a search, in real cells: run, killed, continued, read back."""

from __future__ import annotations

import contextlib
import json
import math
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import get_storage
from optuna.trial import create_trial

from supermax._util.attributes import (
    RACE,
    REPLICATE,
    SCHEDULE,
    STATE,
    WEIGHTS,
    plain_params,
    race_name,
)
from supermax.engine.summary import Summary
from supermax.errors import UserError
from supermax.results.race import RaceRecord, read_race
from supermax.results.records import read_record
from supermax.search import race
from supermax.search.race import Race, fresh_seeds, race_size, schedule_of, scores_of
from supermax.search.race_rules import RaceRules
from supermax.studies import all_studies
from supermax.tasks.objective import AgentObjective
from supermax.tasks.replicates import ReplicateObjective
from supermax.training.data.splits import cross_validation, split
from supermax.training.loop import train
from supermax.training.prepare import prepare
from tests.conftest import eventually
from tests.search.searches import LIMITS, search_in, small
from tests.training.corpora import Quiet, corpus

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a race end after two seeds."""
    monkeypatch.setattr(race, "MOST_SEEDS", 2)
    monkeypatch.setattr(race, "FEWEST_SEEDS", 2)
    monkeypatch.setattr(race, "RaceRules", lambda seeds: RaceRules(seeds, fewest=2))


@dataclass
class Runner:
    """Run of a race's study in this process, with scores by trial of the search and seed."""

    score: Callable[[int, int], float]
    most: int = 1000
    """Trainings after which the run is stopped."""
    trained: list[tuple[int, int]] = field(default_factory=list)

    def __call__(self, study: optuna.Study, objective: ReplicateObjective, n: int) -> Summary:
        while sum(trial.state.is_finished() for trial in study.trials) < n:
            if len(self.trained) >= self.most:
                return Summary(stopped_by="interrupt")
            trial = study.ask()
            try:
                config = objective.sampled(trial)
            except optuna.TrialPruned:
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                continue
            number, seed = objective._scheduled(trial)
            assert config.train.seed == (seed + 2 if objective.folds else seed)
            self.trained.append((number, seed))
            trial.set_user_attr(REPLICATE, [number, seed])
            value = self.score(number, seed)
            failed = math.isnan(value)
            study.tell(trial, None if failed else value,
                       state=optuna.trial.TrialState.FAIL if failed else None)  # fmt: skip
        return Summary()


def searched(values: Sequence[float], direction: str = "maximize") -> optuna.Study:
    """Return a study whose trials have these values; the first has the default configuration."""
    study = optuna.create_study(direction=direction, study_name="criteria")
    space = small()
    for number, value in enumerate(values):
        params = {**(space.defaults() or {}), "optim.lr": 0.001 * (number + 1)}
        study.enqueue_trial(params)
        trial = study.ask()
        space.sample(trial)
        study.tell(trial, value)
    return study


def raced(
    study: optuna.Study,
    run: Runner,
    size: int = 3,
    said: list[str] | None = None,
    folds: int | None = None,
) -> tuple[RaceRecord | None, str | None]:
    splits, space = split(corpus(40)), small()
    objective = AgentObjective("criteria", space, splits.train, splits.validation, Path("cache"),
                               ["macro_f1"], LIMITS)  # fmt: skip
    first = plain_params(study.trials[0])
    tell = (said if said is not None else []).append
    return Race(study, objective, size, first, run, tell, splits, folds).finish()


def test_the_best_mean_over_fresh_seeds_wins() -> None:
    """It need not be the best of the search, whose value was selected."""
    study, said = searched([0.5, 0.9, 0.8, 0.7, 0.6]), []
    means = {1: 0.70, 2: 0.78, 3: 0.30}
    run = Runner(lambda number, seed: means[number] + 0.01 * ((seed * 7 + number * 3) % 3 - 1))
    found, stopped = raced(study, run, said=said)
    assert found is not None
    assert stopped is None
    assert found.winner == 2
    assert [c.trial for c in found.contestants] == [1, 2, 3]
    assert [c.stopped for c in found.contestants][1:] == [False, True]
    assert run.trained.count((3, 4)) == 1
    assert (3, 5) not in run.trained
    assert all(seed > 1 for _, seed in run.trained)
    assert said == ["Racing the best 3 of 5 configurations over 3 to 5 fresh seeds."]
    assert found.default == (0, 0.5)
    assert read_race(study.user_attrs[RACE]) == found
    assert [trial.number for trial in study.trials] == [0, 1, 2, 3, 4]
    assert [each.study_name for each in all_studies(study._storage)] == ["criteria"]
    record = read_record(study)
    assert record.best().number == 2
    assert [trial.number for trial in record.best_first()] == [2, 1, 3, 4, 0]


def test_the_best_mean_over_folds_wins() -> None:
    study, said = searched([0.5, 0.9, 0.8, 0.7, 0.6]), []
    means = {1: 0.70, 2: 0.78, 3: 0.30}
    run = Runner(lambda number, fold: means[number] + 0.05 * fold + 0.02 * ((fold * number) % 3))
    found, _ = raced(study, run, said=said, folds=4)
    assert found is not None
    assert said == ["Racing the best 3 of 5 configurations over 3 to 4 folds."]
    assert found.winner == 2
    assert sorted(run.trained) == [(number, fold) for number in (1, 2, 3) for fold in range(3)]
    assert found.best is not None
    assert found.best.mean_text.endswith("over 3 folds")
    assert read_race(study.user_attrs[RACE]) == found
    assert found.selection(maximize=True).startswith("Trial 2 is no worse over folds than")
    lower = replace(found.best, mean=0.7)
    assert replace(found, contestants=(lower,)).selection(maximize=True) == (
        "Trial 2 is worse over folds than in the search by 0.100: selection on noise, and other "
        "rows."
    )
    over_seeds, _ = raced(study, Runner(lambda number, _: means[number] + 0.1))
    assert over_seeds is not None  # a race of its own: it trains anew
    assert over_seeds.best is not None
    assert over_seeds.best.mean == pytest.approx(0.88)
    assert [each.study_name for each in all_studies(study._storage)] == ["criteria"]
    assert len(all_studies(study._storage, races=True)) == 3


def test_folds_without_a_race_are_refused() -> None:
    assert race_size("auto", "demo", 3, folds=5) == 3
    with pytest.raises(UserError, match="The race, which folds are for, is turned off"):
        race_size(False, "max", 100, folds=5)


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded")
def test_trainings_of_folds_are_those_of_the_plain_objective(tmp_path: Path) -> None:
    """The same configuration, seed and examples, trained by `train` alone."""
    search = search_in(tmp_path, trials=2, race=2, folds=2)
    tuned = search.run(workers=2, progress=False)
    found = tuned.race
    assert found is not None
    assert (found.unit, found.seeds) == ("fold", (0, 1))
    folds = cross_validation(search.all_splits, 2)
    for each in found.contestants:
        config = tuned.config(each.trial)
        for fold, score in enumerate(each.scores):
            settings = config.train.model_copy(update={"seed": fold + 2})
            parts = config.model_copy(update={"train": settings})
            prepared = prepare(parts, *folds[fold], cache=tmp_path / "cache")
            assert train(prepared, Quiet()).value == pytest.approx(score, abs=1e-6)


def test_each_further_round_of_a_race_is_announced() -> None:
    """Configurations 1 and 2 are too close to be told apart; 0 is stopped."""
    study, said = searched([0.5, 0.9, 0.8]), []
    means = {0: 0.1, 1: 0.80, 2: 0.81}
    run = Runner(lambda number, seed: means[number] + 0.02 * (seed * number % 3))
    raced(study, run, said=said)
    assert said[1:] == [
        "2 of 3 configurations race on, since no mean is clearly the best: seed 4 of up to 5.",
        "2 of 3 configurations race on, since no mean is clearly the best: seed 5 of up to 5.",
    ]


def test_a_race_continues_where_it_was_stopped() -> None:
    study, said = searched([0.5, 0.9, 0.8]), []

    def score(number: int, seed: int) -> float:
        return 0.5 + 0.1 * number + 0.03 * (seed % 3)

    first = Runner(score, most=4)
    assert raced(study, first) == (None, "interrupt")
    assert RACE not in study.user_attrs
    assert read_record(study).best().number == 1
    second = Runner(score)
    found, _ = raced(study, second)
    assert not set(first.trained) & set(second.trained)
    assert len(first.trained) == 4
    third = Runner(score)
    assert raced(study, third, said=said) == (found, None)
    assert (third.trained, said) == ([], [])


def test_more_trials_make_a_race_stale_until_it_is_refreshed() -> None:
    study = searched([0.5, 0.9, 0.8])

    def score(number: int, seed: int) -> float:
        return 0.5 + 0.1 * number + 0.03 * (seed % 3)

    first = Runner(score)
    raced(study, first)
    assert read_record(study).best().number == 2
    study.add_trial(create_trial(value=0.1))  # none of the best
    assert read_record(study).race is not None
    study.add_trial(study.trials[1])
    assert read_record(study).race is None
    assert read_record(study).best().number == 1
    second = Runner(score)
    found, _ = raced(study, second)
    assert found is not None
    assert {number for number, _ in second.trained} == {4}
    assert read_record(study).best().number == found.winner == 4


def test_a_configuration_that_fails_with_a_seed_does_not_win() -> None:
    run = Runner(lambda number, seed: math.nan if (number, seed) == (1, 3) else 0.5)
    found, _ = raced(study := searched([0.5, 0.9, 0.8]), run)
    assert found is not None
    assert found.winner == 2
    assert found.of(1) is not None
    assert found.of(1).mean_text == "1 of 3 trainings failed"  # type: ignore[union-attr]
    assert read_race(study.user_attrs[RACE]) == found


def test_one_configuration_does_not_race() -> None:
    run = Runner(lambda *_: 0.5)
    assert raced(searched([0.5]), run) == (None, None)
    assert run.trained == []


def test_a_training_that_another_run_never_finishes_is_scheduled_again() -> None:
    study = searched([0.5, 0.9])

    def score(number: int, seed: int) -> float:
        return 0.5 + 0.1 * number + 0.03 * (seed % 3)

    raced(study, Runner(score, most=0), size=2)
    lost = optuna.load_study(study_name="criteria@race", storage=study._storage)
    lost.ask()  # by a machine that does not come back
    run = Runner(score)
    found, _ = raced(study, run, size=2)
    assert found is not None
    assert found.winner == 1
    assert run.trained[-1] == (1, 2)
    assert len(run.trained) == len(set(run.trained))
    assert None in schedule_of(lost)


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded")
def test_the_winner_of_a_search_is_the_best_mean_over_fresh_seeds(
    tmp_path: Path, short: None
) -> None:
    said: list[str] = []
    notify = f"cat >> {shlex.quote(str(tmp_path / 'events'))}; echo >> {tmp_path / 'events'}"
    search = search_in(tmp_path, trials=2, race=2, busy=said.append, notify=[notify])
    tuned = search.run(workers=2, progress=False)
    assert len(tuned.study.trials) == 2
    events = list(map(json.loads, (tmp_path / "events").read_text().split("\n")[:-1]))
    ended = [event for event in events if event["event"] == "ended"]
    assert [event["study"] for event in events] == ["criteria"] * len(events)
    assert [event["trials"] for event in ended] == [{"COMPLETE": 2}]
    assert ended[0]["race"]["winner"] == tuned.winner()["trial"]
    assert [line for line in said if "Racing" in line] == [
        "Racing the best 2 of 2 configurations over 2 fresh seeds."
    ]
    found = tuned.race
    assert found is not None
    assert found.seeds == (2, 3)
    replicates = optuna.load_study(
        study_name=race_name(tuned.study.study_name), storage=tuned.study._storage
    )
    scores = {tuple(t.user_attrs[REPLICATE]): t.value for t in replicates.trials}
    assert sorted(scores) == [(0, 2), (0, 3), (1, 2), (1, 3)]
    means = {n: (scores[n, 2] + scores[n, 3]) / 2 for n in (0, 1)}
    assert {c.trial: c.mean for c in found.contestants} == pytest.approx(means)
    assert found.winner == max(means, key=lambda n: means[n])
    assert tuned.winner()["trial"] == found.winner
    assert tuned.winner()["race"] == found.best
    folder = tuned.summary.run_dir.with_name(race_name(tuned.summary.run_dir.name))
    assert not list(folder.rglob(WEIGHTS)) + list(folder.rglob(STATE))
    record = read_record(tuned.study)
    assert read_race(tuned.study.user_attrs[RACE]) == found
    assert record.best().number == found.winner
    assert [s.study_name for s in all_studies(get_storage(tuned.study._storage))] == ["criteria"]
    assert len(all_studies(get_storage(tuned.study._storage), races=True)) == 2
    again = search.run(progress=False)  # nothing is left to train
    assert again.race == found
    assert len(replicates.trials) == 4


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded")
def test_a_race_that_was_stopped_is_continued(tmp_path: Path, short: None) -> None:
    search = search_in(tmp_path, trials=2, race=2)

    def stop(study: optuna.Study, trial: Any) -> None:
        if study.study_name.endswith("@race"):
            study.stop()

    paused = search.run(progress=False, callbacks=[stop])
    assert paused.summary.stopped_by == "study.stop()"
    assert paused.race is None
    assert RACE not in paused.study.user_attrs
    assert paused.winner()["trial"] == paused.best(1)[0]["trial"]
    done = search.run(progress=False)
    assert done.summary.stopped_by is None
    assert done.race is not None
    trials = optuna.load_study(study_name="criteria@race", storage=done.study._storage).trials
    pairs = [tuple(trial.user_attrs[REPLICATE]) for trial in trials]
    assert len(pairs) == len(set(pairs)) == 4


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded")
def test_more_trials_refresh_the_race(tmp_path: Path, short: None) -> None:
    first = search_in(tmp_path, trials=2, race=2).run(progress=False)
    more = search_in(tmp_path, trials=5, race=3).run(progress=False)
    assert first.race is not None
    assert more.race is not None
    assert len(more.race.contestants) == 3
    trials = optuna.load_study(study_name="criteria@race", storage=more.study._storage).trials
    pairs = [tuple(trial.user_attrs[REPLICATE]) for trial in trials]
    assert len(pairs) == len(set(pairs))  # trainings of the first race are used again
    best = [row["trial"] for row in more.best(3)]
    assert {c.trial for c in more.race.contestants} == set(best)


@pytest.mark.parametrize(
    ("wanted", "preset", "trials", "size"),
    [
        ("auto", "demo", 600, 0),
        ("auto", "standard", 9, 0),
        ("auto", "standard", 30, 3),
        ("auto", "max", 75, 5),
        ("auto", "supermax", 5000, 8),
        (True, "demo", 2, 3),
        (False, "max", 800, 0),
        (4, "demo", 2, 4),
        (0, "max", 800, 0),
    ],
)
def test_the_size_of_a_race(wanted: Any, preset: str, trials: int, size: int) -> None:
    assert race_size(wanted, preset, trials) == size


def test_seeds_of_the_search_are_not_fresh() -> None:
    old = create_trial(
        value=1.0,
        params={"train.seed": 3},
        distributions={"train.seed": optuna.distributions.IntDistribution(1, 9)},
    )
    assert fresh_seeds([old]) == (2, 4, 5, 6, 7)
    assert fresh_seeds([create_trial(value=1.0)]) == (2, 3, 4, 5, 6)


def test_scores_of_failed_trainings_and_of_trials_without_a_schedule() -> None:
    study = optuna.create_study(direction="maximize")
    study.set_user_attr(SCHEDULE, [[7, 2], [8, 2], None])
    study.add_trial(create_trial(value=0.5, user_attrs={REPLICATE: [8, 3]}))  # as it was trained
    study.add_trial(create_trial(state=optuna.trial.TrialState.FAIL))
    study.add_trial(create_trial(state=optuna.trial.TrialState.PRUNED))
    study.add_trial(create_trial(value=0.1, user_attrs={REPLICATE: [8, 3]}))  # a second time
    schedule = [*schedule_of(study), None]
    scores = scores_of(study.trials, schedule)
    assert scores[8, 3] == 0.5
    assert math.isnan(scores.pop((8, 2)))
    assert set(scores) == {(8, 3)}


@pytest.mark.slow
def test_a_race_that_was_killed_goes_on_with_the_same_command(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "supermax", "tune", "criteria", "--race", "2", "--trials", "2"),
        *("--epochs", "1", "--set", "data.posts=60", "--no-supervisor"),
        *("--set", f"outdir={tmp_path}", "--workers", "2"),
    ]
    where = f"sqlite:///{tmp_path / 'supermax.db'}"

    def replicates() -> list[optuna.trial.FrozenTrial]:
        with contextlib.suppress(Exception):  # not there yet
            return optuna.load_study(study_name="criteria@race", storage=where).trials
        return []

    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert eventually(lambda: any(trial.state.is_finished() for trial in replicates()), 120)
    first.kill()
    first.wait()
    ended = {trial.number: trial.value for trial in replicates() if trial.state.is_finished()}
    again = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    assert "Winner of the race: trial" in again.stdout
    assert " in the search, " in again.stdout
    trials = replicates()
    pairs = [tuple(trial.user_attrs[REPLICATE]) for trial in trials]
    assert len(pairs) == len(set(pairs)) >= 6
    assert {number: trials[number].value for number in ended} == ended
    study = optuna.load_study(study_name="criteria", storage=where)
    assert len(study.trials) == 2
