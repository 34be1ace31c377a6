"""Searches of the agents in real cells: killed, resumed, cleaned up."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import optuna
import pytest
from optuna.trial import TrialState

import supermax
from supermax._util import system
from supermax._util.attributes import (
    BASELINES,
    RESULT,
    STATE,
    WEIGHTS,
    plain_params,
)
from supermax.engine import gain
from supermax.engine.promotion.front_ladder import points_of
from supermax.engine.run.options import RunOptions
from supermax.engine.summary import NO_GAIN, Summary
from supermax.errors import UserError
from supermax.search.prepare import check_gpus
from supermax.search.replay import ReplayedTrial
from supermax.search.search import Search
from supermax.search.settings import Settings
from supermax.search.spaces import with_parameters
from supermax.space import load
from supermax.space.presets import unsearched
from supermax.tasks import space_fitting
from supermax.tasks.measures import check_objectives
from supermax.tasks.objective import AgentObjective, TrialReporter
from supermax.training.data.examples import Corpus
from supermax.training.data.splits import split
from tests.search.searches import LIMITS, search_in, small
from tests.training.corpora import corpus

pytestmark = pytest.mark.usefixtures("quick", "preloaded")


@pytest.mark.parametrize("agent", ["criteria", pytest.param("joint", marks=pytest.mark.slow)])
def test_a_search_keeps_the_best_weights_and_resumes(tmp_path: Path, agent: str) -> None:
    tuned = search_in(tmp_path, agent, trials=3, top=2).run(workers=2, progress=False)
    assert tuned.summary.trials["COMPLETE"] == 3
    folder = tuned.summary.run_dir
    assert len(list(folder.glob(f"trials/*/{WEIGHTS}"))) == 2
    assert not list(folder.rglob(STATE))
    best = tuned.best(2)
    assert len(best) == 2
    assert (folder / "trials" / f"{best[0]['trial']:05}" / WEIGHTS).exists()
    first = tuned.study.trials[0]
    assert plain_params(first) == tuned.space.defaults()  # they came first
    assert first.user_attrs[RESULT]["untrained"] == (
        ["tiny"] if agent != "joint" else ["tiny"] * 2
    )
    assert "class_head" in first.user_attrs[RESULT]["new"]
    assert sorted(first.intermediate_values) == [1, 2, 3]
    assert tuned.config(0).agent == agent
    again = search_in(tmp_path, agent, trials=4, top=2).run(workers=1, progress=False)
    assert again.summary.told == 1
    assert len(again.study.trials) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objectives", "names"),
    [
        pytest.param((), ["macro_f1"], marks=pytest.mark.slow),
        (("f1_1", "model_size"), ["f1 of yes", "model_size"]),
    ],
)
def test_values_have_names_and_data(
    tmp_path: Path, objectives: Sequence[str], names: list[str]
) -> None:
    events: list[Any] = []

    def search(trials: int) -> optuna.Study:
        one = search_in(tmp_path, objectives=objectives, trials=trials)
        return one.run(progress=events.append).study

    study = search(1)
    assert study.metric_names == names  # for Optuna's dashboard
    begun = events[0]
    count = len(split(corpus(60)).validation.classes)
    assert (begun.metrics, begun.evaluated_on) == (tuple(names), ("validation", count))
    with pytest.warns(optuna.exceptions.ExperimentalWarning):
        study.set_metric_names(["mine"] * len(names))
    search(2)
    assert study.metric_names == ["mine"] * len(names)


def test_no_text_of_the_data_is_in_the_run_s_files(tmp_path: Path) -> None:
    marked = corpus(40)
    words = Corpus(
        marked.name,
        marked.label_names,
        tuple(type(e)(e.id, e.group, f"{e.text} zebrafinch", e.question, e.label) for e in
              marked.classes),
    )  # fmt: skip
    one = search_in(tmp_path, trials=2)
    tuned = Search(**{**vars(one), "corpus": words}).run(progress=False)
    assert tuned.summary.trials["COMPLETE"] == 2
    for path in tuned.summary.run_dir.rglob("*"):
        if path.is_file():
            assert b"zebrafinch" not in path.read_bytes(), path
    assert b"zebrafinch" not in (tmp_path / "s.db").read_bytes()


class _Killer(TrialReporter):
    def report(self, value: float, epoch: int) -> None:
        super().report(value, epoch)
        if epoch == 2 and self.trial.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)


class Killed(AgentObjective):
    def reporter(self, trial: Any) -> TrialReporter:
        return _Killer(trial)


def searched(folder: Path, kind: type[AgentObjective]) -> list[Any]:
    splits = split(corpus(60))
    space = small()
    study = supermax.open_study(space, storage=str(folder / "s.db"), direction="maximize",
                                seed=3, quiet=True)  # fmt: skip
    objective = kind(
        "criteria", space, splits.train, splits.validation, folder / "cache", ["macro_f1"],
        LIMITS, save_every=0.0,
    )  # fmt: skip
    summary = supermax.optimize(study, objective, n_trials=2, progress=False)
    assert summary.trials["COMPLETE"] == 2, summary
    weights = [(summary.run_dir / "trials" / f"{n:05}" / WEIGHTS).read_bytes() for n in range(2)]
    return [
        [(t.params, t.value, t.intermediate_values) for t in study.trials],
        weights,
        [t.user_attrs["supermax"]["attempts"] for t in study.trials],
    ]


@pytest.mark.slow
def test_a_killed_trial_resumes_bit_for_bit(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole, killed = searched(tmp_path / "a", AgentObjective), searched(tmp_path / "b", Killed)
    assert whole[2] == [1, 1]
    assert killed[2] == [2, 2]
    assert killed[:2] == whole[:2]


@pytest.mark.slow
def test_several_objectives(tmp_path: Path) -> None:
    names = ["macro_f1", "model_size", "latency", "peak_memory"]
    tuned = search_in(tmp_path, trials=2, objectives=names).run(progress=False)
    for trial in tuned.study.trials:
        f1, size, latency, memory = trial.values
        assert 0 <= f1 <= 1
        assert 100_000 < size < 1_000_000
        assert 0 < latency < 1000
        assert memory > 1e8


@pytest.mark.parametrize(
    ("agent", "names", "words"),
    [
        ("criteria", ["macro_f2"], "did you mean 'macro_f1'"),
        ("criteria", ["token_f1"], "criteria has no metric 'token_f1'"),
        ("criteria", ["latency"], "must be a metric"),
        ("criteria", ["macro_f1", "macro_f1"], "named twice"),
    ],
)
def test_wrong_objectives(agent: str, names: Sequence[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_objectives(agent, names)


def test_directions_follow_the_objectives() -> None:
    assert check_objectives("evidence", []) == (["token_f1"], ["maximize"])
    assert check_objectives("criteria", ["ece", "model_size"])[1] == ["minimize", "minimize"]


def test_unavailable_encoders_and_optimizers_are_reported_and_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(
        space_fitting, "unavailable", lambda _: {"lion": "The optimizer lion is not."}
    )
    space = load("criteria")
    with pytest.raises(UserError, match=r"(?s)None of the encoders.*roberta-large"):
        space_fitting.fitted(space, "cpu")
    demo = space_fitting.fitted(load("demo/criteria"), "cpu")
    assert "lion" not in space_fitting.choices(demo.space, "optim.name")
    assert "The optimizer lion is not." in demo.notices
    assert any("not pretrained: tiny" in notice for notice in demo.notices)


def test_every_mistake_of_a_search_is_reported_at_once(tmp_path: Path) -> None:
    wrong = Search(
        "evidence",
        Corpus("mine", ("no", "yes"), corpus(8).classes),
        str(tmp_path / "s.db"),
        tmp_path / "cache",
        models=f"{tmp_path}/nothing",
        objectives=["token_f2", "latency", "latency"],
        limits={"epoch": 3, "patience": 0},
        trials=0,
        top=0,
    )
    with pytest.raises(UserError) as caught:
        wrong.run(progress=False)
    for words in (
        "did you mean 'token_f1'",
        "named twice",
        "learns from answers (map the column of the answers: data.columns.answer), but 'mine' has",
        "there is no such folder",
        "did you mean 'epochs'",
        "patience",
        "trials must be a whole number of at least 1, not 0",
        "top must be a whole number of at least 1, not 0",
    ):
        assert words in str(caught.value)
    assert not (tmp_path / "s.db").exists()


def test_a_space_of_another_agent_is_refused_before_the_first_trial(tmp_path: Path) -> None:
    typo = supermax.space.loads(
        "name: mine\nparameters:\n  encoder.name: {choices: [tiny]}\n"
        "  optim.lt: {type: float, low: 1e-5, high: 1e-3, log: true}\n"
    )
    cases = (
        (load("demo/evidence"), "text.doc_stride: the agent 'criteria' does not use it"),
        (
            with_parameters(load("demo/criteria"), unsearched("evidence")),
            "decode.max_answer: the agent 'criteria' does not use it",
        ),
        (typo, "optim.lt: there is no such key; did you mean 'optim.lr'?"),
        (load("classic/criteria"), "train.batch_size: there is no such key"),
    )
    for space, words in cases:
        with pytest.raises(UserError) as caught:
            replace(search_in(tmp_path, trials=1), space=space).run(progress=False)
        assert words in str(caught.value)


@pytest.mark.slow
def test_an_answer_without_any_token_is_reported_before_the_run(tmp_path: Path) -> None:
    first = search_in(tmp_path, "evidence")
    rows = list(first.corpus.spans)
    for place in (3, 7):
        text = rows[place].text + " \u200b"
        rows[place] = replace(rows[place], text=text, spans=((len(text) - 1, len(text)),))
    wrong = replace(first, corpus=replace(first.corpus, spans=tuple(rows)))
    with pytest.raises(UserError, match="2 rows have an answer of which the tokenizer") as caught:
        wrong.run(progress=False)
    assert all(rows[place].id in str(caught.value) for place in (3, 7))
    rows[7] = replace(rows[7], id="an id that looks like somebody's text")
    with pytest.raises(UserError, match="- 1 row more") as caught:
        replace(first, corpus=replace(first.corpus, spans=tuple(rows))).run(progress=False)
    assert "somebody" not in str(caught.value)
    assert not (tmp_path / "s.db").exists()


def test_a_question_that_fits_no_configuration_is_reported_before_the_run(tmp_path: Path) -> None:
    rows = corpus(60).classes
    long = (replace(rows[0], question="why " * 90), replace(rows[1], question="how " * 95))
    wrong = replace(search_in(tmp_path), corpus=Corpus("mine", ("no", "yes"), (*long, *rows[2:])))
    with pytest.raises(UserError, match="Shorten these questions") as caught:
        wrong.run(progress=False)
    named = [row.id for row in long if row.id in str(caught.value)]
    assert named  # those of the splits that a search sees
    assert not (tmp_path / "s.db").exists()


@pytest.mark.slow
def test_arguments_of_another_type(tmp_path: Path) -> None:
    for wrong, words in (
        ({"limits": {"effective_batch": 3}}, "effective_batch, which the space also searches"),
        ({"trials": "3"}, "trials must be a whole number"),
        ({"corpus": "notes.csv"}, "not a str"),
        ({"objectives": "macro_f2"}, "did you mean 'macro_f1'"),
    ):
        with pytest.raises(UserError, match=words):
            replace(search_in(tmp_path), **wrong).run(progress=False)  # type: ignore[arg-type]
    fine = replace(search_in(tmp_path, trials=1), storage=tmp_path / "p.db", models=["tiny"])
    said: list[str] = []
    told: list[int] = []
    tuned = replace(fine, corpus=corpus(12), tell=said.append).run(
        progress=False, callbacks=[lambda _, trial: told.append(trial.number)]
    )
    assert told == [0]
    assert tuned.winner() == tuned.best(1)[0]
    assert any("too few to tell" in text for text in said)


def test_a_search_without_a_value_has_no_winner(tmp_path: Path) -> None:
    tuned = search_in(tmp_path, trials=1).run(progress=False, deadline=time.monotonic())
    with pytest.raises(UserError, match="Run the search again"):
        tuned.winner()


def test_the_metric_of_a_missing_class_is_no_objective() -> None:
    assert check_objectives("criteria", ["f1_2"], classes=3) == (["f1_2"], ["maximize"])
    with pytest.raises(UserError, match="f1_0 to f1_2"):
        check_objectives("criteria", ["f1_3"], classes=3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"run_dir": 5}, "run_dir must be the path of a folder, but is 5"),
        ({"retires": 1}, "run() has no option 'retires'; did you mean 'retries'?"),
        ({"workers": "many"}, "workers of run(): 'many' is no number of workers"),
        ({"callbacks": 3}, "callbacks must be a list of functions"),
    ],
)
def test_wrong_options_of_a_run_are_user_errors(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        search_in(tmp_path, trials=1).run(**options)
    assert not (tmp_path / "s.db").exists()


def test_several_objectives_do_not_end_by_themselves(tmp_path: Path) -> None:
    search = replace(search_in(tmp_path, trials=1), objectives=("accuracy", "model_size"))
    with pytest.raises(UserError, match="only with one objective"):
        search.run(stop="when_no_gain")
    assert not (tmp_path / "s.db").exists()


def test_options_of_a_run_replace_those_of_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[RunOptions] = []
    monkeypatch.setattr(
        "supermax.search.search.run_study",
        lambda _study, _objective, options: seen.append(options) or Summary({}, {}),
    )
    search = replace(search_in(tmp_path, trials=3), workers=2)
    search.run()
    search.run(planner=None, n_trials=7, workers="auto", callbacks=None, paused_space=9)
    first, second = seen
    assert (first.paused_space or 0) > 9  # by the disk
    assert second.paused_space == 9
    assert (first.n_trials, first.workers, first.reuse_cells) == (3, 2, True)
    assert first.planner is not None
    assert (second.n_trials, second.planner) == (7, None)
    assert 1 <= second.workers <= system.cores()
    replace(search, workers=None, options=RunOptions(workers=4, planner=first.planner)).run()
    assert seen[-1].workers == 4
    assert seen[-1].planner is first.planner


@pytest.mark.parametrize(
    ("visible", "gpus", "memory", "expected"),
    [
        ("", "all", None, "gpus=all: CUDA_VISIBLE_DEVICES hides all GPUs"),
        ("-1", "0,1", None, "gpus=0,1: CUDA_VISIBLE_DEVICES hides all GPUs"),
        (None, "all", None, "gpus=all: torch sees no GPU"),
        ("GPU-a,GPU-b", "all", None, None),
        ("GPU-a,MIG-b", "all", None, "The memory of MIG-b, a part of a GPU, cannot be read"),
        ("MIG-b", "", None, "The memory of MIG-b"),
        ("MIG-b", "GPU-a", None, None),
        ("0", "MIG-b", None, "The memory of MIG-b"),
        ("MIG-b", "all", 20 << 30, None),
    ],
)
def test_gpus_that_cannot_be_used_are_refused(
    monkeypatch: pytest.MonkeyPatch,
    visible: str | None,
    gpus: str,
    memory: int | None,
    expected: str | None,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr("torch.cuda.is_available", lambda: visible not in ("", "-1", None))
    settings = Settings(agent="criteria", trials=1, epochs=1, gpus=gpus, gpu_memory=memory)
    if expected is None:
        check_gpus(settings)
    else:
        with pytest.raises(UserError, match=expected):
            check_gpus(settings)


@pytest.mark.slow
def test_search_ends_by_itself_and_races_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gain, "FEWEST", 6)
    rule = supermax.WhenNoGain(1.0)
    tuned = search_in(tmp_path, trials=40, race=2).run(stop=rule, progress=False)
    assert tuned.summary.stopped_by == NO_GAIN
    assert 6 <= tuned.summary.finished <= 7
    assert tuned.race is not None
    assert len(tuned.race.contestants) == 2
    assert "tfidf" in tuned.study.user_attrs[BASELINES]
    on = search_in(tmp_path, trials=9, race=False).run(progress=False)
    assert (on.summary.finished, on.summary.stopped_by) == (9, None)


@pytest.mark.slow
def test_ctrl_c_before_the_race_pauses_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("supermax.search.search.fitted_baseline", interrupted)
        paused = search_in(tmp_path, trials=2, race=2).run(progress=False)
    assert paused.summary.finished == 2
    assert paused.summary.stopped_by == "interrupt"
    assert "criteria@race" not in optuna.get_all_study_names(paused.study._storage)
    done = search_in(tmp_path, trials=2, race=False).run(progress=False)
    assert done.summary.stopped_by is None
    assert "tfidf" in done.study.user_attrs[BASELINES]


@pytest.mark.slow
def test_trials_with_several_objectives_pause_by_their_fronts(tmp_path: Path) -> None:
    pruner = supermax.Promotion(max_reports=3, min_agreement=-1, run_through=0)
    search = search_in(tmp_path, trials=8, objectives=["macro_f1", "model_size"], pruner=pruner)
    tuned = search.run(progress=False)
    states = tuned.summary.trials
    assert states["COMPLETE"] + states["PRUNED"] == 8
    assert states["PRUNED"] > 0
    for trial in tuned.study.trials:
        points = points_of(trial, 2)
        epochs = 3 if trial.state is TrialState.COMPLETE else 1
        assert len(points) == epochs
        assert points[0][1] == trial.user_attrs.get(RESULT, {}).get("parameters", points[0][1])


class Reported:
    """Trial that keeps its reports."""

    stop_requested = False

    def __init__(self, pruner: optuna.pruners.BasePruner) -> None:
        self.study = SimpleNamespace(pruner=pruner)
        self.reports: list[tuple[Any, int]] = []

    def report(self, value: Any, epoch: int) -> None:
        self.reports.append((value, epoch))

    def should_prune(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("second", "pruner", "reports"),
    [
        ("accuracy", supermax.Promotion(), [([0.5, 0.75], 1)]),
        ("latency", supermax.Promotion(), []),  # it is measured at the end
        ("accuracy", optuna.pruners.MedianPruner(), []),
    ],
)
def test_several_objectives_are_reported_to_a_promotion(
    second: str, pruner: optuna.pruners.BasePruner, reports: list[Any], tmp_path: Path
) -> None:
    trial = Reported(pruner)
    splits = split(corpus(40))
    objective = AgentObjective(
        "criteria", small(), splits.train, splits.validation, tmp_path, ["macro_f1", second], {}
    )
    reporter: Any = objective.reporter(cast(Any, trial))
    reporter.begin(SimpleNamespace())
    reporter.measured({"macro_f1": 0.5, "accuracy": 0.75})
    reporter.report(0.5, 1)
    assert trial.reports == reports
    assert reporter.should_prune() is False
    trial.stop_requested = True
    if not reports:
        with pytest.raises(supermax.TrialInterrupted):
            reporter.report(0.5, 2)


def test_replayed_trial_shows_the_first_of_several_values(tmp_path: Path) -> None:
    shown: list[tuple[int, float]] = []
    record: Any = SimpleNamespace(params={}, number=3, trial=SimpleNamespace(params={}))
    trial = ReplayedTrial(record, tmp_path, lambda step, value: shown.append((step, value)))
    trial.report([0.5, 20.0], 1)
    trial.report(0.25, 2)
    assert shown == [(1, 0.5), (2, 0.25)]
