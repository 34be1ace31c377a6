"""Fixtures: a folder as it is after a first search, made once for all workers."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.preloading import Template, forked_from
from tests.ui.cli.helping import add_plain_study, make_playground


@pytest.fixture(scope="session")
def made(
    tmp_path_factory: pytest.TempPathFactory,
    worker_id: str,
    template: Template,
    engine_template: Template,
) -> Path:
    base = tmp_path_factory.getbasetemp()
    root = base if worker_id == "master" else base.parent
    folder = root / "playground"
    with (root / "playground.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            with forked_from(template):
                make_playground(folder)
            with forked_from(engine_template):
                add_plain_study(folder)
            (folder / "done").touch()
    return folder


@pytest.fixture
def playground(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy that a test may change, with its own cache, whose path is in the study."""
    folder = tmp_path / "here"
    shutil.copytree(made, folder)
    with contextlib.closing(sqlite3.connect(folder / "supermax.db")) as db, db:
        change = "UPDATE study_user_attributes SET value_json = replace(value_json, ?, ?)"
        db.execute(change, (f'"{made}/', f'"{folder}/'))
    monkeypatch.chdir(folder)
    return folder
