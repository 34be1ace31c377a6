"""The outcome of a race as commands and reports show it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from typer.testing import CliRunner

from supermax._util.attributes import BASELINES, EXPERIMENT, RACE, race_name
from supermax.errors import UserError
from supermax.results.race import Contestant, RaceRecord, Unit, read_race
from supermax.results.records import read_record
from supermax.results.report.overview import overview
from supermax.results.report.page import page
from supermax.search.settings import Settings
from supermax.space import load
from supermax.studies import open_study
from supermax.ui.cli import app
from supermax.ui.display.state import REACHED, RunState
from supermax.ui.display.status import status_json

FIRST = Contestant(4, 0.791, (0.70, 0.71, 0.72), 0.71, 0.0151, True)
WINNER = Contestant(2, 0.783, (0.75, 0.74, 0.76, 0.75, 0.755), 0.751, 0.0123, False)
FAILED = Contestant(3, 0.77, (0.7, None, 0.7), None, None, True)
OUTCOME = RaceRecord((2, 3, 4, 5, 6), (FIRST, WINNER, FAILED), 2, (0, 0.70))


@pytest.fixture
def storage(tmp_path: Path) -> str:
    """Return a storage with a study whose race has ended."""
    where = str(tmp_path / "s.db")
    backend = optuna.storages.get_storage(f"sqlite:///{where}")
    study = optuna.create_study(storage=backend, study_name="notes", direction="maximize")
    for value in (0.70, 0.60, 0.783, 0.77, 0.791):
        trial = study.ask()
        study.tell(trial, value + 0 * trial.suggest_float("x", 0, 1))
    study.set_user_attr(RACE, OUTCOME.data())
    optuna.create_study(storage=backend, study_name=race_name("notes"), direction="maximize")
    return where


def output(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_both_numbers_of_the_winner_are_shown() -> None:
    assert str(WINNER) == "0.783 in the search, 0.751 ± 0.012 over 5 seeds"
    assert FAILED.mean_text == "1 of 3 trainings failed"
    assert str(replace(WINNER, half_width=None)).endswith("0.7510 over 5 seeds")
    assert str(replace(WINNER, half_width=0.0)) == (
        "0.7830 in the search, 0.7510 ± 0.0000 over 5 seeds"
    )


def test_show_has_both_numbers_of_a_configuration_that_raced(storage: str) -> None:
    for trial, line in (
        (2, f"Race: {WINNER}, winner"),
        (4, f"Race: {FIRST}, stopped: clearly worse than the leader"),
    ):
        assert line in output("show", str(trial), "--storage", storage)
    assert "Race:" not in output("show", "1", "--storage", storage)


def test_an_outcome_is_stored_as_json_and_read_back() -> None:
    assert read_race(json.loads(json.dumps(OUTCOME.data()))) == OUTCOME
    for broken in (None, [], {}, {"seeds": 1}, {**OUTCOME.data(), "contestants": [{}]}):
        assert read_race(broken) is None


def test_the_sentence_on_selection() -> None:
    assert OUTCOME.selection(maximize=True) == (
        "In the search, trial 2 improved on the default configuration (trial 0) by 0.083; 0.032 "
        "of that is likely to be selection on noise."
    )
    alone = replace(OUTCOME, default=None)
    assert "Of the value of trial 2 in the search, 0.032" in alone.selection(maximize=True)
    assert "no sign of selection" in OUTCOME.selection(maximize=False)
    high = replace(OUTCOME, contestants=(FIRST, replace(WINNER, value=0.74)))
    assert high.selection(maximize=True) == (
        "Trial 2 is no worse over seeds than in the search. Trial 4, the best in the search, is "
        "worse by 0.081: its value there was partly noise."
    )
    unraced = replace(OUTCOME, default=(0, 0.8)).selection(maximize=True)
    assert unraced == (
        "In the search, trial 2 is no improvement over the default configuration (trial 0), and "
        "0.032 of its value is likely noise."
    )
    raced = replace(FIRST, stopped=False)
    both = replace(OUTCOME, contestants=(raced, WINNER), default=(4, 0.791))
    assert both.selection(maximize=True).endswith(
        "is likely noise. Over the same seeds, its mean is better by 0.041."
    )
    assert replace(OUTCOME, winner=None).selection(maximize=True) == ""


def test_best_shows_the_winner_first_with_both_numbers(storage: str) -> None:
    shown = output("best", "--storage", storage)
    assert "Trial 2 won the race: value 0.783 in the search, 0.751 ± 0.012 over 5 seeds." in shown
    assert "selection on noise" in shown
    assert shown.index("0.751") < shown.index("0.791")
    rows = json.loads(CliRunner().invoke(app, ["best", "--storage", storage, "--json"]).output)
    assert [row["trial"] for row in rows] == [2, 4, 3, 0, 1]
    assert rows[0]["race"]["mean"] == 0.751
    assert rows[-1]["race"] is None


def test_a_stale_race_is_named_and_not_used(storage: str) -> None:
    study = optuna.load_study(study_name="notes", storage=f"sqlite:///{storage}")
    study.tell(study.ask(), 0.95)
    shown = output("best", "notes", "--storage", storage)
    assert "the same `supermax tune` refreshes it" in shown
    assert read_record(study).best().number == 5


def test_the_report_has_a_section_on_the_race(storage: str) -> None:
    study = optuna.load_study(study_name="notes", storage=f"sqlite:///{storage}")
    study.set_user_attr(EXPERIMENT, {"objectives": ["macro_f1"]})
    study.set_user_attr(BASELINES, {"trivial": {"macro_f1": 0.5}})
    made = page(read_record(study))
    assert '<section id="race">' in made
    assert "the best of the search" not in made  # that is trial 4
    won = "Trial 2 won the race: macro_f1 0.783 in the search, 0.751 ± 0.012 over 5 seeds."
    assert won in made
    assert "0.032 of that is likely to be selection on noise" in made
    assert made.count("<td>stopped</td>") == 2
    assert overview(study).best == "macro_f1 0.751 ± 0.012 over 5 seeds (trial 2)"


@pytest.mark.parametrize("unit", ["seed", "fold"])
def test_the_report_says_that_baselines_are_of_one_split(storage: str, unit: Unit) -> None:
    study = optuna.load_study(study_name="notes", storage=f"sqlite:///{storage}")
    study.set_user_attr(
        EXPERIMENT, {"objectives": ["macro_f1"], "metric_versions": {"macro_f1": 1}}
    )
    contestants = tuple(replace(each, unit=unit) for each in OUTCOME.contestants)
    study.set_user_attr(RACE, replace(OUTCOME, contestants=contestants).data())

    def shown(baseline: dict[str, float]) -> str:
        study.set_user_attr(BASELINES, {"trivial": baseline})
        return page(read_record(study))

    where = " on the validation split" if unit == "seed" else ""
    assert f"won the race: macro_f1{where} 0.783 in the search" in shown({"macro_f1": 0.5})
    alone = "The baselines are of the validation split alone"
    assert (alone in shown({"macro_f1": 0.5})) is (unit == "fold")
    assert alone not in shown({"accuracy": 0.5})  # not in the table


def test_lists_of_studies_leave_races_out(storage: str) -> None:
    listed = output("study", "list", "--storage", storage, "--json")
    assert [row["name"] for row in json.loads(listed)] == ["notes"]
    states = json.loads(output("status", "--storage", storage, "--json"))
    assert [row["study"] for row in states] == ["notes"]
    assert "notes@race" in output("study", "show", "notes@race", "--storage", storage)


def test_a_study_is_deleted_with_its_race(storage: str) -> None:
    output("study", "delete", "notes", "--yes", "--storage", storage)
    assert optuna.get_all_study_names(f"sqlite:///{storage}") == []


def test_a_study_cannot_have_the_name_of_a_race() -> None:
    with pytest.raises(UserError, match="'notes@race' is the name of a race"):
        open_study(load("demo/criteria"), storage=None, name="notes@race")


@pytest.mark.parametrize(
    ("written", "parsed"),
    [("auto", "auto"), ("true", True), (False, False), ("5", 5), (8, 8), (0, False)],
)
def test_the_setting(written: object, parsed: object) -> None:
    data = {"agent": "criteria", "trials": 3, "epochs": 1, "race": written}
    found = Settings.model_validate(data).race
    assert (found, type(found)) == (parsed, type(parsed))


@pytest.mark.parametrize("wrong", ["many", 1, -2, [3]])
def test_a_wrong_setting(wrong: object) -> None:
    with pytest.raises(ValueError, match="race"):
        Settings.model_validate({"agent": "criteria", "trials": 3, "epochs": 1, "race": wrong})


BOTH = "trial 2 won the race: value 0.783 in the search, 0.751 ± 0.012 over 5 seeds"


def test_status_and_study_show_name_the_winner_with_both_numbers(storage: str) -> None:
    assert f"best: {BOTH} (maximize)" in output("status", "notes", "--storage", storage)
    assert "value 0.751 ± 0.012 over 5 seeds (trial 2)" in output("status", "--storage", storage)
    assert BOTH in output("status", "notes", "--watch", "--storage", storage)
    both = BOTH.replace("value ", "")
    assert f"best: {both}" in output("study", "show", "notes", "--storage", storage)
    assert " 0.751 ± 0.012 over 5 seeds " in output("study", "list", "--storage", storage)
    for command in (("status", "notes"), ("study", "show", "notes"), ("study", "list")):
        data = json.loads(output(*command, "--json", "--storage", storage))
        found = data[0] if isinstance(data, list) else data
        assert (found if command[0] == "status" else found["best"])["race"] == {
            **WINNER.data(),
            "scores": list(WINNER.scores),
        }
    assert f"Best: {both}." in output("study", "delete", "notes", "--yes", "--storage", storage)


def test_status_and_study_show_use_no_stale_race(storage: str) -> None:
    study = optuna.load_study(study_name="notes", storage=f"sqlite:///{storage}")
    study.tell(study.ask(), 0.95)
    assert "best: value 0.95 in trial 5" in output("status", "notes", "--storage", storage)
    assert "best: trial 5, 0.95" in output("study", "show", "notes", "--storage", storage)


def test_the_view_of_an_ended_run_names_the_winner(storage: str, tmp_path: Path) -> None:
    study = optuna.load_study(study_name="notes", storage=f"sqlite:///{storage}")
    state = RunState(study_name="notes", directions=("maximize",), run_dir=str(tmp_path))
    state.started_at, state.best, state.finished = 1.0, (4, 0.791), 5
    state.close(REACHED)
    (tmp_path / "status.json").write_text(json.dumps(status_json(state)))
    asked = ("status", "notes", "--run-dir", str(tmp_path), "--storage", storage)
    assert BOTH in output(*asked)
    assert json.loads(output(*asked, "--json"))["best"] == {"trial": 4, "value": 0.791}
    study.tell(study.ask(), 0.95)
    assert "value 0.791 in trial 4" in output(*asked)
