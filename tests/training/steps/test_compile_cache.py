"""Cache of compiled code on disk, used by several processes at once, with torch's own compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch._dynamo.utils import counters

from supermax.training.loop import train
from supermax.training.steps.compilation import Compiler
from supermax.training.steps.cuda_graphs import CudaGraphExecutor
from supermax.training.steps.executors import EagerExecutor
from tests.training.corpora import Quiet, config, ready
from tests.training.eager_backend import EagerBackend
from tests.training.steps.test_cuda_graphs import SILENT

BERT = {**SILENT, "encoder": {**SILENT["encoder"], "name": "tiny-bert"}}


PROGRAM = "from tests.training.steps.test_compile_cache import trained; trained({!r}, {!r})"


def trained(folder: str, cache: str) -> None:
    """Train a tiny encoder with compiled layers; print its losses and the hits of the cache."""
    prepared = ready(Path(folder), config(**BERT, train={"epochs": 2}))
    prepared.step.execution = replace(prepared.step.execution, compiled=True)
    compiler = Compiler()
    compiler.folder = Path(cache)
    eager = EagerExecutor(prepared.step, prepared.train, prepared.pads)
    executor = CudaGraphExecutor(eager, EagerBackend(), compiler)
    result = train(replace(prepared, executor=executor), Quiet())
    hits = counters["inductor"]["fxgraph_cache_hit"]
    hits += counters["aot_autograd"]["autograd_cache_hit"]
    losses = [row["train_loss"] for row in result.curve]
    print(json.dumps({"losses": losses, "how": executor.how, "hits": hits}))


def started(folder: Path, cache: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(str(folder), str(cache))],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )


def printed(process: subprocess.Popen[str]) -> Any:
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    return json.loads(output.splitlines()[-1])


@pytest.mark.slow
def test_processes_share_the_cache_of_compiled_code(tmp_path: Path) -> None:
    """Three processes compile the same layers at the same moment; a later one finds the code."""
    plain = ready(tmp_path / "plain", config(**BERT, train={"epochs": 2}))
    expected = [row["train_loss"] for row in train(plain, Quiet()).curve]
    cache = tmp_path / "compiled"
    together = [started(tmp_path / f"run{number}", cache) for number in range(3)]
    first = [printed(process) for process in together]
    later = printed(started(tmp_path / "later", cache))
    for found in (*first, later):
        assert found["how"] == "compiled, CUDA graphs"
        assert found["losses"] == pytest.approx(expected, rel=1e-4)
    assert later["hits"] > 0
