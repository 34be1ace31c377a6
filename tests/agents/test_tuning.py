"""The agents searched for real: in cells, killed, gone on with, tidied up after."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from optuna.storages import get_storage
from optuna.trial import create_trial

import supermax
from supermax.agents import fitting
from supermax.agents.keeping import BAR, Keeper, worth_keeping
from supermax.agents.measures import check_objectives
from supermax.agents.objective import AgentObjective, TrialReporter
from supermax.agents.starting import VERSIONS
from supermax.cleaning import leftovers
from supermax.engine.home import find_home
from supermax.engine.optimize import Summary
from supermax.errors import UserError
from supermax.naming import EXPERIMENT, HALF_WRITTEN, RESULT, STATE, WEIGHTS, plain_params
from supermax.ranking import ranked
from supermax.records import read
from supermax.report.writing import write_report
from supermax.space import find_versions, load, narrowed
from supermax.training.data.examples import Corpus
from supermax.training.data.splits import split
from supermax.training.steps import Execution
from supermax.tuning import Tuning
from tests.training.corpora import corpus

pytestmark = pytest.mark.usefixtures("quick")
LIMITS = {"epochs": 3, "patience": None}


def small(agent: str = "criteria") -> Any:
    """A space with one encoder and little else, so that a trial takes a second."""
    fixed: dict[str, Any] = {"text.max_length": 48, "train.effective_batch": 16}
    if agent != "criteria":
        fixed |= {"text.doc_stride": 8, "decode.max_answer": 16}
    return narrowed(load(f"demo/{agent}"), fixed)


def tuning(folder: Path, agent: str = "criteria", **options: Any) -> Tuning:
    return Tuning(
        agent,
        corpus(60),
        str(folder / "s.db"),
        folder / "cache",
        space=small(agent),
        limits=LIMITS,
        seed=0,
        tell=lambda _: None,
        **options,
    )


@pytest.mark.parametrize("agent", ["criteria", pytest.param("joint", marks=pytest.mark.slow)])
def test_a_search_keeps_what_it_should_and_goes_on(tmp_path: Path, agent: str) -> None:
    tuned = tuning(tmp_path, agent, trials=3, top=2).run(workers=2, progress=False)
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
    again = tuning(tmp_path, agent, trials=4, top=2).run(workers=1, progress=False)
    assert again.summary.told == 1
    assert len(again.study.trials) == 4


def test_no_text_of_anybody_is_in_the_runs_files(tmp_path: Path) -> None:
    marked = corpus(40)
    words = Corpus(
        marked.name,
        marked.label_names,
        tuple(type(e)(e.id, e.group, f"{e.text} zebrafinch", e.question, e.label) for e in
              marked.classes),
    )  # fmt: skip
    one = tuning(tmp_path, trials=2)
    tuned = Tuning(**{**vars(one), "corpus": words}).run(progress=False)
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
def test_a_killed_trial_ends_with_the_bits_of_one_that_was_not(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole, killed = searched(tmp_path / "a", AgentObjective), searched(tmp_path / "b", Killed)
    assert whole[2] == [1, 1]
    assert killed[2] == [2, 2]
    assert killed[:2] == whole[:2]


@pytest.mark.slow
def test_several_objectives(tmp_path: Path) -> None:
    names = ["macro_f1", "model_size", "latency", "peak_memory"]
    tuned = tuning(tmp_path, trials=2, objectives=names).run(progress=False)
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


def test_what_cannot_be_had_is_said_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(fitting, "unavailable", lambda _: {"lion": "The optimizer lion is not."})
    space = load("criteria")
    with pytest.raises(UserError, match=r"(?s)None of the encoders.*roberta-large"):
        fitting.fitted(space, "cpu")
    demo = fitting.fitted(load("demo/criteria"), "cpu")
    assert "lion" not in fitting.choices(demo.space, "optim.name")
    assert "The optimizer lion is not." in demo.notices
    assert any("not pretrained: tiny" in notice for notice in demo.notices)


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
    Keeper(tmp_path, top=3)(study, study.trials[0])
    kept = sorted(int(p.parent.name) for p in tmp_path.rglob(WEIGHTS))
    assert kept == [1, 2, 3]
    assert not (tmp_path / "trials" / "00000" / "checkpoint" / STATE).exists()
    Keeper(tmp_path, top=3, budget=250)(study, study.trials[0])
    assert sorted(int(p.parent.name) for p in tmp_path.rglob(WEIGHTS)) == [1, 3]
    number = study.ask().number  # it runs, and has just written its own
    running = tmp_path / "trials" / f"{number:05}"
    running.mkdir(exist_ok=True)
    (running / WEIGHTS).write_bytes(b"x")
    Keeper(tmp_path, top=1)(study, study.trials[0])
    assert sorted(int(p.parent.name) for p in tmp_path.rglob(WEIGHTS)) == [1, number]


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
    """Each trial's value, how many others begin before it looks at the bar, and how many more
    before it ends."""
    folder = tmp_path_factory.mktemp("run")
    places = folder / "trials"
    places.mkdir()
    study, keeper = optuna.create_study(direction=direction), Keeper(folder, top)
    moments = []
    for number, (value, look, end) in enumerate(trials):
        study.ask()
        looks, ends = number + look, number + look + end
        moments += [(looks, False, number, value), (ends, True, number, value)]
    for _, over, number, value in sorted(moments):
        if over:
            study.tell(number, value)
            keeper(study, study.trials[number])
        elif worth_keeping(places, top, value, number):
            (places / f"{number:05}").mkdir()
            (places / f"{number:05}" / WEIGHTS).write_bytes(b"x")
    best = [trial.number for trial in ranked(study.trials, study.directions)[:top]]
    assert sorted(int(path.parent.name) for path in folder.rglob(WEIGHTS)) == sorted(best)


def test_weights_are_written_where_they_may_be_among_the_best(tmp_path: Path) -> None:
    places, study = tmp_path / "trials", study_of([0.1, 0.9, 0.5, 0.8])
    places.mkdir()
    keeper = Keeper(tmp_path, top=2)
    keeper(study, study.trials[0])
    looks = [worth_keeping(places, 2, value, 9) for value in (0.7, 0.8, 0.81, float("inf"))]
    assert looks == [False, False, True, True]
    assert worth_keeping(places, 2, 0.8, 0)  # the first of equals
    assert worth_keeping(places, 3, 0.01, 9)  # of another run, which keeps more
    written = (places / BAR).stat().st_mtime_ns
    keeper(study, study.trials[0])
    assert (places / BAR).stat().st_mtime_ns == written  # nothing new to say
    (places / BAR).write_text("torn {")
    assert worth_keeping(places, 2, 0.01, 9)
    Keeper(tmp_path, top=0)(study, study.trials[0])
    several = optuna.create_study(directions=["maximize", "minimize"])
    several.add_trial(create_trial(values=[0.5, 1.0]))
    (places / BAR).unlink()
    Keeper(tmp_path, top=1)(several, several.trials[0])
    assert worth_keeping(places, 1, 0.01, 9)


def test_a_trial_that_cannot_be_kept_writes_no_weights(tmp_path: Path) -> None:
    objective = AgentObjective(
        "criteria", small(), corpus(24, 1), corpus(12, 2), tmp_path / "cache", ["macro_f1"],
        {"epochs": 1, "patience": None}, Execution(), top=1,
    )  # fmt: skip
    study = optuna.create_study(direction="maximize")
    study.add_trial(create_trial(value=2.0))
    (tmp_path / "trials").mkdir()
    Keeper(tmp_path, top=1)(study, study.trials[0])
    for _ in range(2):
        trial: Any = study.ask()
        trial.checkpoint_dir = tmp_path / "trials" / f"{trial.number:05}" / "checkpoint"
        trial.checkpoint_dir.mkdir(parents=True)
        objective(trial)
        objective = replace(objective, top=None)  # each its own
    assert [path.parent.name for path in tmp_path.rglob(WEIGHTS)] == ["00002"]


def test_weights_are_kept_where_the_run_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def started(*_: Any, callbacks: list[Any], **options: Any) -> Summary:
        seen.extend((callbacks[0].run_dir, options.get("run_dir")))
        return Summary({}, {})

    monkeypatch.setattr("supermax.tuning.optimize", started)
    tuning(tmp_path, trials=1).run(run_dir=str(tmp_path / "elsewhere"))
    assert seen == [tmp_path / "elsewhere", str(tmp_path / "elsewhere")]


def test_what_an_attempt_did_not_write_to_its_end_goes(tmp_path: Path) -> None:
    study, torn = study_of([0.5]), tmp_path / "trials" / "00000" / HALF_WRITTEN
    torn.parent.mkdir(parents=True)
    torn.write_bytes(b"x")
    Keeper(tmp_path, top=1)(study, study.trials[0])
    assert not torn.exists()


def test_what_nobody_finished_or_keeps_can_be_cleaned_away(tmp_path: Path) -> None:
    tuned = supermax.open_study(small(), storage=str(tmp_path / "s.db"), quiet=True)
    tuned.add_trial(create_trial(value=0.5))
    place = find_home(tuned).run_dir / "trials" / "00000"
    place.mkdir(parents=True)
    (place / HALF_WRITTEN).write_bytes(b"x")
    (found,) = leftovers([tuned], top=1, cache=None)
    assert found.path == place / HALF_WRITTEN


def kept_of(study: optuna.Study, folder: Path, top: int) -> list[int]:
    """The trials whose weights are left of all that had some."""
    for trial in study.trials:
        place = folder / "trials" / f"{trial.number:05}"
        place.mkdir(parents=True)
        (place / WEIGHTS).write_bytes(b"x")
    Keeper(folder, top=top)(study, study.trials[0])
    return sorted(int(path.parent.name) for path in folder.rglob(WEIGHTS))


def test_of_several_objectives_the_weights_of_the_front_are_kept(tmp_path: Path) -> None:
    study = optuna.create_study(directions=["maximize", "minimize"])
    for values in ([0.9, 9.0], [0.8, 9.5], [0.85, 9.1], [0.5, 1.0], [0.7, 5.0]):
        study.add_trial(create_trial(values=values))
    record = read(study, tmp_path)
    assert [trial.number for trial in record.ranking()] == [0, 4, 3, 2, 1]
    assert [trial.number for trial in record.front()] == [0, 4, 3]
    assert {trial.number for trial in study.best_trials} == {0, 4, 3}
    assert kept_of(study, tmp_path, top=3) == [0, 3, 4]


def test_no_weights_of_a_trial_that_breaks_a_constraint_are_kept(tmp_path: Path) -> None:
    study = optuna.create_study(direction="maximize")
    for value, by in ((0.9, 1.0), (0.1, 0.0), (0.5, -1.0)):
        study.add_trial(create_trial(value=value, system_attrs={"constraints": [by]}))
    assert kept_of(study, tmp_path, top=2) == [1, 2]
    assert read(study, tmp_path).best().number == 2


def test_every_mistake_of_a_search_is_told_at_once(tmp_path: Path) -> None:
    wrong = Tuning(
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
        "learns from answers (map the column of the answers: data.columns.answer), and 'mine' has",
        "there is no such folder",
        "did you mean 'epochs'",
        "patience",
        "trials is a number of at least 1, not 0",
        "top is a number of at least 1, not 0",
    ):
        assert words in str(caught.value)
    assert not (tmp_path / "s.db").exists()


def test_a_space_of_another_agent_is_refused_before_the_first_trial(tmp_path: Path) -> None:
    typo = supermax.space.loads(
        "name: mine\nparameters:\n  encoder.name: {choices: [tiny]}\n"
        "  optim.lt: {type: float, low: 1e-5, high: 1e-3, log: true}\n"
    )
    cases = (
        (load("demo/evidence"), "decode.max_answer: the agent 'criteria' has no use for it"),
        (typo, "optim.lt: there is no such key; did you mean 'optim.lr'?"),
        (load("classic/criteria"), "train.batch_size: there is no such key"),
    )
    for space, words in cases:
        with pytest.raises(UserError) as caught:
            replace(tuning(tmp_path, trials=1), space=space).run(progress=False)
        assert words in str(caught.value)


def test_values_of_another_experiment_are_not_mixed_in(tmp_path: Path) -> None:
    first = tuning(tmp_path, trials=1)
    first.run(progress=False)
    other = replace(first, corpus=corpus(60, seed=5))
    accuracy = replace(first, objectives="accuracy", limits={"epochs": 2})
    for wrong, words in ((other, ["data: "]), (accuracy, ["objectives", "limits"])):
        with pytest.raises(UserError, match="another name or another storage") as caught:
            wrong.run(progress=False)
        assert all(word in str(caught.value) for word in words)
    renamed = Corpus(
        "another file",
        first.corpus.label_names,
        tuple(replace(e, id=f"other {e.id}") for e in first.corpus.classes),
        tuple(replace(e, id=f"other {e.id}") for e in first.corpus.spans),
    )
    again = replace(first, corpus=renamed).run(progress=False)  # the same texts: nothing to do
    assert len(again.study.trials) == 1


def searched_by_old_rules(search: Tuning) -> optuna.Study:
    """A study as it was before metrics of spans were defined anew: without their versions."""
    study = search.run(progress=False).study
    note = study.user_attrs[EXPERIMENT]
    study.set_user_attr(EXPERIMENT, {k: v for k, v in note.items() if k != VERSIONS})
    return study


@pytest.mark.parametrize("migrated", [False, True])
def test_values_by_two_definitions_of_a_metric_are_not_mixed(
    tmp_path: Path, migrated: bool
) -> None:
    first = tuning(tmp_path, "evidence", trials=1)
    study = searched_by_old_rules(first)
    if migrated:  # as `supermax study migrate` does: it carries trials over, and no note
        wider = narrowed(load("demo/evidence"), {"text.max_length": 48, "text.doc_stride": 8})
        supermax.open_study(
            wider, storage=first.storage, name="evidence", directions=["maximize"], quiet=True
        )
        first = replace(first, space=wider)
        assert find_versions(get_storage(f"sqlite:///{first.storage}"), "evidence")[1].trials
    with pytest.raises(UserError, match="another name or another storage") as caught:
        replace(first, trials=2).run(progress=False)
    words = "definition of token_f1 (docs/agents.md): version 1 then, version 2 now"
    assert words in str(caught.value)
    record = read(study)
    assert record.best().values == study.best_trial.values
    page = write_report(record, tmp_path / "report.html", storage=str(first.storage))
    assert "token_f1" in page.read_text()
    renamed = replace(first, name="anew").run(progress=False)
    assert renamed.study.user_attrs[EXPERIMENT][VERSIONS] == {"token_f1": 2}
    again = replace(first, name="anew", trials=2).run(progress=False)
    assert again.summary.trials["COMPLETE"] == 2


def test_a_search_by_metrics_that_have_not_changed_goes_on(tmp_path: Path) -> None:
    first = tuning(tmp_path, trials=1)
    searched_by_old_rules(first)
    assert len(replace(first, trials=2).run(progress=False).study.trials) == 2


def test_a_study_from_before_equal_texts_were_kept_together_is_not_mixed(tmp_path: Path) -> None:
    first = tuning(tmp_path, trials=1)
    twice = replace(first.corpus.classes[1], text=first.corpus.classes[0].text.upper())
    rows = (first.corpus.classes[0], twice, *first.corpus.classes[2:])
    doubled = replace(first, corpus=replace(first.corpus, classes=rows), name="doubled")
    for search in (first, doubled):
        study = search.run(progress=False).study
        noted = study.user_attrs[EXPERIMENT]
        assert noted.pop("splits")
        study.set_user_attr(EXPERIMENT, noted)  # as an earlier version left it
    first.run(progress=False)  # no text stands twice, so its splits are what they were
    with pytest.raises(UserError, match="splits: equal texts") as caught:
        doubled.run(progress=False)
    assert "another name or another storage" in str(caught.value)


def test_other_splits_of_the_same_data_are_another_experiment(tmp_path: Path) -> None:
    first = tuning(tmp_path, trials=1)
    first.run(progress=False)
    with pytest.raises(UserError, match="splits: "):
        replace(first, splits=split(first.corpus, seed=1)).run(progress=False)


def test_an_answer_without_any_token_is_told_before(tmp_path: Path) -> None:
    first = tuning(tmp_path, "evidence")
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


def test_a_question_that_fits_no_configuration_is_told_before(tmp_path: Path) -> None:
    rows = corpus(60).classes
    long = (replace(rows[0], question="why " * 90), replace(rows[1], question="how " * 95))
    wrong = replace(tuning(tmp_path), corpus=Corpus("mine", ("no", "yes"), (*long, *rows[2:])))
    with pytest.raises(UserError, match="Shorten these questions") as caught:
        wrong.run(progress=False)
    named = [row.id for row in long if row.id in str(caught.value)]
    assert named  # those of the splits that a search sees
    assert not (tmp_path / "s.db").exists()


@pytest.mark.slow
def test_arguments_of_another_kind(tmp_path: Path) -> None:
    for wrong, words in (
        ({"limits": {"effective_batch": 3}}, "effective_batch, which the space searches"),
        ({"trials": "3"}, "trials is a number"),
        ({"corpus": "notes.csv"}, "not a str"),
        ({"objectives": "macro_f2"}, "did you mean 'macro_f1'"),
    ):
        with pytest.raises(UserError, match=words):
            replace(tuning(tmp_path), **wrong).run(progress=False)  # type: ignore[arg-type]
    fine = replace(tuning(tmp_path, trials=1), storage=tmp_path / "p.db", models=["tiny"])
    said: list[str] = []
    told: list[int] = []
    tuned = replace(fine, corpus=corpus(12), tell=said.append).run(
        progress=False, callbacks=[lambda _, trial: told.append(trial.number)]
    )
    assert told == [0]
    assert tuned.winner() == tuned.best(1)[0]
    assert any("too few to tell" in text for text in said)


def test_a_search_without_a_value_has_no_winner(tmp_path: Path) -> None:
    tuned = tuning(tmp_path, trials=1).run(progress=False, deadline=time.monotonic())
    with pytest.raises(UserError, match="Run the search again"):
        tuned.winner()


def test_a_class_that_is_not_there_is_no_objective() -> None:
    assert check_objectives("criteria", ["f1_2"], classes=3) == (["f1_2"], ["maximize"])
    with pytest.raises(UserError, match="from f1_0 to f1_2"):
        check_objectives("criteria", ["f1_3"], classes=3)
