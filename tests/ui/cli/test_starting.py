"""However the tests are started, they start their programs alike, and clean up after them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.conftest import ignoring

INHERITED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1)
SAYS_HOW_IT_WAS_STARTED = """
import signal
print([s.name for s in signal.Signals if signal.getsignal(s) is signal.SIG_IGN])
print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
"""
LEAKS = """
import gc, subprocess, sys, tests.conftest
tests.conftest.PATIENCE = 0.1

def test_leaks():
    gc.disable()
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    cycle = [subprocess.Popen(command, stdout=subprocess.PIPE)]
    cycle.append(cycle)

def test_is_not_to_blame():
    gc.enable()
    gc.collect()
"""


def pytest_run(*arguments: str, before: list[str]) -> subprocess.CompletedProcess[str]:
    """Run pytest independently of this run."""
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    del environment["SUPERMAX_TEST_WORKER"]
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    return subprocess.run(
        [*before, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_children_start_with_default_signals() -> None:
    child = [sys.executable, "-c", SAYS_HOW_IT_WAS_STARTED]
    said = subprocess.run(child, capture_output=True, text=True, check=True).stdout
    assert said == "['SIGPIPE', 'SIGXFSZ']\n[]\n"  # which Python itself ignores


@pytest.mark.slow
@pytest.mark.parametrize(
    ("blocked", "workers"),
    [
        pytest.param(False, (), id="ignored-alone"),
        pytest.param(True, ("-n", "1"), id="blocked-xdist"),
        pytest.param(True, (), id="blocked-alone", marks=pytest.mark.slow),
        pytest.param(False, ("-n", "1"), id="ignored-xdist", marks=pytest.mark.slow),
    ],
)
def test_children_of_a_run_without_default_signals_start_with_them(
    blocked: bool, workers: tuple[str, ...]
) -> None:
    """As `nohup make test &` starts it, in a script."""
    name = test_children_start_with_default_signals.__name__
    before = ignoring(*INHERITED, signal.SIGCHLD, blocked=blocked)
    done = pytest_run(f"{Path(__file__).relative_to(ROOT)}::{name}", *workers, before=before)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_a_process_left_running_fails_the_test_that_started_it(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(LEAKS)
    options = ("-c", os.devnull, "-W", "error", "-p", "tests.conftest", "--rootdir", str(tmp_path))
    done = pytest_run(*options, str(tmp_path / "test_two.py"), before=[])
    assert "Failed: left running: {" in done.stdout
    assert re.search(r"ERROR .*::test_leaks\b", done.stdout)
    assert "2 passed, 1 error" in done.stdout
