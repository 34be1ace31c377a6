"""Fixtures: studies shared by several tests, made once."""

from __future__ import annotations

import optuna
import pytest

from supermax.results.records import StudyRecord
from tests.results.report import studies


@pytest.fixture(scope="session")
def rich() -> StudyRecord:
    return studies.rich(studies.agent_study(None))


@pytest.fixture(scope="session")
def two() -> StudyRecord:
    return studies.rich(studies.agent_study(None, "two", objectives=2), trials=60)


@pytest.fixture(scope="session")
def hostile() -> StudyRecord:
    return studies.hostile(None)


@pytest.fixture
def empty() -> optuna.Study:
    return optuna.create_study(study_name="empty")
