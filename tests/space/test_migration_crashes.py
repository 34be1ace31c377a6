"""Migrations that are killed, or run at the same time: both versions stay valid."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import optuna
import pytest

import supermax
from supermax import Space, UserError
from supermax._util.attributes import FROM
from tests import ROOT
from tests.space.versions import (
    BASE,
    by_root,
    by_root_of,
    changed,
    filled,
    opened,
)

KILLED = """
import os, sys
sys.path.insert(0, {root!r})
from supermax.space import open_version
from supermax.space.migration import bulk_write
from tests.space.versions import changed
import supermax.space.migration.versions as versions
calls = 0
bulk_write._BATCH = 50
def dying(original):
    def wrapped(*args, **kwargs):
        global calls
        calls += 1
        if calls == {moment}:
            os.kill(os.getpid(), 9)
        result = original(*args, **kwargs)
        return result
    return wrapped
bulk_write._insert = dying(bulk_write._insert)
versions.optuna.create_study = dying(versions.optuna.create_study)
from optuna.storages._cached_storage import _CachedStorage
_CachedStorage.set_study_system_attr = dying(_CachedStorage.set_study_system_attr)
space = changed(clip={{"type": "float", "low": 0.1, "high": 5.0, "default": 1.0}})
open_version(space, storage={url!r}, name="s")
"""


@pytest.mark.slow
@pytest.mark.parametrize("every", [7, 1])
def test_a_crash_at_any_step_leaves_both_versions_valid(tmp_path: Path, every: int) -> None:
    original = tmp_path / "original.db"
    study = opened(Space(**BASE), f"sqlite:///{original}").study
    filled(study, Space(**BASE), 120)
    before = by_root_of(study)
    study._storage.remove_session()
    root = str(ROOT)
    for moment in range(1, 30, every):
        url = f"sqlite:///{tmp_path}/{moment}.db"
        shutil.copy(original, tmp_path / f"{moment}.db")
        program = textwrap.dedent(KILLED).format(root=root, moment=moment, url=url)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        killed = done.returncode == -signal.SIGKILL
        assert killed or done.returncode == 0, done.stderr
        assert by_root_of(optuna.load_study(study_name="s", storage=url)) == before
        clip = {"type": "float", "low": 0.1, "high": 5.0, "default": 1.0}
        second = opened(changed(clip=clip), url).study
        assert second.study_name == "s@2"
        assert set(by_root(second)) == set(before)
        assert second._storage.get_study_system_attrs(second._study_id)[FROM]["done"]
        assert [t.number for t in second.trials] == list(range(120))
        if not killed:
            break
    assert moment >= 7  # the study, three attributes, three batches


@pytest.mark.slow
def test_two_programs_at_once_write_no_trial_twice(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    filled(opened(Space(**BASE), url).study, Space(**BASE), 60)
    program = textwrap.dedent(KILLED).format(root=str(ROOT), moment=0, url=url)
    both = [
        subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    errors = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    study = optuna.load_study(study_name="s@2", storage=url)
    assert len(by_root(study)) == 60
    assert sorted(t.number for t in study.trials) == list(range(60))


def test_a_study_is_not_migrated_during_a_run(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    study = supermax.open_study(Space(**BASE), storage=url, quiet=True)
    folder = tmp_path / "s.db.supermax" / "s"
    holder = subprocess.Popen(
        [sys.executable, "-c",
         "import sys, pathlib; from supermax.engine.storage.locks import Lock;"
         f"lock = Lock(pathlib.Path({str(folder / 'lock')!r}), 's'); print('held', flush=True);"
         "sys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(UserError, match="Another run is at work"):
        supermax.open_study(changed(warmup=None), storage=url, quiet=True)
    holder.communicate()
    again = supermax.open_study(changed(warmup=None), storage=url, quiet=True)
    assert again.study_name == f"{study.study_name}@2"


@pytest.mark.slow
def test_two_openers_with_two_spaces_get_two_versions(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    filled(opened(Space(**BASE), url).study, Space(**BASE), 30)
    program = (
        f"import sys, supermax; sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.space.versions import changed\n"
        "high = float(sys.argv[1])\n"
        "space = changed(warmup={'type': 'float', 'low': 0.0, 'high': high})\n"
        f"study = supermax.open_study(space, storage={url!r}, name='s', quiet=True)\n"
        "print(study.study_name, supermax.space.space_of(study) == space, len(study.trials))\n"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", program, high], stdout=subprocess.PIPE, text=True)
        for high in ("0.4", "0.5")
    ]
    said = sorted(process.communicate()[0].split() for process in both)
    assert said == [["s@2", "True", "30"], ["s@3", "True", "30"]]
