"""Contents of the figures, for every kind of study."""

from __future__ import annotations

import json
import math
from datetime import datetime, timedelta
from typing import Any

import optuna
import plotly.graph_objects as go
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState

from supermax._util.attributes import CLAIM, branch_name
from supermax.results.records import StudyRecord, read_record
from supermax.results.report import figures
from supermax.results.report.choosing import focus, thinned
from supermax.results.report.collect import collect
from supermax.results.report.domains import domains
from supermax.results.report.page import draw_figures
from tests.results.report.studies import launch, write_ledgers


def named(figure: go.Figure, name: str) -> Any:
    (found,) = [trace for trace in figure.data if trace.name == name]
    return found


def test_history_has_a_best_so_far_line_and_marks_trials_without_a_value(
    rich: StudyRecord,
) -> None:
    figure = figures.history(rich)
    assert figure is not None
    line = list(named(figure, "best so far").y)
    assert line == sorted(line)
    assert line[-1] == pytest.approx((rich.ranking()[0].values or [0])[0], rel=1e-5)
    assert len(named(figure, "pruned, at its last report").x) == len(rich.of("PRUNED"))
    assert list(named(figure, "failed, or no finite value").x) == [
        t.number for t in rich.of("FAIL")
    ]
    assert figure.layout.yaxis.title.text == "macro_f1 (validation)"


def test_a_minimized_study_gets_better_downwards(empty: optuna.Study) -> None:
    for value in (3.0, 5.0, 1.0, 2.0, math.inf):
        empty.add_trial(optuna.trial.create_trial(value=value))
    figure = figures.history(read_record(empty))
    assert figure is not None
    assert list(named(figure, "best so far").y) == [3.0, 1.0, 1.0]
    assert list(named(figure, "failed, or no finite value").x) == [4]


def test_importances_use_plain_names_and_include_conditional_parameters(rich: StudyRecord) -> None:
    found = figures.importance(rich)
    assert set(found) == {
        "encoder.name",
        "train.batch_size",
        "optim.lr",
        "head.dropout",
        "text.length",
        "schedule.name",
        "schedule.warmup",
    }
    assert sum(found.values()) == pytest.approx(1.0)
    figure = figures.importances(rich)
    assert figure is not None
    assert not any("@[" in label for label in figure.layout.yaxis.ticktext)
    assert figures.importance(rich) == found


def test_importances_find_what_matters_in_either_direction() -> None:
    for sign, direction in ((1, "minimize"), (-1, "maximize")):
        study = optuna.create_study(
            direction=direction, sampler=optuna.samplers.RandomSampler(seed=2)
        )

        def objective(trial: optuna.Trial, sign: int = sign) -> float:
            x = trial.suggest_float("x", -1, 1)
            trial.suggest_float("idle", -1, 1)
            return sign * x * x

        study.optimize(objective, n_trials=100)
        assert next(iter(figures.importance(read_record(study)))) == "x"


def test_several_objectives_have_importances_and_histories_each_and_a_front(
    two: StudyRecord,
) -> None:
    bars = figures.importances(two)
    assert bars is not None
    assert [trace.name for trace in bars.data] == ["macro_f1", "latency"]
    assert figures.history(two, 1) is not None
    figure = figures.pareto(two)
    assert figure is not None
    assert {int(n) for n in named(figure, "Pareto front").text} == {t.number for t in two.front()}
    assert {t.number for t in two.front()} == {t.number for t in two.study.best_trials}
    assert figures.curves(two) is not None  # of training losses: nothing was reported


def test_one_parameter_of_two_branches_has_one_axis(rich: StudyRecord) -> None:
    domain = domains(rich.of("COMPLETE"))["train.batch_size"]
    assert domain.choices == ("8", "16", "32", "64")
    assert figures.slice_plot(rich, "train.batch_size") is not None
    assert figures.slice_plot(rich, "no such parameter") is None


def test_numbers_and_text_share_a_categorical_axis(empty: optuna.Study) -> None:
    numbers = FloatDistribution(0, 1)
    words = CategoricalDistribution(("auto", None, True, float("nan")))
    stored = branch_name("x", words)
    for value in (0.25, 0.5):
        empty.add_trial(
            optuna.trial.create_trial(value=1, params={"x": value}, distributions={"x": numbers})
        )
    for choice in words.choices[:3]:
        empty.add_trial(
            optuna.trial.create_trial(
                value=2, params={stored: choice}, distributions={stored: words}
            )
        )
    (domain,) = domains(read_record(empty).trials).values()
    assert domain.choices == ("0.25", "0.5", "null", "true", "auto")
    assert figures.slice_plot(read_record(empty), "x") is not None


def test_the_timeline_shows_every_attempt_in_its_cell(rich: StudyRecord) -> None:
    figure = figures.timeline(rich)
    assert figure is not None
    bars = [trace for trace in figure.data if trace.type == "bar"]
    assert sum(len(trace.x) for trace in bars) == sum(len(t.attempts) for t in rich.trials)
    assert len(named(figure, "fault").x) == len(rich.faults())
    assert list(figure.layout.yaxis.ticktext) == ["1", "2", "3"]


def test_paused_attempts_are_no_retries_and_cells_of_two_runs_differ(empty: optuna.Study) -> None:
    """Trial 0 pauses in cell 1 of one run while trial 1 runs in cell 1 of another one."""
    for run in ("a", "b"):
        empty.add_trial(
            optuna.trial.create_trial(
                state=TrialState.RUNNING, system_attrs={CLAIM: run}, intermediate_values={1: 1.0}
            )
        )
    start = datetime(2026, 1, 1)
    later = start + timedelta(seconds=9)
    pause = {"stopped": 1, "paused": True, "at": start.timestamp() + 5}
    ledgers = {0: [launch(1, 1, start), pause], 1: [launch(1, 1, start)]}
    write_ledgers(empty, ledgers)
    record = read_record(empty)
    figure = figures.timeline(record, now=later.timestamp())
    assert figure is not None
    assert "2 cells, drawn in 2 rows" in str(figure.layout.meta)
    assert collect(record).states == {"PAUSED": 1, "RUNNING": 1}
    write_ledgers(empty, {**ledgers, 0: [*ledgers[0], launch(2, 1, later)]})
    figure = figures.timeline(read_record(empty))
    assert figure is not None
    assert "retr" not in str(figure.layout.meta)


def test_memory_shows_predictions_if_there_are_any(rich: StudyRecord) -> None:
    figure = figures.memory(rich)
    assert figure is not None
    assert {trace.name for trace in figure.data} == {
        "host, measured",
        "device, measured",
        "device, predicted",
    }


def test_encoders_are_compared_best_on_top(rich: StudyRecord) -> None:
    figure = figures.encoders(rich)
    assert figure is not None
    assert figure.layout.yaxis.ticktext[-1].startswith("deberta-v3-base (")
    assert len(figure.data) == 3


def nothing(study: optuna.Study) -> None:
    """No trial at all."""


def one(study: optuna.Study) -> None:
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)


def failures(study: optuna.Study) -> None:
    for _ in range(3):
        study.add_trial(optuna.trial.create_trial(state=optuna.trial.TrialState.FAIL))


def no_parameters(study: optuna.Study) -> None:
    study.optimize(lambda trial: 1.0, n_trials=6)


def one_parameter(study: optuna.Study) -> None:
    study.optimize(lambda trial: trial.suggest_int("x", 1, 100, log=True), n_trials=12)


def infinite(study: optuna.Study) -> None:
    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        for step, value in enumerate((math.nan, math.inf, x)):
            trial.report(value, step)
        return x if trial.number % 2 else math.inf

    study.optimize(objective, n_trials=8)


def only_infinite(study: optuna.Study) -> None:
    study.optimize(lambda trial: -math.inf * trial.suggest_float("x", 1, 2), n_trials=5)


def running(study: optuna.Study) -> None:
    study.ask({"x": FloatDistribution(0, 1)})
    study.enqueue_trial({"x": 0.5})


def infeasible(study: optuna.Study) -> None:
    for x in range(6):
        trial = study.ask({"x": FloatDistribution(0, 1)})
        trial.set_constraint("never", 1.0)
        study.tell(trial, x)


def wild(study: optuna.Study) -> None:
    """Set attributes to invalid values."""
    for number in range(6):
        trial = study.ask({"x": FloatDistribution(0, 1)})
        trial.set_user_attr("supermax", {"seconds": "long", "peak_rss": None, "attempts": "x"})
        trial.set_user_attr("result", {"metrics": [1], "train_loss": "none", "best_epoch": {}})
        study.tell(trial, float(number))


ODD = (
    nothing,
    one,
    failures,
    no_parameters,
    one_parameter,
    infinite,
    only_infinite,
    running,
    infeasible,
    wild,
)


@pytest.mark.parametrize("fill", ODD)
def test_every_figure_handles_every_study(fill: Any, empty: optuna.Study) -> None:
    fill(empty)
    for figure in draw_figures(read_record(empty)).values():
        if figure is not None:
            text = figure.to_json(engine="json")
            assert "NaN" not in text
            json.loads(text)


def test_three_objectives() -> None:
    study = optuna.create_study(directions=["minimize", "maximize", "minimize"])
    study.optimize(
        lambda trial: (trial.suggest_float("x", 0, 1), trial.number, math.sin(trial.number)),
        n_trials=12,
    )
    drawn = draw_figures(read_record(study))
    assert drawn["pareto-1"] is not None
    assert drawn["pareto-2"] is not None
    assert drawn["history-2"] is not None


def test_hostile_texts_are_escaped_in_every_figure(hostile: StudyRecord) -> None:
    for figure in draw_figures(hostile).values():
        if figure is not None:
            text = figure.to_json(engine="json").replace("\\u003c", "<")
            for tag in ("<script", "<img", "<a ", "<b>", "</"):
                assert tag not in text


def test_the_bad_side_alone_is_cut_off() -> None:
    assert focus([1.0] * 20, maximize=False) is None
    assert focus([float(i) for i in range(20)], maximize=False) is None
    window = focus([*(float(i) for i in range(20)), 1e9], maximize=False)
    assert window is not None
    assert window[0] < 0
    assert 17 < window[1] < 25
    window = focus([*(float(i) for i in range(20)), -1e9], maximize=True)
    assert window is not None
    assert window[1] > 19


def test_thinning_keeps_both_ends() -> None:
    assert thinned(list(range(1000)), 10)[0::9] == [0, 999]
    assert thinned([1, 2], 10) == [1, 2]
