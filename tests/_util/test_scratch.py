"""Temporary folders: removed at the end, and by the next process after a kill."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from supermax._util.scratch import folder_beside, scratch_folder
from tests.users import SOMEBODY, needs_root

HOLDER = """
import sys
from supermax._util.scratch import scratch_folder
with scratch_folder("test") as folder:
    (folder / "file").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def holder() -> tuple[subprocess.Popen[str], Path]:
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", HOLDER], stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_folder_is_removed_at_the_end(here: Path) -> None:
    with scratch_folder("test") as folder:
        (folder / "file").touch()
        assert folder.parent == here
    assert list(here.iterdir()) == []


def test_the_next_process_removes_what_a_kill_has_left_and_nothing_else(here: Path) -> None:
    (alive, kept), (killed, left) = holder(), holder()
    killed.kill()
    killed.communicate()
    others = [here / "supermax-other", here / "supermax-tmp-file", here / "supermax-tmp-link"]
    others[0].mkdir()
    others[1].touch()
    others[2].symlink_to(others[0])
    assert left.exists()
    with scratch_folder("other"):
        assert not left.exists()
        assert (kept / "file").exists()
        assert all(other.exists() for other in others)
    alive.communicate()
    assert alive.returncode == 0
    assert sorted(here.iterdir()) == sorted(others)


@needs_root
def test_folders_of_other_users_are_left_alone(here: Path) -> None:
    left = here / "supermax-tmp-host-abc"
    left.mkdir()
    os.chown(left, SOMEBODY, -1)
    with scratch_folder("test"):
        assert left.exists()


BESIDE = """
import sys
from pathlib import Path
from supermax._util.scratch import folder_beside
with folder_beside(Path(sys.argv[1])) as folder:
    (folder / "weights").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_the_next_folder_beside_a_path_removes_what_a_kill_has_left(here: Path) -> None:
    pipe, model = subprocess.PIPE, here / "my [model]"
    processes, folders = [], []
    for _ in range(2):
        command = [sys.executable, "-c", BESIDE, str(model)]
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        assert process.stdout is not None
        folders.append(Path(process.stdout.readline().strip()))
        processes.append(process)
    processes[0].kill()
    processes[0].communicate()
    other = here / ".my [model].txt"
    other.mkdir()
    assert folders[0].exists()
    with folder_beside(model) as mine:
        assert not folders[0].exists()
        assert (folders[1] / "weights").exists()
        mine.rename(model)  # what is done with it stays
    processes[1].communicate()
    assert sorted(here.iterdir()) == sorted([model, other])
    assert model.stat().st_mode & 0o777 == 0o777 & ~umask()


def umask() -> int:
    os.umask(mask := os.umask(0))
    return mask
