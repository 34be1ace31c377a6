"""Shell completion, requested as a shell does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from typer.testing import CliRunner

from supermax.agents import AGENT_NAMES
from supermax.ui.cli import app
from tests.conftest import eventually
from tests.few import quick_are

NAMES = ["alpha", "alps", "beta"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        optuna.create_study(storage="sqlite:///supermax.db", study_name=name)
    return tmp_path


def offered(line: str) -> list[str]:
    """Return the completions of a line, as zsh, bash and fish request them."""
    words = line.split(" ")
    environment = {
        "_SUPERMAX_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = CliRunner().invoke(app, prog_name="supermax", env=environment)
    assert done.stderr == ""
    return done.stdout.split()


COMMANDS = [
    *("best", "status", "report", "dashboard", "track", "refit", "study show", "study delete"),
    *("show 1 --study", "compare 1 2 --study", "replay 1 --study", "best --study"),
]


@pytest.mark.parametrize(
    "command",
    quick_are(["best", "refit", "study show", "show 1 --study", "best --study"], COMMANDS),
)
def test_completes_names_of_studies(command: str, here: Path) -> None:
    before = sorted(here.iterdir())
    assert offered(f"supermax {command} ") == NAMES
    assert offered(f"supermax {command} al") == ["alpha", "alps"]
    assert sorted(here.iterdir()) == before


def test_completes_studies_of_the_given_storage(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optuna.create_study(storage="sqlite:///other.db", study_name="gamma")
    journal = JournalStorage(JournalFileBackend("j.journal"))
    for name in ("delta", "gone", "epsilon"):
        optuna.create_study(storage=journal, study_name=name)
    optuna.delete_study(storage=journal, study_name="gone")
    for place in ("other.db", "sqlite:///other.db", str(here / "other.db")):
        assert offered(f"supermax best --storage {place} ") == ["gamma"]
    for place in ("j.journal", "journal:///j.journal"):
        assert offered(f"supermax best --storage {place} ") == ["delta", "epsilon"]
    monkeypatch.setenv("SUPERMAX_STORAGE", "other.db")
    assert offered("supermax best ") == ["gamma"]


@pytest.mark.parametrize("place", ["none.db", "bad.db", ".", "postgresql://u:p@h/d", "none.log"])
def test_completion_is_silent_and_creates_no_file_on_errors(place: str, here: Path) -> None:
    (here / "bad.db").write_text("no database")
    before = sorted(here.iterdir())
    assert offered(f"supermax best --storage {place} ") == []
    assert sorted(here.iterdir()) == before


def test_completes_studies_while_a_run_writes(here: Path) -> None:
    """Names are read from the write-ahead log too, and the log stays as it is."""
    held = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sqlite3, sys; db = sqlite3.connect('supermax.db'); "
            "db.execute('PRAGMA journal_mode=WAL'); "
            "db.execute(\"INSERT INTO studies (study_name) VALUES ('newest')\"); db.commit(); "
            "db.execute('BEGIN IMMEDIATE'); open('ready', 'w').close(); sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
    )
    assert eventually((here / "ready").exists)
    assert offered("supermax best ") == [*NAMES, "newest"]
    held.communicate(timeout=10)


def test_targets_of_a_search_and_values_of_options(here: Path) -> None:
    for name in ("mine.yaml", "notes.csv", "sub/deep.yml"):
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).touch()
    assert offered("supermax tune ") == [*AGENT_NAMES, "all", "mine.yaml", "notes.csv"]
    assert offered("supermax tune m") == ["multilabel", "mine.yaml"]
    assert offered("supermax tune sub/") == ["sub/deep.yml"]
    assert offered("supermax tune nowhere/") == []
    names = ["demo", "standard", "modern", "max", "supermax"]
    assert offered("supermax tune criteria --preset ") == names
    assert offered("supermax tune criteria --sampler q") == ["qmc"]
    assert offered("supermax tune criteria --pruner h") == ["hyperband", "halving"]
    assert offered("supermax doctor --agent e") == ["evidence"]


@pytest.mark.slow
def test_completion_process_prints_only_names(here: Path) -> None:
    line = {
        "_SUPERMAX_COMPLETE": "complete_bash",
        "COMP_WORDS": "supermax best ",
        "COMP_CWORD": "2",
    }
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.argv[0] = 'supermax'; from supermax.__main__ import main; main()",
        ],
        env={**os.environ, **line, "PYTHONWARNINGS": "default"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.split(), done.stderr) == (NAMES, "")
