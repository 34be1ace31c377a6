"""The user's frame in real tracebacks and in real stacks of faulthandler."""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from pathlib import Path

import supermax
from supermax.engine.trial.outcome import describe
from supermax.engine.trial.stacks import Frame, is_users, own_frame


def broken() -> None:
    json.loads("{")  # raised in Python's own library


def line_of(function: object) -> int:
    return int(function.__code__.co_firstlineno)  # type: ignore[attr-defined]


def test_frames_of_libraries_are_not_the_users() -> None:
    try:
        broken()
    except ValueError as error:
        raised, text = describe(error), "".join(traceback.format_exception(error))
    assert raised.where == f"{__file__}:{line_of(broken) + 1}"
    found = own_frame(text)
    assert found is not None
    assert (found.file, found.line, found.function) == (__file__, line_of(broken) + 1, "broken")
    assert found.code.startswith('json.loads("{")')
    assert own_frame("no frame at all") is None
    for file in (json.__file__, "/v/lib/python3.12/site-packages/torch/x.py", "<frozen runpy>"):
        assert not is_users(file)
    assert is_users("/home/me/library/python/mine.py")


def test_frames_of_this_package_are_not_the_users() -> None:
    package = Path(supermax.__file__).parent
    for file in package / "run.py", package / "engine" / "ranking.py":
        assert not is_users(str(file))


def test_stack_of_a_crash_is_read_most_recent_call_first(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import faulthandler, json, os, signal\n"
        "faulthandler.enable()\n"
        "def deep(pairs):\n"
        "    os.kill(os.getpid(), signal.SIGSEGV)\n"
        "def objective():\n"
        "    json.loads('{}', object_pairs_hook=deep)\n"
        "objective()\n"
    )
    done = subprocess.run([sys.executable, program], stderr=subprocess.PIPE, text=True)
    log = f'  File "/home/me/elsewhere.py", line 1, in before\n{done.stderr}'
    assert own_frame(log) == Frame(str(program), 4, "deep")
