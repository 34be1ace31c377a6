"""Helpers that run the command line, and a folder in which its examples run."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import click
import typer

import supermax
from supermax.ui.cli import app, main

PROGRAM = """
import os, signal

def objective(trial):
    x = trial.suggest_float("x", 0, 1)
    for step in range(3):
        trial.report(x + step, step)
    if trial.number == 1:
        raise ValueError("never works with [x] = %.3f" % x)
    if trial.number == 2 and trial.attempt == 1:
        print("last words \\x1b[31m in red")
        os.kill(os.getpid(), signal.SIGSEGV)
    return x
"""
QUESTION = "Does the person sleep badly?"


_get_command = typer.main.get_command


@functools.cache
def command_of(program: typer.Typer) -> click.Command:
    """Return the command of a program. Typer builds it for each call, which takes a while."""
    return _get_command(program)


def sm(*args: str, code: int = 0) -> str:
    """Run `supermax ARGS` in this process; return its output and errors together."""
    out = io.StringIO()
    before = sys.argv
    sys.argv = ["supermax", *args]
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(out),
            mock.patch.object(typer.main, "get_command", command_of),
        ):
            main()
        found = 0
    except SystemExit as end:
        found = int(end.code or 0)
    finally:
        sys.argv = before
    assert found == code, f"{args}: {found}\n{out.getvalue()}"
    return out.getvalue()


def started(*args: str, code: int = 0) -> str:
    """Run `supermax ARGS` in a child process; return its output."""
    done = subprocess.run(
        [sys.executable, "-m", "supermax", *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == code, f"{args}: {done.returncode}\n{done.stdout}"
    return done.stdout


def table(path: Path, rows: int = 60) -> None:
    """Write a CSV file with column names of its own."""
    bad = ("could not fall asleep", "was awake until dawn", "lay awake for hours")
    good = ("slept like a stone", "went for a walk", "cooked a large dinner")
    lines = ["patient,what was said,asked,verdict"]
    for i in range(rows):
        words = (bad if i % 3 == 0 else good)[i % 3 if i % 3 else (i // 3) % 3]
        lines.append(f"p{i},I {words} on day {i},{QUESTION},{'yes' if i % 3 == 0 else 'no'}")
    path.write_text("\n".join(lines) + "\n")


def make_playground(folder: Path) -> None:
    """Make a folder as it is after a first search and a refit."""
    with inside(folder):
        table(folder / "notes.csv")
        sm("init", "notes.csv")
        settings = (folder / "notes.yaml").read_text()
        (folder / "notes.yaml").write_text(settings + "trials: 2\nepochs: 1\n")
        small = ("--set", "data.posts=60", "--set", "epochs=2", "--set", "seed=1")
        sm("tune", "criteria", "--trials", "3", *small, "--no-supervisor")
        sm("refit", "criteria", "--seeds", "1")


def add_plain_study(folder: Path) -> None:
    """Add a program without torch, and its study with an exception and a crash."""
    with inside(folder):
        (folder / "program.py").write_text(PROGRAM)
        names: dict[str, Any] = {}
        exec(compile(PROGRAM, folder / "program.py", "exec"), names)
        study = supermax.open_study(
            supermax.space.loads("name: plain\nparameters: {x: {type: float, low: 0, high: 1}}"),
            storage="study.db",
            quiet=True,
        )
        supermax.optimize(study, names["objective"], n_trials=4, progress=False)


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@functools.cache
def commands() -> dict[str, click.Command]:
    """Return every command by its full name."""
    found: dict[str, click.Command] = {}

    def walk(command: Any, words: tuple[str, ...]) -> None:
        for name, inner in getattr(command, "commands", {}).items():
            walk(inner, (*words, name))
        if not getattr(command, "commands", None):
            found[" ".join(words)] = command

    walk(command_of(app), ())
    return found


def examples(command: click.Command) -> list[str]:
    text = command.callback.__doc__ or "" if command.callback else ""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line.removeprefix("Example:").removeprefix("Examples:").strip() for line in lines]
    return [line for line in lines if line.startswith("supermax ")]
