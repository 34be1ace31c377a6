"""`supermax study` on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
from typer.testing import CliRunner

import supermax
from supermax import Space, SupermaxError
from supermax.space import open_version
from supermax.ui.cli import app
from tests.space.versions import BASE, changed, filled

COMMAND = [sys.executable, "-c", "from supermax.ui.cli import main; main()", "study"]


def study(*words: str, answer: str = "", code: int = 0) -> str:
    """Run the command in this process: a new one takes a second to import."""
    done = CliRunner().invoke(app, ["study", *words], input=answer)
    if isinstance(done.exception, SupermaxError):
        assert code == 2
        return done.output + str(done.exception)
    assert done.exit_code == code, done.output
    return done.output


def test_the_program_itself_prints_a_sentence_and_an_exit_code(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "list", "--storage", "nowhere.db"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 2
    assert "nowhere.db. Name the studies' file or URL" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.fixture
def db(tmp_path: Path) -> Any:
    path = tmp_path / "s.db"
    space = Space(**BASE)
    filled(open_version(space, storage=f"sqlite:///{path}", name="s").study, space, 20)
    return str(path)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "new.yaml"
    path.write_text(changed(warmup={"type": "float", "low": 0.0, "high": 0.1}).to_json())
    return str(path)


@pytest.mark.slow
def test_list_and_show(db: str) -> None:
    optuna.create_study(storage=f"sqlite:///{db}", study_name="plain")
    text = study("list", "--storage", db)
    assert "plain" in text
    assert "not stored" in text
    (row,) = [r for r in json.loads(study("list", "--storage", db, "--json")) if r["name"] == "s"]
    assert row["finished"] == 20
    assert row["space"] == Space(**BASE).data()
    text = study("show", "s", "--storage", f"sqlite:///{db}")
    assert "complete" in text
    assert "best: trial" in text
    assert "batch: one of 8, 16 when encoder in" in text
    assert "must hold: small" in text
    assert json.loads(study("show", "s", "--storage", db, "--json"))["states"]["PRUNED"] == 3


def test_diff_and_migrate(db: str, file: str) -> None:
    assert "narrowed: warmup (0 to 0.3 → 0 to 0.1)" in study("diff", "s", file, "--storage", db)
    text = study("migrate", "s", file, "--storage", db, "--on-change", "stop", code=2)
    assert "narrowed: warmup" in text
    text = study("migrate", "s", file, "--storage", db)
    assert "The study is now 's@2'" in text
    assert "Left in the earlier versions: " in text
    assert "has this space already" in study("migrate", "s", file, "--storage", db)
    assert "narrowed: warmup" in study("diff", "s", "--storage", db)
    assert "widened" in study("diff", "s@2", "s@1", "--storage", db)
    assert "No difference" in study("diff", "s", "s", "--storage", db)
    (change,) = json.loads(study("diff", "s", "--storage", db, "--json"))
    assert change["kind"] == "narrowed"
    assert "carried over" in study("show", "s", "--storage", db)


@pytest.mark.slow
def test_the_example_of_diff_shows_a_difference(db: str, file: str) -> None:
    study("migrate", "s", file, "--storage", db)
    (line,) = [line for line in study("diff", "--help").splitlines() if "criteria@" in line]
    names = [name.replace("criteria", "s") for name in line.split()[-2:]]
    assert "narrowed: warmup" in study("diff", *names, "--storage", db)


def test_migrate_refuses_settings_in_place_of_a_space_or_a_study(db: str, tmp_path: Path) -> None:
    settings = tmp_path / "notes.yaml"
    settings.write_text("agent: criteria\nepochs: 3\nspace: own.yaml\n")
    text = study("migrate", "s", str(settings), "--storage", db, code=2)
    assert "notes.yaml holds the settings of a search, not a space" in text
    assert "own.yaml" in text
    text = study("migrate", str(settings), "criteria", "--storage", db, code=2)
    assert "notes.yaml is a file. Name a study of this storage: s." in text


@pytest.mark.slow
def test_retry(db: str) -> None:
    text = study("retry", "s", "--storage", db)
    assert "3 trials of 's' queued" in text
    assert "--trials 23 it runs them" in text
    assert "nothing to retry" in study("retry", "s", "--storage", db)
    assert "did you mean 'pruned'" in study(
        "retry", "s", "--state", "prund", "--storage", db, code=2
    )


def test_delete_asks_and_says_what_is_lost(db: str, file: str) -> None:
    text = study("delete", "s", "--storage", db, answer="n\n", code=1)
    assert "20 finished trials; 20 of them are in no other version" in text
    assert "Nothing was deleted" in text
    study("migrate", "s", file, "--storage", db)
    assert "Name one: s@1, s@2" in study("delete", "s", "--storage", db, code=2)
    first = study("delete", "s@1", "--storage", db, answer="n\n", code=1)
    assert "20 finished trials; 20 of them" not in first
    text = study("delete", "s@2", "--storage", db, answer="y\n")
    assert "; 0 of them are in no other version" in text
    assert "'s@2' is deleted" in text
    names = [s.study_name for s in optuna.get_all_study_summaries(f"sqlite:///{db}")]
    assert names == ["s"]


@pytest.mark.slow
def test_wrong_use_is_a_sentence_and_creates_nothing(
    tmp_path: Path, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "nowhere.db. Name the studies' file or URL" in study(
        "list", "--storage", "nowhere.db", code=2
    )
    assert "There is no file" in study("list", code=2)
    assert "There is no file" in study("list", "--storage", "sqlite:///no.db", code=2)
    assert not list(tmp_path.glob("n*.db"))
    assert "There is no study 'x'" in study("show", "x", "--storage", db, code=2)
    assert "did you mean 's'" in study("delete", "ss", "--storage", db, code=2)
    (tmp_path / "not.db").write_text("no database at all, but long enough to be read as one" * 20)
    assert "cannot be opened" in study("list", "--storage", str(tmp_path / "not.db"), code=2)
    assert "no space file" in study("diff", "s", "nowhere.yaml", "--storage", db, code=2)
    assert "no version before" in study("diff", "s", "--storage", db, code=2)
    optuna.create_study(storage=f"sqlite:///{db}", study_name="plain")
    assert "has no stored space" in study("diff", "plain", "s", "--storage", db, code=2)
    assert supermax.space.space_of(optuna.load_study(study_name="s", storage=f"sqlite:///{db}"))


def test_odd_names_and_values_are_shown_as_they_are(tmp_path: Path) -> None:
    path = str(tmp_path / "odd.db")
    for name in ("[/x]", "[bold]hey"):
        one = optuna.create_study(storage=f"sqlite:///{path}", study_name=name)
        one.optimize(lambda trial: float("inf"), n_trials=1)
        two = one.ask()
        two.set_constraint("never", 1.0)
        one.tell(two, 0.5)
    text = study("list", "--storage", path)
    assert "[/x]" in text
    assert "[bold]hey" in text
    rows = json.loads(study("list", "--storage", path, "--json"))
    assert len(rows) == 2
    assert "complete" in study("show", "[/x]", "--storage", path)
