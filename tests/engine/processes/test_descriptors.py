"""Limit on open files: raised where possible, otherwise reported with advice."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from supermax.engine.processes import descriptors
from tests.users import as_somebody

SCRIPT = """
import optuna, supermax, sys
study = optuna.create_study(storage=sys.argv[1], study_name="s", load_if_exists=True)
done = supermax.optimize(study, lambda trial: 1.0, 6, workers=4, progress=False)
print(done.finished, done.faults)
"""

EXACTLY = """
import resource
from supermax.engine.processes import descriptors
needed = descriptors._open_now() + descriptors._RUN + 4 * descriptors._CELL
resource.setrlimit(resource.RLIMIT_NOFILE, (needed, needed))
"""


def started(shell: str, tmp_path: Path, before: str = "") -> str:
    """Return the output of the program, started after the shell command `shell`. `before`: code
    that it runs before the search."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("done =", f"{before}\ndone =", 1))
    words = f'{shell} && exec "$0" "$@"'
    done = subprocess.run(
        ["bash", "-c", words, sys.executable, script, f"sqlite:///{tmp_path}/s.db"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout.strip() or done.stderr


def refusal(workers: int, limit: int) -> str:
    """Return the message for a user who cannot raise the limit."""

    def check() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        descriptors.check_descriptors(workers)

    return as_somebody(check)


@pytest.mark.slow
def test_low_soft_limit_is_raised(tmp_path: Path) -> None:
    assert started("ulimit -S -n 20", tmp_path) == "6 {}"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 200])
def test_advice_for_a_low_hard_limit_works(workers: int, tmp_path: Path) -> None:
    said = refusal(workers, 20)
    assert "EnvironmentFault: A run with" in said
    assert "the limit of this process is 20." in said
    (advice,) = re.findall(r"`(ulimit -n \d+)`", said)
    limit = int(advice.split()[-1])
    assert refusal(workers, limit) == "None"
    if workers == 1:
        assert started(advice, tmp_path) == "6 {}"


@pytest.mark.slow
def test_required_limit_is_sufficient(tmp_path: Path) -> None:
    """A run works with exactly the number of descriptors that the message names."""
    assert started("true", tmp_path, before=EXACTLY) == "6 {}"


def test_descriptor_exhaustion_during_a_run_is_reported() -> None:
    def start() -> None:
        with descriptors.describe_limit("A cell"):
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
            os.pipe()

    said = as_somebody(start)
    assert "A cell cannot be started (Too many open files). Type `ulimit -n" in said
