"""Network disks are recognised by their mounts, and SQLite is refused there."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

import supermax
from supermax.engine.storage import network_disk
from supermax.engine.storage.network_disk import network_type
from supermax.errors import UserError
from tests.engine.programs import short_trial
from tests.ui.cli.helping import sm

MOUNTS = r"""
29 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 29 0:41 / /home rw,relatime shared:7 - autofs systemd-1 rw,fd=29
41 40 0:42 / /home rw,relatime shared:8 master:1 - nfs4 server:/home rw,vers=4.2,local_lock=none
42 29 0:43 / /mnt/my\040disk rw - cifs //server/share rw
43 29 0:44 / /mnt/remote rw - fuse.sshfs me@host:/ rw
44 29 0:45 / /mnt/pool rw - fuse.mergerfs a:b rw
45 29 0:46 / /scratch rw - lustre 10.0.0.1@o2ib:/scratch rw
46 41 0:47 / /home/me/local rw - xfs /dev/sdb rw
47 29 0:48 / /mnt/c rw - 9p drvfs rw
48 29 0:49 / /mnt/host rw - virtiofs share rw
49 29 0:50 / /var/lib/docker rw - overlay overlay rw,lowerdir=/nfs
50 29 0:51 / /mnt/usb rw - fuseblk /dev/sdc rw
51 29 0:52 / /mnt/over rw - nfs server:/x rw
52 29 0:53 / /mnt/over rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/home/me/study.db", "nfs4"),
        ("/home", "nfs4"),
        ("/homes/me/study.db", None),
        ("/mnt/my disk/study.db", "cifs"),
        ("/mnt/remote/deep/study.db", "fuse.sshfs"),
        ("/scratch/study.db", "lustre"),
        ("/home/me/local/study.db", None),
        ("/mnt/pool/study.db", None),
        ("/mnt/c/study.db", None),
        ("/mnt/host/study.db", None),
        ("/var/lib/docker/study.db", None),
        ("/mnt/usb/study.db", None),
        ("/mnt/over/study.db", None),
        ("/study.db", None),
    ],
)
def test_the_type_of_a_network_disk_is_known_from_its_mount(
    path: str, expected: str | None
) -> None:
    assert network_type(MOUNTS, path) == expected


def test_an_unreadable_table_of_mounts_finds_nothing() -> None:
    assert network_type("", "/x") is None
    assert network_type("nonsense\n1 2 3 - nfs\n", "/x") is None


@pytest.fixture
def on_nfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder that seems to be on NFS; `study.db` in it is older."""
    disk = tmp_path / "disk"
    disk.mkdir()
    optuna.create_study(storage=f"sqlite:///{disk / 'study.db'}", study_name="older")
    mounts = tmp_path / "mountinfo"
    root = "29 1 254:0 / / rw - ext4 /dev/vda rw\n"
    mounts.write_text(f"{root}41 29 0:42 / {disk} rw - nfs4 server:/home rw\n")
    monkeypatch.setattr(network_disk, "MOUNTS", mounts)
    monkeypatch.chdir(disk)
    return disk


SPACE = "name: s\nparameters: {x: {type: float, low: 0, high: 1}}"
TUNE = ("tune", "criteria", "--no-supervisor")


def test_no_run_starts_on_a_database_on_a_network_disk(on_nfs: Path) -> None:
    space = supermax.space.loads(SPACE)
    with pytest.raises(UserError, match=r"on a network disk \(nfs4\)"):
        supermax.open_study(space, storage="new.db")
    assert not (on_nfs / "new.db").exists()
    study = optuna.load_study(storage=f"sqlite:///{on_nfs / 'study.db'}", study_name="older")
    with pytest.raises(UserError, match=r"use a journal, .*study\.journal"):
        supermax.optimize(study, short_trial, 1, progress=False)
    assert study.trials == []


@pytest.mark.slow  # imports torch
def test_tune_refuses_a_link_to_a_network_disk(on_nfs: Path) -> None:
    Path("link.db").symlink_to(on_nfs / "study.db")
    assert "on a network disk (nfs4)" in sm(*TUNE, "--storage", "link.db", code=2)


def test_a_database_on_a_network_disk_can_be_read(on_nfs: Path) -> None:
    assert "older" in sm("study", "list", "--storage", "study.db")


@pytest.mark.usefixtures("quick")
def test_the_advised_journal_works_there(on_nfs: Path) -> None:
    study = supermax.open_study(supermax.space.loads(SPACE), storage="study.journal", quiet=True)
    summary = supermax.optimize(study, short_trial, 1, progress=False)
    assert summary.trials["COMPLETE"] == 1
