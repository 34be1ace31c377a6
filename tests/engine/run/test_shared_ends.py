"""Ends of runs that share a study: other runs reach the target, or the study is deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.engine.run.test_sharing import (
    Run,
    finished,
    opened,
    proxy,  # noqa: F401
    running,
)
from tests.engine.storage.postgres import Proxy


@pytest.mark.slow
def test_runs_end_at_their_own_numbers_of_trials(
    proxy: Proxy,  # noqa: F811
    tmp_path: Path,
) -> None:
    few = Run(proxy, tmp_path / "few", 4, pace=0.2)
    many = Run(proxy, tmp_path / "many", 60, pace=0.2)
    with running(few, many):
        assert few.process.wait(60) == 0, few.output
        assert 4 <= finished(proxy) < 30
        assert many.process.wait(60) == 0, many.output
    assert finished(proxy) == 60


@pytest.mark.slow
def test_a_deleted_study_ends_its_runs_with_one_sentence(
    proxy: Proxy,  # noqa: F811
    tmp_path: Path,
) -> None:
    runs = [
        Run(proxy, tmp_path / "busy", 1000, pace=0.1),
        Run(proxy, tmp_path / "silent", 1000, pace=60.0),
    ]
    with running(*runs):
        assert eventually(lambda: finished(proxy) > 4, within=30)
        assert eventually(lambda: deleted(proxy), within=30)
        for run in runs:
            assert run.process.wait(30) == 1, run.output
    for run in runs:
        assert run.output.count("The study 'shared' is not in its storage any more.") == 1


def deleted(proxy: Proxy) -> bool:  # noqa: F811
    """Delete the study as `optuna delete-study` does; return whether it is gone. Optuna ignores
    that a trial was added meanwhile, and keeps the study then."""
    with opened(proxy) as storage:
        try:
            storage.delete_study(storage.get_study_id_from_name("shared"))
        except KeyError:
            return True
    return False
