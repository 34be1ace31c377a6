"""Fixtures of the tests on a real GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep Triton's cache in a folder that outlasts the first test. A process sets it once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


@pytest.fixture
def cuda() -> None:
    """Skip without CUDA. Another process asks: this one must stay free of CUDA."""
    code = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    if subprocess.run([sys.executable, "-c", code]).returncode:
        pytest.skip("no CUDA here")
