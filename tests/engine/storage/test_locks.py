"""Locks in folders that others can write: no file is destroyed, and studies stay exclusive."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial

import supermax
from supermax.engine.storage import locks
from supermax.engine.storage.locations import find_location
from tests.users import SOMEBODY, as_somebody, common_folder, needs_root

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def common(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder for temporary files, shared by all users."""
    with common_folder() as folder:
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        yield folder


def run(study: optuna.Study, n_trials: int = 1, **options: Any) -> supermax.Summary:
    return supermax.optimize(study, lambda trial: 1.0, n_trials, progress=False, **options)


def lock_file(study: optuna.Study, folder: Path) -> Path:
    """Return the path of the study's lock, which any user can derive from the study's file."""
    file = find_location(study).file
    assert file is not None
    found = file.stat()
    return folder / f"{found.st_dev}-{found.st_ino}-{study._study_id}"


def follow(message: str, command: str, home: Path) -> str:
    """Run the command that the message advises, from `command` on; return the new TMPDIR."""
    typed = command + message.partition(command)[2]
    done = subprocess.run(
        ["bash", "-ec", f'{typed}\necho "$TMPDIR"'],
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@needs_root
def test_a_link_that_another_user_planted_destroys_nothing(
    study: optuna.Study, common: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    folder = common / f"supermax-locks-{os.geteuid()}"

    lock = lock_file(study, folder)

    def plant() -> None:
        folder.mkdir(0o777)
        lock.symlink_to(precious)

    assert as_somebody(plant) == "None"
    with pytest.raises(supermax.EnvironmentFault, match=f"user with number {SOMEBODY}") as caught:
        run(study)
    assert precious.read_text() == "mine"
    assert not study.trials
    monkeypatch.setattr(tempfile, "tempdir", follow(str(caught.value), "mkdir", tmp_path))
    assert run(study).finished == 1
    assert precious.read_text() == "mine"


def test_a_lock_folder_that_others_can_write_is_refused(
    study: optuna.Study, common: Path, tmp_path: Path
) -> None:
    folder = common / f"supermax-locks-{os.geteuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(supermax.EnvironmentFault, match="Other users can write") as caught:
        run(study)
    follow(str(caught.value), "chmod", tmp_path)
    assert run(study).finished == 1


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_a_link_in_place_of_a_lock_is_not_followed(
    study: optuna.Study, common: Path, link: Any
) -> None:
    precious = common / "precious.txt"
    precious.write_text("mine")
    folder = common / f"supermax-locks-{os.geteuid()}"
    folder.mkdir(0o700)
    link(lock_file(study, folder), precious)
    with pytest.raises(supermax.EnvironmentFault, match="link") as caught:
        run(study)
    assert precious.read_text() == "mine"
    follow(str(caught.value), "rm -f", common)
    assert run(study).finished == 1
    assert precious.read_text() == "mine"


def test_the_lock_folder_is_its_owners_alone_whatever_the_umask(
    study: optuna.Study, common: Path
) -> None:
    before = os.umask(0)
    try:
        run(study)
    finally:
        os.umask(before)
    found = (common / f"supermax-locks-{os.geteuid()}").stat()
    assert stat.S_IMODE(found.st_mode) == 0o700


@needs_root
@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_two_users_on_one_file_exclude_each_other(mode: int) -> None:
    with common_folder(mode) as folder:
        db = folder / "study.db"
        study = optuna.create_study(storage=f"sqlite:///{db}", study_name="s")
        db.chmod(0o666)
        lock = locks.beside(db, str(study._study_id))
        said: list[str] = []

        def intrude(_: optuna.Study, trial: FrozenTrial) -> None:
            said.append(as_somebody(lambda: locks.Lock(lock, "s", like=db)))

        run(study, callbacks=[intrude])
        assert "UserError: Another run is at work on the study 's'" in said[0]

        assert "object" in as_somebody(lambda: locks.Lock(lock, "s", like=db))  # and was killed
        with held_by_somebody(lock, db), pytest.raises(supermax.UserError, match="another user"):
            run(study, n_trials=2)
        assert run(study, n_trials=2).finished == 2


@contextmanager
def held_by_somebody(lock: Path, like: Path) -> Iterator[None]:
    ear, mouth = os.pipe()
    over, go = os.pipe()
    if (pid := os.fork()) == 0:
        os.close(go)
        os.setgid(SOMEBODY)
        os.setuid(SOMEBODY)
        held = locks.Lock(lock, "s", like=like)
        os.write(mouth, b".")
        os.read(over, 1)  # until the other end is closed
        held.release()
        os._exit(0)
    os.read(ear, 1)
    yield
    for fd in (ear, mouth, over, go):
        os.close(fd)
    os.waitpid(pid, 0)


@needs_root
def test_user_who_can_only_read_a_study_cannot_lock_it() -> None:
    with common_folder(0o755) as folder:
        db = folder / "study.db"
        study = optuna.create_study(storage=f"sqlite:///{db}", study_name="s")
        lock = locks.Lock(locks.beside(db, "1"), "s", like=db)
        said = as_somebody(lambda: locks.beside(db, "1").read_text())
        lock.release()
        assert "PermissionError" in said
        assert run(study).finished == 1


@needs_root
@pytest.mark.parametrize(
    "plant", [lambda lock: lock.touch(0o666), os.mkfifo], ids=["file", "fifo"]
)
def test_a_lock_that_a_reader_planted_does_not_block_the_study(
    plant: Callable[[Path], None],
) -> None:
    with common_folder() as folder:
        db = folder / "study.db"
        study = optuna.create_study(storage=f"sqlite:///{db}", study_name="s")
        lock = locks.beside(db, "1")
        assert as_somebody(lambda: plant(lock)) == "None"
        with contextlib.ExitStack() as held:
            if lock.is_file():
                opened = held.enter_context(lock.open("r+"))
                fcntl.flock(opened, fcntl.LOCK_EX)
            assert run(study).finished == 1
        assert not lock.exists()  # root may remove it in any folder


@needs_root
def test_lock_of_a_user_who_can_write_the_study_counts() -> None:
    with common_folder() as folder:
        db = folder / "study.db"
        study = optuna.create_study(storage=f"sqlite:///{db}", study_name="s")
        db.chmod(0o666)
        lock = locks.beside(db, "1")
        assert as_somebody(lambda: lock.touch(0o666)) == "None"
        with lock.open("r+") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX)
            with pytest.raises(supermax.UserError, match="Another run is at work"):
                run(study)


@needs_root
def test_each_user_of_a_file_has_a_run_folder() -> None:
    with common_folder(0o777) as folder:
        db = folder / "study.db"
        study = optuna.create_study(storage=f"sqlite:///{db}", study_name="s")
        db.chmod(0o666)
        assert run(study).run_dir == folder / "study.db.supermax" / "s"
        theirs = as_somebody(lambda: find_location(study).run_dir)
        assert theirs == str(folder / f"study.db.supermax-{SOMEBODY}" / "s")
        assert find_location(study).run_dir == folder / "study.db.supermax" / "s"


@needs_root
def test_lock_in_a_private_folder_of_another_user_is_explained() -> None:
    with common_folder() as place:
        (place / "run").mkdir(0o700)
        said = as_somebody(lambda: locks.Lock(place / "run" / "lock", "s"))
    assert "EnvironmentFault: The lock file" in said
    assert "belongs to another user: name one of your own as run_dir (--run-dir)." in said
