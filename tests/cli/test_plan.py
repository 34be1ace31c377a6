"""What `supermax tune` says before its first trial: at once, and so that it can be read."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from supermax.planning import folded

LONG = [
    "Search      criteria into the study 'criteria' in /somewhere/with/a/long-name/supermax.db",
    "Encoders    " + ", ".join(f"encoder-number-{i}" for i in range(12)),
    "            another line of the same",
]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_plan_is_broken_between_words_and_set_in(width: int) -> None:
    lines = folded(LONG, width)
    assert all(len(line) <= width or " " not in line.strip() for line in lines)
    assert " ".join(" ".join(lines).split()) == " ".join(" ".join(LONG).split())
    heads = [line for line in lines if not line.startswith(" " * 12)]
    assert [head.split()[0] for head in heads] == ["Search", "Encoders"]
    assert folded(LONG, 10) == LONG


def test_the_first_line_comes_before_anything_is_loaded(tmp_path: Path) -> None:
    """torch is what takes its time; here it never comes."""
    (tmp_path / "torch.py").write_text("raise SystemExit(2)\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "supermax", "tune", "criteria"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.splitlines()[0].startswith("[supermax] Starting.")
    assert done.stderr.count("Starting.") == 1


@pytest.mark.slow
def test_a_plan_fits_the_terminal_and_is_whole_in_a_pipe(tmp_path: Path) -> None:
    data = ("--set", "data.posts=60", "--set", "epochs=1", "--trials", "1")
    command = [sys.executable, "-m", "supermax", "tune", "criteria", *data, "--no-supervisor"]
    piped = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    (long,) = [line for line in piped.stdout.splitlines() if line.startswith("Data")]
    assert len(long) > 60
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": "60"},
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            said += os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
    assert process.wait(60) == 0
    lines = said.decode().split("Best so far")[0].splitlines()
    assert max(map(len, lines)) <= 60
    assert " ".join(long.split()) in " ".join(" ".join(lines).split())
    os.close(ours)
