"""The fork server is started before torch is loaded."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import pytest
import torch

from supermax._util import system
from supermax.engine.processes import prestart
from supermax.search.settings.model import Settings
from supermax.ui.cli.early import started_early
from tests.few import quick_are
from tests.ui.cli.helping import sm


@pytest.mark.usefixtures("quick", "preloaded")
@pytest.mark.parametrize("workers", quick_are(["auto"], ["1", "auto"]))
def test_a_search_uses_the_fork_server_that_was_started_early(
    workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment that the early start expects is that of the run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(system, "cores", lambda: 2)
    monkeypatch.setattr(system, "count_gpus", torch.cuda.device_count)  # torch may lack CUDA
    monkeypatch.setenv("MIMALLOC_ARENA_RESERVE", "")  # the search sets it here: put back after
    monkeypatch.delenv("MIMALLOC_ARENA_RESERVE")
    began: list[prestart.ForkServerProcess] = []
    plain = prestart.start

    def start(
        env: Mapping[str, str], output: int | IO[bytes] = subprocess.DEVNULL
    ) -> prestart.ForkServerProcess:
        began.append(plain(env, output))
        return began[-1]

    monkeypatch.setattr(prestart, "start", start)
    small = ["--epochs", "1", "--set", "data.posts=60", "--workers", workers]
    sm("tune", "criteria", "--trials", "1", *small, "--no-supervisor")
    assert len(began) == 1


def test_no_early_fork_server_on_a_single_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "cores", lambda: 1)
    with started_early(Settings(agent="criteria", trials=1, epochs=1)):
        assert prestart._waiting == []


def test_the_early_fork_server_limits_threads_on_a_gpu_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(system, "cores", lambda: 16)
    monkeypatch.setattr(system, "count_gpus", lambda: 1)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("MIMALLOC_ARENA_RESERVE", raising=False)
    with started_early(Settings(agent="criteria", trials=1, epochs=1, workers="auto")):
        [started] = prestart._waiting
        assert started.env["OMP_NUM_THREADS"] == "2"
        assert "MIMALLOC_ARENA_RESERVE" not in started.env
