"""Weights of the best trials are kept within a budget; everything else is removed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from optuna.trial import create_trial

import supermax
from supermax._util.attributes import HALF_WRITTEN, STATE, WEIGHTS
from supermax.engine.ranking import ranked
from supermax.engine.run.options import RunOptions
from supermax.engine.run.session import Summary
from supermax.engine.storage.locations import find_location
from supermax.results.records import read_record
from supermax.search.cleanup import leftovers
from supermax.tasks import weight_retention
from supermax.tasks.objective import AgentObjective
from supermax.tasks.weight_retention import BAR, WeightRetention, worth_keeping
from supermax.training.steps.execution import Execution
from tests.search.searches import search_in, small
from tests.training.corpora import corpus

pytestmark = pytest.mark.usefixtures("quick")


def study_of(values: list[float]) -> optuna.Study:
    study = optuna.create_study(direction="maximize")
    for value in values:
        study.add_trial(create_trial(value=value))
    return study


def test_weights_are_kept_for_the_best_within_a_budget(tmp_path: Path) -> None:
    study = study_of([0.1, 0.9, 0.5, 0.8])
    for number in range(5):  # the fifth was pruned, or is of nobody
        folder = tmp_path / "trials" / f"{number:05}"
        (folder / "checkpoint").mkdir(parents=True)
        (folder / "checkpoint" / STATE).write_text("x")
        (folder / WEIGHTS).write_bytes(b"x" * 100)
    WeightRetention(tmp_path, top=3)(study, study.trials[0])
    kept = sorted(int(p.parent.name) for p in tmp_path.rglob(WEIGHTS))
    assert kept == [1, 2, 3]
    assert not (tmp_path / "trials" / "00000" / "checkpoint" / STATE).exists()
    WeightRetention(tmp_path, top=3, budget=250)(study, study.trials[0])
    assert sorted(int(p.parent.name) for p in tmp_path.rglob(WEIGHTS)) == [1, 3]
    number = study.ask().number  # it runs, and has just written its own
    running = tmp_path / "trials" / f"{number:05}"
    running.mkdir(exist_ok=True)
    (running / WEIGHTS).write_bytes(b"x")
    WeightRetention(tmp_path, top=1)(study, study.trials[0])
    assert sorted(int(p.parent.name) for p in tmp_path.rglob(WEIGHTS)) == [1, number]


def test_runs_of_a_shared_study_together_keep_the_best(tmp_path: Path) -> None:
    """Each has a folder of its own, and keeps those of the study's best trials that it trained.
    It removes others after its next trial."""
    study, folders = study_of([]), [tmp_path / "a", tmp_path / "b"]
    runs = [WeightRetention(folder, top=2) for folder in folders]

    def train(run: int, value: float) -> None:
        number = len(study.trials)
        folder = folders[run] / "trials" / f"{number:05}"
        folder.mkdir(parents=True)
        if worth_keeping(folder.parent, 2, value, number):
            (folder / WEIGHTS).write_bytes(b"x")
        study.add_trial(create_trial(value=value))
        runs[run](study, study.trials[number])

    def kept(folder: Path) -> list[int]:
        return sorted(int(path.parent.name) for path in folder.rglob(WEIGHTS))

    for run, value in enumerate((0.5, 0.6)):  # trials 0 and 1
        train(run, value)
    assert [kept(folder) for folder in folders] == [[0], [1]]
    train(0, 0.7)  # 0 is no longer among the best two
    assert [kept(folder) for folder in folders] == [[2], [1]]
    train(0, 0.8)  # nor is 1, which the other run has
    train(1, 0.9)
    assert kept(folders[1]) == [4]
    train(0, 0.1)
    assert kept(folders[0]) == [3]


def test_the_work_after_a_trial_does_not_grow_with_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, looks, sizes = study_of([i / 50 for i in range(50)]), [0], []
    glob = Path.glob

    def counted(self: Path, pattern: str) -> Any:
        looks[0] += 1
        return glob(self, pattern)

    def measured(trials: list[Any], directions: Any) -> Any:
        sizes.append(len(trials))
        return ranked(trials, directions)

    monkeypatch.setattr(Path, "glob", counted)
    monkeypatch.setattr(weight_retention, "ranked", measured)
    retention = WeightRetention(tmp_path, top=3)
    for _ in range(5):
        study.tell(study.ask(), 2.0)
        retention(study, study.trials[-1])
    assert looks == [1]
    assert sizes == [51, 4, 4, 4, 4]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), max_size=12),
    st.integers(1, 3),
    st.sampled_from(["maximize", "minimize"]),
)
@example([(1, 3, 0), (1, 0, 0)], 1, "maximize")  # equal, and the one that began first ends last
def test_what_is_never_written_would_not_have_stayed(
    tmp_path_factory: pytest.TempPathFactory,
    trials: list[tuple[int, int, int]],
    top: int,
    direction: str,
) -> None:
    """A trial: its value, others that start before it reads the bar, more before it ends."""
    folder = tmp_path_factory.mktemp("run")
    places = folder / "trials"
    places.mkdir()
    study, retention = optuna.create_study(direction=direction), WeightRetention(folder, top)
    moments = []
    for number, (value, look, end) in enumerate(trials):
        study.ask()
        looks, ends = number + look, number + look + end
        moments += [(looks, False, number, value), (ends, True, number, value)]
    for _, over, number, value in sorted(moments):
        if over:
            study.tell(number, value)
            retention(study, study.trials[number])
        elif worth_keeping(places, top, value, number):
            (places / f"{number:05}").mkdir()
            (places / f"{number:05}" / WEIGHTS).write_bytes(b"x")
    best = [trial.number for trial in ranked(study.trials, study.directions)[:top]]
    assert sorted(int(path.parent.name) for path in folder.rglob(WEIGHTS)) == sorted(best)


def test_weights_are_written_where_they_may_be_among_the_best(tmp_path: Path) -> None:
    places, study = tmp_path / "trials", study_of([0.1, 0.9, 0.5, 0.8])
    places.mkdir()
    retention = WeightRetention(tmp_path, top=2)
    retention(study, study.trials[0])
    looks = [worth_keeping(places, 2, value, 9) for value in (0.7, 0.8, 0.81, float("inf"))]
    assert looks == [False, False, True, True]
    assert worth_keeping(places, 2, 0.8, 0)  # the first of equals
    assert worth_keeping(places, 3, 0.01, 9)  # of another run, which keeps more
    written = (places / BAR).stat().st_mtime_ns
    retention(study, study.trials[0])
    assert (places / BAR).stat().st_mtime_ns == written  # nothing new to say
    (places / BAR).write_text("torn {")
    assert worth_keeping(places, 2, 0.01, 9)
    WeightRetention(tmp_path, top=0)(study, study.trials[0])
    several = optuna.create_study(directions=["maximize", "minimize"])
    several.add_trial(create_trial(values=[0.5, 1.0]))
    (places / BAR).unlink()
    WeightRetention(tmp_path, top=1)(several, several.trials[0])
    assert worth_keeping(places, 1, 0.01, 9)


def test_a_trial_that_cannot_be_kept_writes_no_weights(tmp_path: Path) -> None:
    objective = AgentObjective(
        "criteria", small(), corpus(24, 1), corpus(12, 2), tmp_path / "cache", ["macro_f1"],
        {"epochs": 1, "patience": None}, Execution(), top=1,
    )  # fmt: skip
    study = optuna.create_study(direction="maximize")
    study.add_trial(create_trial(value=2.0))
    (tmp_path / "trials").mkdir()
    WeightRetention(tmp_path, top=1)(study, study.trials[0])
    for _ in range(2):
        trial: Any = study.ask()
        trial.folder = tmp_path / "trials" / f"{trial.number:05}"
        trial.checkpoint_dir = trial.folder / "checkpoint"
        trial.checkpoint_dir.mkdir(parents=True)
        objective(trial)
        objective = replace(objective, top=None)  # each its own
    assert [path.parent.name for path in tmp_path.rglob(WEIGHTS)] == ["00002"]


def test_weights_are_kept_where_the_run_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def started(_study: object, _objective: object, options: RunOptions) -> Summary:
        seen.extend((options.callbacks[0].run_dir, options.run_dir))  # type: ignore[attr-defined]
        return Summary({}, {})

    monkeypatch.setattr("supermax.search.search.run_study", started)
    search_in(tmp_path, trials=1).run(run_dir=str(tmp_path / "elsewhere"))
    assert seen == [tmp_path / "elsewhere", str(tmp_path / "elsewhere")]


def test_what_an_attempt_did_not_write_to_its_end_goes(tmp_path: Path) -> None:
    study, torn = study_of([0.5]), tmp_path / "trials" / "00000" / HALF_WRITTEN
    torn.parent.mkdir(parents=True)
    torn.write_bytes(b"x")
    WeightRetention(tmp_path, top=1)(study, study.trials[0])
    assert not torn.exists()


def test_unfinished_and_unkept_weights_can_be_cleaned(tmp_path: Path) -> None:
    tuned = supermax.open_study(small(), storage=str(tmp_path / "s.db"), quiet=True)
    tuned.add_trial(create_trial(value=0.5))
    place = find_location(tuned).run_dir / "trials" / "00000"
    place.mkdir(parents=True)
    (place / HALF_WRITTEN).write_bytes(b"x")
    (found,) = leftovers([tuned], top=1, cache=None)
    assert found.path == place / HALF_WRITTEN


def kept_of(study: optuna.Study, folder: Path, top: int) -> list[int]:
    """Return the trials whose weights are kept, if all had some."""
    for trial in study.trials:
        place = folder / "trials" / f"{trial.number:05}"
        place.mkdir(parents=True)
        (place / WEIGHTS).write_bytes(b"x")
    WeightRetention(folder, top=top)(study, study.trials[0])
    return sorted(int(path.parent.name) for path in folder.rglob(WEIGHTS))


def test_of_several_objectives_the_weights_of_the_front_are_kept(tmp_path: Path) -> None:
    study = optuna.create_study(directions=["maximize", "minimize"])
    for values in ([0.9, 9.0], [0.8, 9.5], [0.85, 9.1], [0.5, 1.0], [0.7, 5.0]):
        study.add_trial(create_trial(values=values))
    record = read_record(study, tmp_path)
    assert [trial.number for trial in record.ranking()] == [0, 4, 3, 2, 1]
    assert [trial.number for trial in record.front()] == [0, 4, 3]
    assert {trial.number for trial in study.best_trials} == {0, 4, 3}
    assert kept_of(study, tmp_path, top=3) == [0, 3, 4]


def test_no_weights_of_a_trial_that_breaks_a_constraint_are_kept(tmp_path: Path) -> None:
    study = optuna.create_study(direction="maximize")
    for value, by in ((0.9, 1.0), (0.1, 0.0), (0.5, -1.0)):
        study.add_trial(create_trial(value=value, system_attrs={"constraints": [by]}))
    assert kept_of(study, tmp_path, top=2) == [1, 2]
    assert read_record(study, tmp_path).best().number == 2
