"""Mistakes, a person's or a machine's, are a sentence and an exit code; nothing is lost."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest

import supermax
from supermax.errors import UserError
from supermax.search.prepare import check_cache
from tests.ui.cli.helping import inside, sm
from tests.users import SOMEBODY, as_somebody, common_folder, needs_root

pytestmark = pytest.mark.usefixtures("quick", "preloaded")
SMALL = ("--set", "data.posts=60", "--set", "epochs=2", "--set", "seed=1", "--no-supervisor")


def finished(folder: Path) -> int:
    with inside(folder):
        return int(json.loads(sm("study", "show", "criteria", "--json"))["finished"])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("tune", "critera"), "did you mean 'criteria'"),
        (("tune", "nowhere.yaml"), "There is no file nowhere.yaml"),
        (("tune", "criteria", "--set", "epoch=3"), "did you mean 'epochs'"),
        (("tune", "criteria", "--set", "epochs"), "KEY=VALUE"),
        (("tune", "criteria", "--sampler", "tpee"), "did you mean 'tpe'"),
        (("tune", "criteria", "--trials", "many"), "whole number"),
        (("tune", "criteria", "--preset", "max"), "No data is named"),
        (("tune", "criteria", "--data", "notes.csv"), "this search another name"),
        (("tune", "criteria", "--data", "nowhere.csv"), "There is no file nowhere.csv"),
        (("tune", "criteria", "--data", "."), "not a folder of ReDSM5"),
        (("tune", "criteria", "--objective", "macrof1"), "did you mean 'macro_f1'"),
        (("tune", "criteria", "--models", "bert-bse-uncased"), "did you mean"),
        (("tune", "criteria", "--set", "name=other", "--gpus", "7,zero"), "GPU"),
        (("tune", "criteria", "--storage", "nosuch://x"), "not a kind of storage"),
        (("tune", "criteria", "--address", "head:6379"), "add --executor ray, or leave it out"),
        (
            ("tune", "criteria", "--study", "other", "--warm-start", "critera"),
            "warm_start critera: There is no study 'critera'; did you mean 'criteria'?",
        ),
        (("tune", "criteria", "--warm-start", "criteria"), "It is the study of this search"),
        (("best", "critera"), "did you mean 'criteria'"),
        (("best", "--storage", "nowhere.db"), "nowhere.db. Name the studies' file"),
        (("show", "99"), "has no trial 99; the last is 2"),
        (("show", "-1"), "has no trial -1; the last is 2"),
        (("show", "-1", "--study", "criteria"), "has no trial -1; the last is 2"),
        (("compare", "0", "-12", "--json"), "has no trial -12"),
        (("replay", "-1"), "has no trial -1"),
        (("refit", "--trial", "-1"), "has no trial -1"),
        (("show", "-x"), "No such option: -x"),
        (("best", "--stduy", "criteria"), "No such option: --stduy"),
        (("best", "criteria", "--study", "criteria"), "named twice: criteria, and --study"),
        (("best", "--study", "critera"), "did you mean 'criteria'"),
        (("compare", "0", "99"), "has no trial 99"),
        (("replay", "99"), "has no trial 99"),
        (("refit", "--trial", "99"), "has no trial 99"),
        (("refit", "--seeds", "two"), "--seeds"),
        (("refit", "--storage", "study.db"), "was not made by `supermax tune`"),
        (("predict", "criteria-model", "nowhere.csv", "-o", "a.csv"), "There is no file"),
        (("doctor", "--preset", "demoo"), "did you mean 'demo'"),
    ],
)
def test_a_mistake_is_a_sentence_with_the_nearest_name(
    playground: Path, args: tuple[str, ...], words: str
) -> None:
    more = ("--no-supervisor",) if args[0] == "tune" else ()
    said = sm(*args, *more, code=2)
    assert words in said
    assert "Traceback" not in said
    assert finished(playground) == 3


def test_an_unreadable_file_is_told_by_its_line(playground: Path) -> None:
    (playground / "bad.yaml").write_text("agent: criteria\ndata: {path: [\nepochs: 3\n")
    said = sm("tune", "bad.yaml", "--no-supervisor", code=2)
    assert "bad.yaml, line" in said


def test_two_runs_on_one_study(playground: Path) -> None:
    lock = playground / "supermax.db.supermax" / "criteria" / "lock"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        said = sm("tune", "criteria", "--trials", "4", *SMALL, code=2)
        assert "on this machine" in said
        assert "meanwhile" in sm("clean", "--yes", code=2)
    assert finished(playground) == 3


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of a few megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(place)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a disk can only be mounted by root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow
def test_a_full_disk(made: Path, small_disk: Path) -> None:
    """The run ends with a sentence; with room again the same command goes on."""
    folder = small_disk / "here"
    shutil.copytree(made, folder, ignore=shutil.ignore_patterns("criteria-model"))
    with contextlib.closing(sqlite3.connect(folder / "supermax.db")) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # else that makes room later
    filler = small_disk / "filler"
    with inside(folder):
        with filler.open("wb", buffering=0) as file:
            while True:
                try:
                    file.write(b"x" * 65536)
                except OSError:
                    break
            file.truncate(file.tell() - 512 * 1024)  # without any room, SQLite reads nothing
        said = sm("tune", "criteria", "--trials", "5", *SMALL, code=3)
        assert "Traceback" not in said
        assert "has room for" in said
        assert "Free 0.1 GiB" in said
        filler.unlink()
        assert finished(folder) == 3
        assert "5 finished trials" in sm("tune", "criteria", "--trials", "5", *SMALL)


def test_a_disk_that_cannot_be_written(made: Path, small_disk: Path) -> None:
    folder = small_disk / "here"
    shutil.copytree(made, folder, ignore=shutil.ignore_patterns("criteria-model"))
    remount = ["mount", "-o", "remount,{},size=48m", str(small_disk)]
    subprocess.run([part.format("ro") for part in remount], check=True)
    with inside(folder):
        said = sm("tune", "criteria", "--trials", "5", *SMALL, code=3)
        assert "Traceback" not in said
        assert "ead-only" in said
    subprocess.run([part.format("rw") for part in remount], check=True)
    assert finished(folder) == 3


@pytest.mark.slow
def test_output_that_cannot_be_written_costs_the_text_alone(playground: Path) -> None:
    command = [sys.executable, "-m", "supermax"]
    search = [*command, "tune", "criteria", "--trials", "3", *SMALL]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(search, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 0, done.stderr
        best = [*command, "best"]
        done = subprocess.run(best, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3
    assert "The output cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_looking_leaves_other_peoples_databases_alone(playground: Path) -> None:
    with contextlib.closing(sqlite3.connect("other.db")) as other:
        other.execute("CREATE TABLE mine (x)")
        other.commit()
    (playground / "empty.db").touch()
    before = (playground / "other.db").read_bytes()
    for command in (("best",), ("status",), ("study", "list"), ("report", "x")):
        for name in ("other.db", "empty.db"):
            assert "holds no studies" in sm(*command, "--storage", name, code=2)
    assert (playground / "other.db").read_bytes() == before
    assert (playground / "empty.db").stat().st_size == 0


def test_nobodys_file_is_written_over(playground: Path) -> None:
    (playground / "mine.csv").write_text("mine")
    assert "--force" in sm("export", "-o", "mine.csv", code=2)
    assert "--force" in sm("predict", "criteria-model", "notes.csv", "-o", "mine.csv", code=2)
    os.mkfifo("pipe.html")
    assert "is not a report" in sm("report", "criteria", "-o", "pipe.html", code=2)
    assert (playground / "mine.csv").read_text() == "mine"


def test_values_that_cannot_be_meant_are_not_dropped(playground: Path) -> None:
    assert "cannot be read" in sm("tune", "criteria", "--set", f"patience={'9' * 50}", code=2)
    assert "but the command names 'criteria'" in sm(
        "tune", "criteria", "--set", "agent=joint", code=2
    )
    assert "cannot share one study" in sm("tune", "all", "--set", "name=x", code=2)


def test_attributes_of_other_peoples_are_no_trouble(playground: Path) -> None:
    study = optuna.create_study(storage="sqlite:///odd.db", study_name="odd")
    for kept in ({"metrics": {"a": "x"}}, {"metrics": None}, "words"):
        trial = study.ask()
        trial.set_user_attr("result", kept)
        trial.set_user_attr("supermax", {"seconds": "abc", "faults": None, "peak_rss": "big"})
        study.tell(trial, 1.0)
    for command in (("best",), ("show", "0"), ("show", "1"), ("faults",), ("export",)):
        sm(*command, "--storage", "odd.db")
    sm("report", "odd", "--storage", "odd.db", "-o", "odd.html")


def test_a_study_is_not_refitted_on_other_data(playground: Path) -> None:
    other = supermax.Study.from_config(
        agent="criteria", data={"posts": 61}, epochs=2, storage="supermax.db"
    )
    with pytest.raises(UserError, match="is not what it was"):
        other.refit("elsewhere", seeds=[1])


@pytest.mark.parametrize("workers", [0, 2.5, 600, "many", True])
def test_workers_of_run_are_those_of_the_settings(workers: object) -> None:
    study = supermax.Study.from_config(agent="criteria")
    with pytest.raises(supermax.UserError, match=r"workers of run.*write 1 to 512, or auto"):
        study.run(workers=workers)


def test_a_mistake_in_python_names_its_keyword_once() -> None:
    with pytest.raises(UserError) as caught:
        supermax.Study.from_config(agent="criteria", epochs="x", tirals=3)
    said = str(caught.value)
    assert "epochs of from_config: it must be a whole number ('x')." in said
    assert "tirals of from_config: there is no such key; did you mean 'trials'?" in said


def test_the_version_is_said() -> None:
    assert sm("--version") == f"supermax {supermax.__version__}\n"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param(
            ("--objective", "macrof1"), "did you mean 'macro_f1'", marks=pytest.mark.slow
        ),
        (("--set", "optim.lr=5"), "no such value 5; allowed: "),
        pytest.param(("--preset", "standrd"), "did you mean 'standard'", marks=pytest.mark.slow),
    ],
)
def test_wrong_names_and_values_are_told_before_torch_is_loaded(
    tmp_path: Path, given: tuple[str, ...], words: str
) -> None:
    program = (
        "import sys\n"
        "from supermax.__main__ import main\n"
        "try:\n    main()\n"
        "finally:\n    print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "tune", "criteria", *given],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert words in done.stdout + done.stderr
    assert done.returncode == 2
    assert done.stdout.splitlines()[-1] == "False"


@needs_root
def test_a_cache_of_another_user_is_one_sentence() -> None:
    with common_folder() as place:
        cache = place / "supermax-cache"
        for folder in (cache, cache / "tokenizers"):
            folder.mkdir(0o755)
        assert as_somebody(lambda: check_cache(place / "none")) == "None"
        said = as_somebody(lambda: check_cache(cache))
        assert "EnvironmentFault: The cache" in said
        assert f"{cache} cannot be written; it belongs to the user root" in said
        os.chown(cache, SOMEBODY, SOMEBODY)
        assert f"{cache / 'tokenizers'} cannot be written" in as_somebody(
            lambda: check_cache(cache)
        )
        os.chown(cache / "tokenizers", SOMEBODY, SOMEBODY)
        assert as_somebody(lambda: check_cache(cache)) == "None"


@needs_root
def test_a_folder_of_another_user_is_one_sentence(made: Path) -> None:
    with common_folder() as folder:
        closed = folder / "closed"
        closed.mkdir(mode=0o700)
        shutil.copytree(made / "criteria-model", folder / "m")
        (folder / "t.csv").write_text("text\nsome words\n")
        for path in folder.rglob("*"):
            path.chmod(0o700 if path == closed else 0o777)
        with inside(folder):
            args = "predict", "m", "t.csv", "-o", str(closed / "b.csv")
            said = as_somebody(lambda: sm(*args, code=3))
    assert said == (
        f"{closed}/b.csv cannot be read or written: Permission denied. Name another path, or "
        f"change the permissions of this one.\n"
    )
