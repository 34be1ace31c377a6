"""Job scripts of `supermax slurm`: their text, wrong input, and when a task is requeued."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from supermax.cluster import slurm_task
from supermax.cluster.database import DatabaseFolder
from supermax.cluster.slurm import JobFolder, parse_time
from supermax.cluster.slurm_task import ArrayTask, is_requeued
from supermax.engine.storage.locks import Lock
from supermax.engine.storage.run_folder import StudyFolder
from supermax.errors import UserError
from tests.cluster.stand_in import JOB, Cluster
from tests.ui.cli.helping import sm

URL = "postgresql+psycopg://me:hunter2@db.example.org/studies"
ARRAY = ("slurm", "criteria", "--nodes", "3", "--time", "12:00:00")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["a\ntouch evil;#", 'say "hi"', "a\x1b[2J"])
def test_names_that_would_leave_their_line_are_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = here / name
    folder.mkdir()
    monkeypatch.chdir(folder)
    said = sm(*ARRAY, "--storage", URL, code=2)
    assert "without control characters and double quotes" in " ".join(said.split())
    assert not list(folder.rglob("job.sh"))


def test_a_storage_among_the_settings_stays_out_of_the_script(here: Path) -> None:
    said = sm(*ARRAY, "--set", f"storage={URL}")
    script = (here / "slurm-criteria" / "job.sh").read_text()
    assert "hunter2" not in script + said
    assert (here / "slurm-criteria" / "storage").read_text() == URL


def test_the_script_runs_an_array_and_holds_no_password(here: Path) -> None:
    more = (
        "--gpus-per-node",
        "4",
        "--partition",
        "gpu",
        "--sbatch",
        "qos=low",
        "--set",
        "epochs=3",
    )
    said = sm(*ARRAY, "--storage", URL, *more)
    job = here / "slurm-criteria"
    script = (job / "job.sh").read_text()
    options = [
        line.removeprefix("#SBATCH --") for line in script.splitlines() if "#SBATCH" in line
    ]
    assert options == [
        *("job-name=criteria", "array=0-2", "nodes=1", "ntasks=1", "time=12:00:00"),
        *("gpus-per-node=4", "requeue", "signal=B:TERM@120", "open-mode=append"),
        *(f"chdir={here}", f"output={job}/logs/%A_%a.log", "partition=gpu", "qos=low"),
    ]
    assert shlex.split(script.splitlines()[-1]) == [
        *("exec", sys.executable, "-P", "-m", "supermax.cluster.slurm_task", str(job), "--gpus"),
        *("--", "criteria", "--set", "epochs=3", "--set", f"checkpoints={job}/checkpoints"),
        *("--workers", "auto"),
    ]
    assert "hunter2" not in script + said
    assert (job / "storage").read_text() == URL
    assert stat.S_IMODE((job / "storage").stat().st_mode) == 0o600
    assert stat.S_IMODE(job.stat().st_mode) == 0o700


def test_the_file_of_a_service_is_found_from_every_shell(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job may be submitted again, and its status asked for, from a shell without the line
    that `supermax database` has printed."""
    monkeypatch.setenv("PGSERVICEFILE", "a b.conf")
    said = sm(*ARRAY, "--storage", "postgresql+psycopg:///?service=mine")
    export = f"PGSERVICEFILE={shlex.quote(str(here / 'a b.conf'))}"
    script = (here / "slurm-criteria" / "job.sh").read_text()
    assert script.splitlines()[-2] == f"export {export}"
    assert f"See all runs: {export} SUPERMAX_STORAGE=" in said
    assert "PGSERVICEFILE" not in sm(*ARRAY, "--storage", URL)
    assert "PGSERVICEFILE" not in (here / "slurm-criteria" / "job.sh").read_text()


def test_the_line_of_an_earlier_job_may_be_set_in_the_shell(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page says to paste it. The same command then writes the same job."""
    first = sm(*ARRAY, "--database", "db")
    script = (here / "slurm-criteria" / "job.sh").read_text()
    (line,) = (text for text in first.splitlines() if "export" in text)
    for pair in shlex.split(line.partition("export ")[2]):
        monkeypatch.setenv(*pair.split("=", 1))
    assert sm(*ARRAY, "--database", "db") == first
    assert (here / "slurm-criteria" / "job.sh").read_text() == script
    assert "PGSERVICEFILE" not in script
    other = sm(*ARRAY, "--database", "another")
    assert "Until then, SUPERMAX_STORAGE names another storage in this shell." in other
    Path("mine.yaml").write_text(f"agent: criteria\nstorage: {URL}\n")
    said = sm("slurm", "mine.yaml", *ARRAY[2:], "--database", "db", code=2)
    assert "but mine.yaml, line 2 names a storage: leave one of them out" in said
    assert "job.sh" in sm(*ARRAY)  # without --database, the line names the storage


def test_the_users_settings_come_first(here: Path) -> None:
    (here / "mine.yaml").write_text(
        f"agent: criteria\nname: my study\nstorage: {URL}\nworkers: 2\n"
        "checkpoints: /elsewhere\ngpus: [0]\n"
    )
    sm("slurm", "mine.yaml", *ARRAY[2:], "--gpus-per-node", "2", "-o", "array.sh")
    command = shlex.split((here / "array.sh").read_text().splitlines()[-1])
    assert command[-3:] == [str(here / "slurm-my study"), "--", str(here / "mine.yaml")]
    assert '#SBATCH --job-name="my study"' in (here / "array.sh").read_text()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("90:30", 5430),
        ("12:00:00", 43200),
        ("2-12", 216_000),
        ("1-0:30", 88_200),
        ("1-00:00:30", 86_430),
    ],
)
def test_times_are_those_of_slurm(text: str, seconds: int) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        *("", "soon", "12h", "-5", "1:2:3:4", "1-", "4", "0:30", "1:99:99", "1:60:00", "90:60"),
        *("1-24", "1-2:60", "٣٠", "９０", "99999999999"),
    ],
)
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"write it as Slurm does|at least 5 minutes"):
        parse_time(text)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--nodes", "0", "--storage", URL), "--nodes"),
        (("--time", "12h", "--storage", URL), "such as 90, 12:00:00"),
        (("--sbatch", "--qos=low", "--storage", URL), "without dashes and spaces"),
        (("--sbatch", "comment=two words", "--storage", URL), "without dashes and spaces"),
        (("--sbatch", "array=0-9", "--storage", URL), "Supermax sets array itself"),
        (("--sbatch", "arr=0-9", "--storage", URL), "the name of the option in full"),
        (("--sbatch", "n=2", "--storage", URL), "the name of the option in full"),
        (("--sbatch", "gpus-per=2", "--storage", URL), "the name of the option in full"),
        (("--sbatch", "time=30", "--storage", URL), "use the option --time instead"),
        (("--sbatch", "gpus-per-node=2", "--storage", URL), "use the option --gpus-per-node"),
        (("--sbatch", "ntasks-per-gpu=1", "--storage", URL), "Supermax sets ntasks-per-gpu"),
        (("--sbatch", "comment=a\x1b[2J", "--storage", URL), "without dashes and spaces"),
        (("--partition", "a b", "--storage", URL), "--partition 'a b': write a name without"),
        (("--account", "", "--storage", URL), "--account '': write a name without spaces"),
        ((), "none is named: add --storage"),
        (("--storage", "study.db"), "study.db is not one: add --storage"),
        (("--storage", "redis://me:hunter2@host"), "redis://***@host is not one"),
        (("--storage", URL, "--database", "db"), "leave one of them out"),
        (("--storage", URL, "--submit"), "sbatch was not found"),
        (("--storage", URL, "--folder", "file"), "cannot be written (File exists). Name another"),
        (("--storage", URL, "--folder", "file/x"), "(Not a directory). Name another folder with"),
        (("--storage", URL, "--output", "no/job.sh"), "Name another file with --output."),
        (("--storage", URL, "--output", "."), "Name another file with --output."),
        (("--database", "file"), "cannot be written (Not a directory). Name another folder."),
        (("--storage", URL, "--set", "epochs=no"), "whole number"),
    ],
)
def test_wrong_input_is_one_sentence(
    here: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], words: str
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    (here / "file").touch()
    said = sm(*ARRAY, *args, code=2)
    assert words in " ".join(said.split())
    assert "hunter2" not in said


def test_a_folder_of_the_user_keeps_its_permissions(here: Path) -> None:
    (here / "notes.csv").touch(0o644)
    here.chmod(0o755)
    sm(*ARRAY, "--storage", URL, "--folder", ".")
    assert stat.S_IMODE(here.stat().st_mode) == 0o755
    assert stat.S_IMODE((here / "notes.csv").stat().st_mode) == 0o644
    assert stat.S_IMODE((here / "storage").stat().st_mode) == 0o600
    assert stat.S_IMODE((here / "logs").stat().st_mode) == 0o700


@pytest.mark.parametrize("target", ["all", "notes.csv"])
def test_a_target_that_tasks_cannot_share_is_refused(target: str) -> None:
    assert "name one agent, or a YAML file" in sm("slurm", target, *ARRAY[2:], code=2)


def test_what_sbatch_refuses_is_shown(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Cluster(here / "cluster").bin), prepend=":")
    said = sm(*ARRAY, "--storage", URL, "--partition", "REFUSED", "--submit", code=3)
    assert "sbatch refused" in said
    assert "invalid partition specified" in said
    assert "Submitted as job 7." in sm(*ARRAY, "--storage", URL, "--submit")


def test_a_job_without_an_id_was_not_submitted(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sbatch --test-only exits with 0."""
    program = here / "sbatch"
    program.write_text("#!/bin/sh\necho Job 5 to start at 12:00 >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(here), prepend=":")
    said = sm(*ARRAY, "--storage", URL, "--sbatch", "test-only", "--submit", code=3)
    assert "It said: Job 5 to start at 12:00." in " ".join(said.split())


@pytest.mark.parametrize(
    ("code", "state", "database_lost", "expected"),
    [
        (0, "RUNNING", False, False),
        (130, "RUNNING", False, True),
        (143, "RUNNING", False, True),
        (143, "COMPLETING", False, False),  # cancelled, or requeued by Slurm
        (143, "unknown", False, False),
        (5, "RUNNING", False, False),  # the user's own --timeout
        (3, "RUNNING", False, False),
        (3, "RUNNING", True, True),
        (4, "RUNNING", True, False),
    ],
)
def test_a_task_is_requeued_if_it_was_interrupted(
    code: int, state: str, database_lost: bool, expected: bool
) -> None:
    assert is_requeued(code, state, database_lost=database_lost) is expected


@pytest.mark.parametrize(
    ("limit", "first_task_is_queued"),
    [("_GIVE_WAY", True), ("_DATABASE_PATIENCE", False)],
)
def test_a_task_without_the_database_is_requeued_while_that_may_come_back(
    here: Path, limit: str, *, first_task_is_queued: bool
) -> None:
    cluster = Cluster(here / "cluster")
    DatabaseFolder(here / "db").create()
    if first_task_is_queued:
        (cluster.folder / "state-0").write_text("PENDING")
    (cluster.folder / "state-1").write_text("RUNNING")
    program = f"from supermax.cluster import slurm_task as s; s.{limit} = 0; s.main()"
    task = {"SLURM_ARRAY_JOB_ID": JOB, "SLURM_ARRAY_TASK_ID": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, "job", "--database", "db", "--", "criteria"],
        env={**os.environ, **task, "PATH": f"{cluster.bin}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "The database in db does not answer." in done.stderr
    assert (cluster.folder / "requeue-1").exists() is first_task_is_queued
    assert ("is requeued" in done.stderr) is first_task_is_queued


@pytest.mark.parametrize("seconds_ago", [1, 1000])
def test_a_run_that_gave_up_when_the_database_came_back_is_requeued(
    monkeypatch: pytest.MonkeyPatch, here: Path, seconds_ago: int
) -> None:
    cluster = Cluster(here / "cluster")
    monkeypatch.setenv("PATH", str(cluster.bin), prepend=":")
    (cluster.folder / "state-0").write_text("RUNNING")
    monkeypatch.setattr(slurm_task.Runner, "_answers", lambda _: True)
    monkeypatch.setattr(slurm_task, "StopNotice", object)
    runner = slurm_task.Runner(ArrayTask(JOB, 1), JobFolder(here), here / "db")
    runner._away_at = time.monotonic() - seconds_ago
    assert runner._database_lost() is (seconds_ago == 1)


def test_a_task_that_a_lost_node_still_runs_takes_another_folder(
    monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    monkeypatch.setattr(slurm_task, "StopNotice", object)
    runner = slurm_task.Runner(ArrayTask(JOB, 1), JobFolder(here), None)
    usual = here / "runs" / f"{JOB}_1"
    running = Lock(StudyFolder(usual).lock, "study")
    assert runner._run_dir() == here / "runs" / f"{JOB}_1-1"
    running.release()
    assert runner._run_dir() == usual


def test_outside_of_an_array_the_task_says_so(here: Path) -> None:
    command = [sys.executable, "-m", "supermax.cluster.slurm_task", "job", "--", "criteria"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "submit the job script with sbatch" in done.stderr) == (3, True)
