"""Run files are private to their owner and contain no passwords."""

from __future__ import annotations

import json
import os
import platform
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import FrozenTrial
from sqlalchemy.engine import make_url

import supermax
from supermax._util.files import make_private
from supermax.engine.storage.locations import find_location
from supermax.engine.storage.run_folder import StudyFolder
from supermax.memory.measurements import default_folder
from supermax.results.records import read_record
from tests import ROOT
from tests.users import SOMEBODY, as_somebody, common_folder, needs_root

pytestmark = pytest.mark.usefixtures("quick")
SECRET = "s3cr3t"


def chatty(trial: Any) -> float:
    (trial.checkpoint_dir / "state").write_text("x")
    (trial.checkpoint_dir / "deeper").mkdir()
    print("hello", flush=True)
    trial.report(1.0, 0)
    return 1.0


def run(study: optuna.Study, n_trials: int = 2, **options: Any) -> supermax.Summary:
    objective = options.pop("objective", chatty)
    return supermax.optimize(study, objective, n_trials, progress=False, **options)


def open_to_others(folder: Path) -> list[str]:
    found = [folder, *folder.rglob("*")]
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in found if path.exists()}
    return [f"{path} {mode:o}" for path, mode in modes.items() if mode & 0o077]


@pytest.fixture(params=[0o000, 0o022])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("where", [None, "a/b/run"])
def test_run_files_are_private(study: optuna.Study, tmp_path: Path, where: str | None) -> None:
    meanwhile: list[str] = []
    run_dir = None if where is None else tmp_path / where
    top = tmp_path / ("study.db.supermax" if where is None else "a")

    def look(_: optuna.Study, trial: FrozenTrial) -> None:
        meanwhile.extend(open_to_others(top))

    done = run(study, run_dir=run_dir, callbacks=[look])
    assert {path.name for path in done.run_dir.iterdir()} >= {"run.json", "status.json", "trials"}
    assert meanwhile == []
    assert open_to_others(top) == []


def test_existing_run_folder_is_made_private(study: optuna.Study, tmp_path: Path) -> None:
    folder = run(study).run_dir
    top = tmp_path / "study.db.supermax"
    outside = tmp_path / "shared.txt"
    outside.write_text("x")
    outside.chmod(0o644)
    (folder / "trials" / "00000" / "checkpoint" / "link").symlink_to(outside)
    (folder / "trials" / "00000" / "checkpoint" / "name").hardlink_to(outside)
    for path in (top, *top.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o777 if path.is_dir() else 0o644)
    run(study, 3)
    assert [text for text in open_to_others(top) if "/link" not in text] == [
        f"{folder}/trials/00000/checkpoint/name 644"
    ]
    assert stat.S_IMODE(outside.stat().st_mode) == 0o644


def test_files_that_are_not_of_the_run_keep_their_permissions(
    study: optuna.Study, tmp_path: Path
) -> None:
    """`run_dir` may be the user's project folder."""
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    for name in ("train.py", "status.py", "data/x"):
        (project / name).write_text("")
        (project / name).chmod(0o644)
    project.chmod(0o755)
    for n_trials in (1, 2):
        run(study, n_trials, run_dir=project)
    opened = {path.split(" ")[0].removeprefix(str(project)) for path in open_to_others(project)}
    assert opened == {"", "/data", "/data/x", "/train.py", "/status.py"}


@needs_root
def test_other_users_cannot_read_a_run() -> None:
    with common_folder(0o755) as folder:
        study = optuna.create_study(storage=f"sqlite:///{folder}/study.db", study_name="s")
        run_dir = run(study).run_dir
        for name in ("status.json", "run.json", "trials/00000/ledger.jsonl", ""):
            path = run_dir / name
            assert "PermissionError" in as_somebody(path.stat)
        assert str(SOMEBODY) in as_somebody(
            lambda: read_record(study).run_dir
        )  # the study can be read


@needs_root
def test_a_run_folder_that_another_user_planted_is_refused() -> None:
    with common_folder() as folder:
        study = optuna.create_study(storage=f"sqlite:///{folder}/study.db", study_name="s")
        planted = folder / f"study.db.supermax-{os.geteuid()}"

        def plant() -> None:
            os.umask(0)
            (folder / "study.db.supermax").mkdir()
            (planted / "s" / "trials" / "00000").mkdir(parents=True)

        assert as_somebody(plant) == "None"
        with pytest.raises(
            supermax.EnvironmentFault, match=f"belongs to .* {SOMEBODY}, who could"
        ):
            run(study)
        assert not study.trials
        assert run(study, run_dir=folder / "mine").run_dir == folder / "mine"  # as it says
        shutil.rmtree(planted)
        assert run(study, 2).run_dir == planted / "s"
        assert planted.stat().st_uid == os.geteuid()


@needs_root
def test_root_resumes_a_study_of_another_user_in_its_run_folder() -> None:
    with common_folder() as folder:
        url = f"sqlite:///{folder}/study.db"

        theirs = folder / "study.db.supermax" / "s"

        def begin() -> None:
            optuna.create_study(storage=url, study_name="s")
            theirs.mkdir(0o700, parents=True)

        assert as_somebody(begin) == "None"
        assert run(optuna.load_study(storage=url, study_name="s")).run_dir == theirs
        assert (theirs / "trials" / "00000").is_dir()


@needs_root
def test_a_link_that_another_user_planted_is_refused() -> None:
    with common_folder(0o777) as folder:  # not sticky: the kernel follows anybody's links there
        mine = folder / "mine"
        mine.mkdir()
        (mine / "file").touch(0o644)
        mine.chmod(0o755)
        cache = folder / "supermax-cache"
        assert as_somebody(lambda: cache.symlink_to(mine)) == "None"
        with pytest.raises(supermax.EnvironmentFault, match="Have it removed"):
            make_private(cache)
        assert (mine / "file").stat().st_mode & 0o777 == 0o644


@needs_root
def test_a_cache_that_another_user_planted_is_refused() -> None:
    with common_folder() as folder:
        tokens = folder / "supermax-cache" / "tokens"
        assert as_somebody(lambda: tokens.mkdir(parents=True)) == "None"
        with pytest.raises(supermax.EnvironmentFault, match="Have it removed"):
            make_private(tokens)
    with common_folder(0o755) as folder:  # somebody's own place, to which this user has come
        home = folder / "home"
        home.mkdir()
        os.chown(home, SOMEBODY, SOMEBODY)
        tokens = home / "supermax-cache" / "tokens"
        assert as_somebody(lambda: tokens.mkdir(parents=True)) == "None"
        make_private(tokens)


class Elsewhere(BaseJournalBackend):
    """Journal backend with the address of a server."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._logs: list[dict[str, Any]] = []

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        return iter(self._logs[log_number_from:])

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self._logs.extend(json.loads(json.dumps(logs)))


URLS = [
    f"redis://bob:{SECRET}@host:6379/0",
    f"redis://:{SECRET}@host:6379/0",
    *(
        f"redis://host/0?{name}={SECRET}&db=1"
        for name in ("password", "passwd", "pwd", "sslpassword", "token", "auth_token", "api_key")
    ),
]


@pytest.mark.parametrize("url", URLS)
def test_passwords_of_addresses_are_not_stored(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    study = optuna.create_study(storage=JournalStorage(Elsewhere(url)), study_name="s")

    def objective(trial: Any) -> float:
        raise ValueError(f"cannot connect to {url}")

    def raises(_: optuna.Study, trial: FrozenTrial) -> None:
        raise ValueError(f"no answer from {url}")

    with pytest.raises(ValueError, match="no answer"):
        run(study, objective=objective, callbacks=[raises])
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"run.json", "status.json", "ledger.jsonl"} <= {path.name for path in files}
    leaks = [p for p in files if p.name != "log.txt" and SECRET in p.read_text(errors="replace")]
    assert leaks == []
    assert SECRET not in str(study.trials[0].user_attrs)


def at(url: str) -> optuna.Study:
    storage = RDBStorage.__new__(RDBStorage)  # no such server answers
    storage.engine = SimpleNamespace(url=make_url(url), name="postgresql")
    return SimpleNamespace(_storage=storage, study_name="s")  # type: ignore[return-value]


def test_a_folder_that_was_named_after_a_password_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    url = "postgresql://bob:x@host/db?sslmode=require"
    plain = find_location(at(url))
    assert plain.run_dir.parents[2].name == "8ef2cffbd463"  # as it always was
    secret = find_location(at(f"{url}&password={SECRET}"))
    assert SECRET not in secret.address
    assert secret.run_dir == find_location(at(f"{url}&password=other")).run_dir
    older = tmp_path / "supermax" / "0879221196b5"
    older.mkdir(parents=True)
    found = find_location(at(f"{url}&password={SECRET}")).run_dir
    assert found == older / "s" / "hosts" / platform.node()
    identity, used = "0" * 32, StudyFolder(older / "s")
    used.open(identity, "s", "postgresql")  # as a run of an earlier version on this machine
    assert find_location(at(f"{url}&password={SECRET}")).run_dir == older / "s"


@needs_root
def test_a_user_without_a_home_can_still_name_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for look in (lambda: find_location(at("postgresql://host/db")).run_dir, default_folder):
        assert as_somebody(look).startswith("/nonexistent/")


@pytest.mark.slow
@pytest.mark.parametrize("home", ["/dev/null/x", None])
def test_a_home_that_cannot_be_written_does_not_matter(tmp_path: Path, home: str | None) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import optuna, supermax, sys\n"
        "from optuna.storages import JournalStorage\n"
        "from tests.engine.storage.test_privacy import Elsewhere\n"
        "study = optuna.create_study(storage=JournalStorage(Elsewhere('x')), study_name='s')\n"
        "where = dict(run_dir=sys.argv[1]) if len(sys.argv) > 1 else {}\n"
        "try:\n"
        "    print(supermax.optimize(study, lambda t: 1.0, 2, progress=False, **where).finished)\n"
        "except supermax.EnvironmentFault as fault:\n"
        "    print(fault)\n"
    )
    names = ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    path = os.pathsep.join([str(ROOT), *sys.path])
    environment |= {"PYTHONPATH": path} | ({"HOME": home} if home else {})

    def started(*given: str, **more: str) -> str:
        command = [sys.executable, str(script), *given]
        done = subprocess.run(
            command, env={**environment, **more}, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert started(str(tmp_path / "run")) == "2"
    if home is not None:
        said = started()
        assert "run_dir" in said
        assert "XDG_DATA_HOME" in said
        assert started(XDG_DATA_HOME=str(tmp_path / "data")) == "2"
