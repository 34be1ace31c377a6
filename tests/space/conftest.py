"""Fixtures: every kind of storage, and fork servers that start quickly."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend


@pytest.fixture(autouse=True)
def forked(engine_preloaded: None) -> None:
    """Fork fork servers from a process with the imports done."""


@pytest.fixture(params=["sqlite", "journal", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, empty_database: Path) -> Any:
    if request.param == "sqlite":
        shutil.copy(empty_database, tmp_path / "s.db")
        return optuna.storages.get_storage(f"sqlite:///{tmp_path}/s.db")
    if request.param == "journal":
        return JournalStorage(JournalFileBackend(str(tmp_path / "s.log")))
    return InMemoryStorage()
