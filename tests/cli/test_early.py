"""The process that cells are forked from is started before torch is loaded."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import pytest
import torch

from supermax.cli.early import started_early
from supermax.engine import kernel, standby
from supermax.settings.model import Settings
from tests.cli.helping import sm


@pytest.mark.parametrize("workers", ["1", "auto"])
def test_a_search_takes_the_process_that_was_started_early(
    workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the early start expects of the environment is what the run asks for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kernel, "cores", lambda: 2)
    monkeypatch.setattr(kernel, "gpus", torch.cuda.device_count)  # torch may be built without
    monkeypatch.setenv("MIMALLOC_ARENA_RESERVE", "")  # the search sets it here: put back after
    monkeypatch.delenv("MIMALLOC_ARENA_RESERVE")
    began: list[standby.KeeperProcess] = []
    plain = standby.start

    def start(
        env: Mapping[str, str], output: int | IO[bytes] = subprocess.DEVNULL
    ) -> standby.KeeperProcess:
        began.append(plain(env, output))
        return began[-1]

    monkeypatch.setattr(standby, "start", start)
    small = ["--epochs", "1", "--set", "data.posts=60", "--workers", workers]
    sm("tune", "criteria", "--trials", "1", *small, "--no-supervisor")
    assert len(began) == 1


def test_one_core_gains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "cores", lambda: 1)
    with started_early(Settings(agent="criteria", trials=1, epochs=1)):
        assert standby._waiting == []


def test_the_early_process_shares_the_cores_of_a_gpu_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "cores", lambda: 16)
    monkeypatch.setattr(kernel, "gpus", lambda: 1)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("MIMALLOC_ARENA_RESERVE", raising=False)
    with started_early(Settings(agent="criteria", trials=1, epochs=1, workers="auto")):
        [started] = standby._waiting
        assert started.env["OMP_NUM_THREADS"] == "2"
        assert "MIMALLOC_ARENA_RESERVE" not in started.env
