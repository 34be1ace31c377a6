"""Machines that open one study on a database server at the same moment. Their locks do not exclude
each other: only the database does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from optuna.storages import RDBStorage

from supermax import Space
from supermax.errors import EnvironmentFault
from supermax.space.migration import exclusive as migration_lock
from supermax.space.migration.exclusive import exclusive
from tests import ROOT
from tests.engine.storage.postgres import Proxy, given_or_started
from tests.space.versions import BASE, by_root, filled, opened

MACHINES = 4
PROGRAM = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
import supermax
from tests.space.versions import BASE, changed
from supermax.space import enqueue_defaults, warm_start
url, action = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with given_or_started() as server:
        found = Proxy(server.path)
        yield found
        found.close()


@pytest.fixture
def storage(proxy: Proxy) -> Iterator[RDBStorage]:
    """Storage without studies."""
    found = RDBStorage(proxy.url)
    for summary in found.get_all_studies():
        found.delete_study(summary._study_id)
    yield found
    found.engine.dispose()


def on_all_machines(url: str, folder: Path, program: str) -> list[str]:
    """Return what the program printed on each machine. Each has its own folder for locks."""
    found = []
    for number in range(MACHINES):
        own = folder / str(number)
        own.mkdir()
        found.append(
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM + program, url, str(number)],
                env={"TMPDIR": str(own), "HOME": str(own), "PYTHONPATH": str(ROOT / "src")},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    for each in found:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in found:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    said = [each.communicate(timeout=120)[0].strip() for each in found]
    assert [each.returncode for each in found] == [0] * MACHINES
    return said


@pytest.mark.slow
def test_the_next_version_is_made_once(storage: RDBStorage, proxy: Proxy, tmp_path: Path) -> None:
    filled(opened(Space(**BASE), storage).study, Space(**BASE), 60)
    said = on_all_machines(
        proxy.url,
        tmp_path,
        "study = supermax.open_study(changed(warmup=None), storage=url, name='s', quiet=True)\n"
        "print(study.study_name)",
    )
    assert said == ["s@2"] * MACHINES
    study = optuna.load_study(study_name="s@2", storage=storage)
    assert len(by_root(study)) == 60
    assert sorted(t.number for t in study.trials) == list(range(60))
    assert len(optuna.get_all_study_names(storage)) == 2


@pytest.mark.slow
def test_two_spaces_make_two_versions(storage: RDBStorage, proxy: Proxy, tmp_path: Path) -> None:
    filled(opened(Space(**BASE), storage).study, Space(**BASE), 30)
    said = on_all_machines(
        proxy.url,
        tmp_path,
        "warmup = {'type': 'float', 'low': 0.0, 'high': 0.3 + int(action) % 2 / 10}\n"
        "space = changed(warmup=warmup)\n"
        "study = supermax.open_study(space, storage=url, name='s', quiet=True)\n"
        "print(supermax.space.space_of(study) == space, len(study.trials))",
    )
    assert said == ["True 30"] * MACHINES


@pytest.mark.slow
def test_defaults_and_a_warm_start_are_queued_once(
    storage: RDBStorage, proxy: Proxy, tmp_path: Path
) -> None:
    filled(opened(Space(**BASE), storage).study, Space(**BASE), 30)
    said = on_all_machines(
        proxy.url,
        tmp_path,
        "from optuna import load_study\n"
        "warmup = {'type': 'float', 'low': 0.0, 'high': 0.3, 'default': 0.1}\n"
        "space = changed(warmup=warmup)\n"
        "study = supermax.open_study(space, storage=url, name='t', quiet=True)\n"
        "first = enqueue_defaults(study, space)\n"
        "queued, _ = warm_start(study, space, load_study(study_name='s', storage=url), top=5)\n"
        "print(int(first), queued)",
    )
    counts = [tuple(map(int, line.split())) for line in said]
    study = optuna.load_study(study_name="t", storage=storage)
    queued = [t.system_attrs["fixed_params"] for t in study.trials]
    assert sum(first for first, _ in counts) == 1
    assert len(queued) == 6, counts


def test_a_study_that_another_program_keeps_opening_is_named(
    storage: RDBStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration_lock, "_PATIENCE", 1)
    with exclusive(storage, "s"):
        with exclusive(storage, "another"):
            pass
        words = "Another program has been opening the study 's' for 1 seconds"
        with pytest.raises(EnvironmentFault, match=words):
            opened(Space(**BASE), storage)
    assert opened(Space(**BASE), storage).study.study_name == "s"
