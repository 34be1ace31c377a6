"""Database of runs that share a study."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.run.shared_runs import opened
from tests.engine.storage.postgres import Proxy, Server


@pytest.fixture
def proxy(database: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Empty database behind a proxy."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    proxy = Proxy(database.path)
    with opened(proxy) as storage:
        for summary in storage.get_all_studies():
            storage.delete_study(summary._study_id)
    yield proxy
    proxy.close()
