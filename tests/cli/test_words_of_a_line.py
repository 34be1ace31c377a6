"""What people write on a command's line, and what it says back."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

import supermax
from supermax.cli.tune import _where, assigned
from supermax.errors import UserError
from supermax.settings import resolve
from supermax.space.presets import presets
from tests.cli.helping import sm

SPACE = "name: {}\nparameters: {{x: {{type: float, low: 0, high: {}}}}}"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("-x", "b\x1b[2Jad"):
        optuna.create_study(storage="sqlite:///supermax.db", study_name=name)
    return tmp_path


def test_a_study_may_begin_with_a_dash(here: Path) -> None:
    assert "-x: minimize; no trials" in sm("study", "show", "--study=-x")
    space = supermax.space.loads(SPACE.format("'-1'", 1))
    supermax.open_study(space, storage="supermax.db", quiet=True)
    (here / "other.yaml").write_text(SPACE.format("o", 2))
    for order in (("--study=-1", "other.yaml"), ("other.yaml", "--study=-1")):
        assert "x" in sm("study", "diff", *order)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("best", "--study"), "--study needs a name"),
        (("best", "--study", "--json"), "--study needs a name"),
        (("best", "--study", "a", "--study=b"), "--study is given twice"),
        (("show", "1", "--study", "a", "--study", "b"), "--study is given twice"),
        (("best", "a", "--study", "b"), "extra argument"),
        (("best",), "several studies in supermax.db: -x, bad."),
        (("best", "zzz"), "there are -x, bad"),
        (("best", "\x1b[2Jq"), "There is no study 'q'"),
    ],
)
def test_a_mistake_is_a_sentence(args: tuple[str, ...], words: str) -> None:
    said = sm(*args, code=2)
    assert words in said
    assert "\x1b" not in said


def test_a_setting_that_cannot_be_read_is_named() -> None:
    with pytest.raises(UserError, match=r"^--set name: the value"):
        assigned(["name=[red]x"])


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", ""),
        ("storage: my runs.db", " --storage '{}/my runs.db'"),
        ("storage: postgresql://u:p@h/d", " --storage …"),
        ("outdir: out", " --storage {}/out/supermax.db"),
    ],
)
def test_hints_can_be_pasted(text: str, hint: str, here: Path) -> None:
    (here / "s.yaml").write_text(f"agent: criteria\n{text}\n")
    settings = resolve(None, file=here / "s.yaml", presets=presets()).settings
    assert _where(settings) == hint.format(here)


@pytest.mark.parametrize("prefix", ["", "sqlite:///", "sqlite+pysqlite:///"])
def test_the_cache_beside_a_storage_is_found_by_url_too(prefix: str, here: Path) -> None:
    from supermax.cli.care import _beside
    from supermax.naming import CACHE

    assert _beside(f"{prefix}supermax.db") == here / CACHE
    assert _beside("postgresql://u:p@h/d") is None


def test_several_objectives_have_a_front(here: Path) -> None:
    study = optuna.create_study(
        storage="sqlite:///two.db", study_name="two", directions=["minimize", "maximize"]
    )
    where = ("--storage", "two.db")
    assert "–" in sm("study", "list", *where)
    for values in ((1.0, 1.0), (2.0, 2.0), (3.0, 0.0)):
        study.add_trial(optuna.trial.create_trial(values=values))
    for command in (("status",), ("status", "two"), ("study", "list"), ("study", "show", "two")):
        assert "front of 2" in sm(*command, *where)
    assert "two.db holds 1 study" in sm("doctor", "--preset", "demo", *where)
