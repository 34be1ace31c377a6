"""Fixture with every kind of storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend


@pytest.fixture(params=["sqlite", "journal", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "sqlite":
        return optuna.storages.get_storage(f"sqlite:///{tmp_path}/s.db")
    if request.param == "journal":
        return JournalStorage(JournalFileBackend(str(tmp_path / "s.log")))
    return InMemoryStorage()
