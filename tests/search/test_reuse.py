"""A search trains no configuration twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from supermax._util.attributes import RESULT
from supermax.engine.ranking import copied_from
from supermax.results.records import read_record
from supermax.space import narrowed
from supermax.ui.cli.inspect import show
from tests.search.searches import search_in


@pytest.mark.usefixtures("quick", "preloaded")
def test_a_second_trial_of_the_only_configuration_has_the_result_of_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search = search_in(tmp_path, trials=2)
    assert search.space is not None
    only = narrowed(search.space, search.space.defaults() or {})
    tuned = replace(search, space=only).run(progress=False)
    first, second = tuned.study.trials
    assert (copied_from(first), copied_from(second)) == (None, 0)
    assert (second.state, second.values) == (first.state, first.values)
    assert second.intermediate_values == first.intermediate_values
    assert second.user_attrs[RESULT] == first.user_attrs[RESULT]
    assert [row["trial"] for row in tuned.best()] == [0]
    assert [trial.number for trial in read_record(tuned.study).best_first()] == [0]
    show(1, study=tuned.study.study_name, storage=str(search.storage))
    assert "Trial 0 had its configuration: it has that result" in capsys.readouterr().out
