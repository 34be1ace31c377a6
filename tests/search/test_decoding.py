"""Decoding settings of a search: chosen in each evaluation, or those of a study from before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from supermax._util.attributes import EXPERIMENT, RESULT
from supermax.results.decoding import decoding_text
from supermax.results.records import read_record
from supermax.results.report.writing import write_report
from supermax.search.refit import config_of
from supermax.search.spaces import with_parameters
from supermax.space import Space, load
from supermax.space.presets import unsearched
from supermax.tasks.objective import configured
from supermax.tasks.preflight import DECODING, has_fixed_decoding
from supermax.training.config import DecodeConfig, chooses_decoding
from tests.search.searches import search_in

SAMPLED = {"encoder": {"name": "tiny"}}


@pytest.mark.slow
@pytest.mark.usefixtures("quick", "preloaded")
def test_settings_are_chosen_and_those_of_a_study_from_before_stay(tmp_path: Path) -> None:
    search = search_in(tmp_path, "evidence", trials=1)
    tuned = search.run(progress=False)
    found = tuned.study.trials[0].user_attrs[RESULT]["decoding"]
    assert found["policy"] == "calibrated"
    assert {"n_best", "max_answer", "threshold"} < set(found)
    record = read_record(tuned.study)
    assert decoding_text(record.trial(0)) == (
        f"n_best {found['n_best']}, max_answer {found['max_answer']}, "
        f"threshold {found['threshold']:.4g}"
    )
    assert chooses_decoding(tuned.config(0))
    assert config_of(record, record.trial(0)) == tuned.config(0)

    # As an earlier version left it, for a space without these parameters.
    before = {k: v for k, v in tuned.study.user_attrs[EXPERIMENT].items() if k != DECODING}
    tuned.study.set_user_attr(EXPERIMENT, before)
    later = search_in(tmp_path, "evidence", trials=2).run(progress=False)
    fixed = {"n_best": 10, "max_answer": 64, "policy": "threshold", "threshold": None}
    assert later.study.trials[1].user_attrs[RESULT]["decoding"] == fixed
    record = read_record(later.study)
    assert config_of(record, record.trial(1)).decode == DecodeConfig(n_best=10, max_answer=64)
    assert decoding_text(record.trial(1)) == "n_best 10, max_answer 64, no-answer policy threshold"


@pytest.mark.usefixtures("quick", "preloaded")
def test_a_study_that_searched_these_settings_continues_to(tmp_path: Path) -> None:
    search = search_in(tmp_path, "evidence", trials=1)
    assert search.space is not None
    longest = {"type": "int", "low": 8, "high": 32, "step": 8, "default": 24}
    former = {**unsearched("evidence"), "decode.max_answer": longest}
    data = with_parameters(search.space, former).data()
    fit = {"name": "answers fit", "require": "decode.max_answer <= text.max_length - 24"}
    data["constraints"].append(fit | {"reason": "an answer is found inside one window"})
    older = replace(search, space=Space(**data)).run(progress=False).study
    before = {k: v for k, v in older.user_attrs[EXPERIMENT].items() if k != DECODING}
    older.set_user_attr(EXPERIMENT, before)  # as an earlier version left it
    said: list[str] = []
    tuned = replace(search, trials=2, warn=said.append).run(progress=False)
    assert (tuned.study.study_name, said) == ("evidence", [])  # no further version
    trial = tuned.study.trials[1]
    assert trial.params["decode.max_answer"] <= trial.params["text.max_length"] - 24
    config = tuned.config(1)
    assert config.decode.n_best == trial.params["decode.n_best"]
    assert config.no_answer.policy == trial.params["no_answer.policy"]
    assert trial.user_attrs[RESULT]["decoding"]["max_answer"] == trial.params["decode.max_answer"]
    page = write_report(read_record(tuned.study), tmp_path / "report.html", storage="s.db")
    assert "decode.max_answer" in page.read_text()


def test_settings_that_are_sampled_are_used_as_they_are() -> None:
    sampled = {**SAMPLED, "decode": {"max_answer": 30}, "no_answer": {"policy": "none"}}
    config = configured("evidence", sampled, {})
    assert config.decode == DecodeConfig(n_best=None, max_answer=30)
    assert config.no_answer.policy == "none"
    former = configured("evidence", sampled, {}, former_decoding=True)
    assert former.decode == DecodeConfig(n_best=10, max_answer=30)
    assert not chooses_decoding(former)


def test_only_spaces_without_these_parameters_had_fixed_settings() -> None:
    now = load("demo/evidence")
    data = now.data()
    sampled = {**data["parameters"], **unsearched("evidence")}
    assert has_fixed_decoding({}, now)
    assert not has_fixed_decoding({DECODING: "chosen"}, now)
    assert not has_fixed_decoding({}, type(now)(**{**data, "parameters": sampled}))
    assert not has_fixed_decoding(None, now)  # a new study
