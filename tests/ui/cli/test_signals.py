"""Real signals, one or hundreds of them, from the start of the program to its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from tests import ROOT
from tests.conftest import eventually, ignoring
from tests.ui.cli.helping import inside, sm
from tests.ui.cli.test_supervisor import PROGRAM, RUNNER, WAITS

SCRIPT = "from supermax.__main__ import main; main()"
ENTRIES = (["-m", "supermax"], ["-c", SCRIPT])
# Stands in for a part of what is imported, and takes its time.
# Short sleeps: a signal that comes just before a long one would be handled after it.
SLOW_IMPORT = """
import pathlib, time
pathlib.Path("importing").touch()
for _ in range(600):
    time.sleep(0.1)
"""
DOCUMENTED = {0, 130, 143}


def test_the_script_is_the_module_that_heeds_signals_while_it_imports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"supermax": "supermax.__main__:main"}


@pytest.mark.parametrize("entry", ENTRIES, ids=["module", "script"])
@pytest.mark.parametrize(
    ("signum", "code", "words"),
    [
        (signal.SIGINT, 130, "Interrupted."),
        (signal.SIGTERM, 143, "Ended."),
        (signal.SIGHUP, 143, "Ended."),
    ],
)
def test_a_signal_during_imports_exits_with_a_message(
    tmp_path: Path, entry: list[str], signum: int, code: int, words: str
) -> None:
    (tmp_path / "typer.py").write_text(SLOW_IMPORT)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, *entry, "tune", "criteria"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert eventually((tmp_path / "importing").exists)
    process.send_signal(signum)
    assert process.communicate(timeout=30)[1] == f"{words}\n"
    assert process.returncode == code


def test_signals_ignored_from_the_start_stay_so_during_the_imports(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text(SLOW_IMPORT)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [*ignoring(signal.SIGHUP, signal.SIGINT), sys.executable, "-m", "supermax", "best"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert eventually((tmp_path / "importing").exists)
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        process.send_signal(signum)
    assert process.communicate(timeout=30)[1] == "Ended.\n"
    assert process.returncode == 143


def test_many_signals_during_imports_exit_with_one_message(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text(SLOW_IMPORT)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "supermax", "best"],
            cwd=tmp_path,
            stderr=said,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
    assert eventually((tmp_path / "importing").exists)
    assert storm(process, signal.SIGINT) == 130
    assert (tmp_path / "said").read_text() == "Interrupted.\n"


@pytest.mark.parametrize("words", ["", "The run was ended at once. Call again to go on."])
def test_ctrl_c_in_a_command_exits_with_a_message(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt(*([words] if words else []))

    for place in ("opening", "study"):
        monkeypatch.setattr(f"supermax.ui.cli.{place}.existing", interrupted)
    for command in (("best",), ("study", "list")):
        assert sm(*command, code=130) == f"{words or 'Interrupted.'}\n"


@pytest.mark.parametrize("entry", ENTRIES, ids=["module", "script"])
def test_a_deleted_working_directory_exits_with_a_message(
    tmp_path: Path, entry: list[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = [sys.executable, *entry, "best"]
    with inside(gone):
        gone.rmdir()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith("The working directory is gone")
    assert done.stderr.count("\n") == 1


def storm(process: subprocess.Popen[str], signum: int, pause: float = 0.0) -> int:
    """Send signals as fast as possible until the process has ended."""
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        process.send_signal(signum)
        time.sleep(pause)
    process.communicate(timeout=30)
    return process.returncode


@pytest.mark.parametrize("signum", [signal.SIGHUP, signal.SIGTERM])
def test_many_signals_do_not_change_the_exit_code_of_a_supervisor(
    tmp_path: Path, signum: int
) -> None:
    slowly = WAITS.replace("sys.exit(130)", "time.sleep(0.3); os._exit(143)")
    (tmp_path / "program.py").write_text(PROGRAM + slowly)
    # What Python puts away at its end takes longer where much is loaded.
    lasting = "import atexit, time\natexit.register(time.sleep, 0.3)\n" + RUNNER
    process = subprocess.Popen(
        [sys.executable, "-c", lasting], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    assert eventually((tmp_path / "ready").exists)
    assert storm(process, signum) == 143


@pytest.mark.slow
@pytest.mark.parametrize("supervisor", ["--supervisor", "--no-supervisor"])
@pytest.mark.parametrize("signum", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("after", [0.3, 3.0, 8.0, 14.0])
def test_many_signals_at_any_moment_end_a_search_with_a_documented_exit_code(
    tmp_path: Path, signum: int, after: float, supervisor: str
) -> None:
    small = ("--trials", "3", "--set", "epochs=1", "--set", "data.posts=60")
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "supermax", "tune", "criteria", *small, supervisor],
            cwd=tmp_path,
            stdout=said,
            stderr=said,
            text=True,
        )
    time.sleep(after)
    code = storm(process, signum, pause=0.001)
    assert (128 - code if code < 0 else code) in DOCUMENTED
    assert "Traceback" not in (tmp_path / "said").read_text()


@pytest.mark.slow
def test_files_of_the_working_directory_are_not_imported(tmp_path: Path) -> None:
    """`python -m` puts the working directory first, and data often lies beside scripts."""
    (tmp_path / "csv.py").write_text("raise SystemExit('not this one')")
    command = [sys.executable, "-m", "supermax", "--version"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_search_continues_when_its_output_pipe_is_closed(tmp_path: Path) -> None:
    """`supermax tune … 2>&1 | head -1`."""
    search = [
        "tune",
        "criteria",
        "--trials",
        "1",
        "--epochs",
        "1",
        "--set",
        "data.posts=60",
        "--storage",
        "s.db",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "supermax", *search],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(200) == 0
