"""Mistakes, a person's or a machine's, are a sentence and an exit code; nothing is lost."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.helping import inside, sm

pytestmark = pytest.mark.usefixtures("quick")
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
        (("tune", "criteria", "--data", "notes.csv"), "supermax init"),
        (("tune", "criteria", "--data", "nowhere.csv"), "supermax init"),
        (("tune", "criteria", "--data", "."), "no folder of ReDSM5"),
        (("tune", "criteria", "--objective", "macrof1"), "did you mean 'macro_f1'"),
        (("tune", "criteria", "--models", "bert-bse-uncased"), "did you mean"),
        (("tune", "criteria", "--set", "name=other", "--gpus", "7,zero"), "GPU"),
        (("tune", "criteria", "--storage", "nosuch://x"), "cannot be opened"),
        (("best", "critera"), "did you mean 'criteria'"),
        (("best", "--storage", "nowhere.db"), "nowhere.db. Name the studies' file"),
        (("show", "99"), "has no trial 99; the last is 2"),
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
    codes = {"nosuch://x": 3}
    said = sm(*args, *more, code=codes.get(args[-1], 2))
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


def test_a_full_disk(made: Path, small_disk: Path) -> None:
    """The run ends with a sentence; with room again the same command goes on."""
    folder = small_disk / "here"
    shutil.copytree(made, folder, ignore=shutil.ignore_patterns("criteria-model"))
    filler = small_disk / "filler"
    with inside(folder):
        with filler.open("wb", buffering=0) as file:
            while True:
                try:
                    file.write(b"x" * 65536)
                except OSError:
                    break
        said = sm("tune", "criteria", "--trials", "5", *SMALL, code=3)
        assert "Traceback" not in said
        assert "full; make room" in said
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
