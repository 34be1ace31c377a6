"""CUDA MPS starts and ends with a run, however that ends. A small program stands in for NVIDIA's
control daemon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest
import torch

from supermax import Study
from supermax.engine.processes import mps
from supermax.errors import EnvironmentFault
from supermax.search import gpu_share
from supermax.search.prepare import _gpu_share, run_context
from supermax.search.resources import Resources
from supermax.search.settings import Settings
from supermax.training.steps.matrix_products import ProductCheck
from tests.conftest import eventually
from tests.few import quick_are

VERSION = torch.__version__
SERVICE = """#!{python}
import os, subprocess, sys, time
folder = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
control, quitting = folder + "/control", folder + "/quit"
if "-f" in sys.argv:
    {trouble}
    server = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    open({pids!r}, "w").write(f"{{os.getpid()}} {{server.pid}}")
    open(control, "w").close()
    while not os.path.exists(quitting):
        time.sleep(0.02)
    if {obeys}:
        server.kill()
    else:
        time.sleep(1000)
else:
    words = sys.stdin.read()
    if not os.path.exists(control):
        sys.exit("Cannot find MPS control daemon process")
    if words.startswith("quit"):
        open(quitting, "w").close()
    else:
        print("40.0")
"""


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(mps.PIPE, raising=False)
    monkeypatch.delenv(mps.SHARE, raising=False)
    monkeypatch.setattr(gpu_share, "check_in_process", lambda _: ProductCheck(612, 0))
    monkeypatch.setattr(gpu_share, "gpus", tuple)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "verdicts"))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / mps.CONTROL


def played(path: Path, trouble: str = "pass", obeys: bool = True) -> Path:
    pids = path.with_name("pids")
    path.write_text(
        SERVICE.format(python=sys.executable, trouble=trouble, obeys=obeys, pids=str(pids))
    )
    path.chmod(0o755)
    return pids


def alive(pids: Path) -> list[int]:
    return [int(pid) for pid in pids.read_text().split() if psutil.pid_exists(int(pid))]


@pytest.mark.parametrize("obeys", quick_are([True], [True, False]))
def test_daemon_starts_and_ends_with_the_run(
    service: Path, obeys: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = played(service, obeys=obeys)
    said: list[str] = []
    with mps.shared(said.append, 25) as shares:
        assert shares
        assert len(alive(pids)) == 2
        folder = os.environ[mps.PIPE]
        assert Path(folder).is_dir()
        assert os.environ[mps.SHARE] == "25"
    assert alive(pids) == []
    assert mps.PIPE not in os.environ
    assert mps.SHARE not in os.environ
    assert not Path(folder).exists()
    assert said == []


def test_share_in_use_is_that_of_the_environment_or_of_the_daemon(
    service: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mps.share_in_use() == 100  # there is no daemon
    played(service)
    with mps.shared(print, 25):
        assert mps.share_in_use() == 25
        monkeypatch.setenv(mps.SHARE, "")
        assert mps.share_in_use() == 40
        monkeypatch.setenv(mps.SHARE, "many")
        assert mps.share_in_use() == 100


def test_share_set_in_the_environment_is_kept(
    service: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played(service)
    for theirs, meant in (("70", "70"), ("", "25")):
        monkeypatch.setenv(mps.SHARE, theirs)
        with mps.shared(print, 25):
            assert os.environ[mps.SHARE] == meant
        assert os.environ[mps.SHARE] == theirs


PROGRAM = """
import time
from supermax.engine.processes import mps
with mps.shared(print) as shares:
    print("shares", shares, flush=True)
    time.sleep(1000)
"""


def test_killed_run_leaves_no_daemon(service: Path) -> None:
    pids = played(service)
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "shares True\n"
        assert len(alive(pids)) == 2
        run.send_signal(signal.SIGKILL)
    assert eventually(lambda: not alive(pids), within=20)


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_run_that_ends_during_daemon_start_leaves_no_daemon(
    service: Path, number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    started = tmp_path / "started"
    pids = played(service, trouble=f"open({str(started)!r}, 'w').close(); time.sleep(1)")
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stderr=subprocess.DEVNULL) as run:
        assert eventually(started.exists, within=20)
        run.send_signal(number)
    assert eventually(lambda: pids.exists() and not alive(pids), within=20)
    assert eventually(lambda: not [*tmp_path.glob("supermax-mps-*")], within=20)


@pytest.mark.slow
def test_ctrl_c_while_the_daemon_hangs_at_start_leaves_no_daemon(
    service: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither the daemon nor its client ever responds."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    pids = tmp_path / "pids"
    service.write_text(
        f"#!{sys.executable}\nimport os, sys, time\n"
        f"if '-f' in sys.argv: open({str(pids)!r}, 'w').write(str(os.getpid()))\n"
        "elif 'CUDA_MPS_PIPE_DIRECTORY' not in os.environ: sys.exit(1)\n"
        "time.sleep(1000)\n"
    )
    service.chmod(0o755)
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stderr=subprocess.DEVNULL) as run:
        assert eventually(lambda: pids.exists() and pids.read_text() != "", within=20)
        run.send_signal(signal.SIGINT)
        run.wait(40)
    assert eventually(lambda: not alive(pids), within=5)
    assert not [*tmp_path.glob("supermax-mps-*")]


def test_daemon_that_cannot_be_executed_is_reported(service: Path) -> None:
    service.write_text("#!/nowhere/python\n")
    service.chmod(0o755)
    said: list[str] = []
    with mps.shared(said.append) as shares:
        assert not shares
    assert said == [
        "Cells share the GPU without MPS: its daemon does not start (it cannot be run: No such "
        "file or directory)."
    ]


def test_daemon_that_does_not_start_is_reported_and_the_run_continues(service: Path) -> None:
    played(service, trouble="sys.exit('no device of compute capability 3.5')")
    said: list[str] = []
    with mps.shared(said.append) as shares:
        assert not shares
        assert mps.PIPE not in os.environ
    assert said == [
        "Cells share the GPU without MPS: its daemon does not start (it ended with code 1: no "
        "device of compute capability 3.5)."
    ]


def test_missing_daemon_is_reported(service: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(service.parent / "nowhere"))
    said: list[str] = []
    with mps.shared(said.append) as shares:
        assert not shares
    assert said == [
        "Cells share the GPU without MPS: there is no nvidia-cuda-mps-control on this machine."
    ]


def test_running_daemon_of_the_user_is_used(
    service: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids, theirs = played(service), service.parent / "theirs"
    theirs.mkdir()
    monkeypatch.setenv(mps.PIPE, str(theirs))
    said: list[str] = []
    with mps.shared(said.append) as shares:
        assert not shares
    assert said == [
        f"Cells share the GPU without MPS: no daemon answers at {mps.PIPE} ({theirs})."
    ]
    (theirs / "control").touch()
    with mps.shared(print) as shares:
        assert shares
        assert os.environ[mps.PIPE] == str(theirs)
    assert os.environ[mps.PIPE] == str(theirs)
    assert not pids.exists()


@pytest.mark.parametrize("wanted", [True, False])
def test_search_starts_the_daemon(
    service: Path, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    pids = played(service)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    settings = Settings(agent="criteria", trials=9, epochs=1, mps=wanted, gpu_memory=100 << 30)
    said: list[str] = []
    study = optuna.create_study()
    with run_context(settings, said.append, study, 4, 1):
        assert pids.exists() == wanted
        assert os.environ.get(mps.SHARE) == ("50" if wanted else None)
    assert said == [CHECKING] * wanted
    said.clear()
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    pids.unlink(missing_ok=True)
    with run_context(settings, said.append, study, 4, 1):
        assert not pids.exists()
    assert said == [f"mps is for GPUs and does nothing here: torch {VERSION} sees none."] * wanted


CHECKING = "Checking matrix products with 50 % of the GPU, once for this version of torch."
WRONG = ProductCheck(612, 5, "output of 64 × 384 × 1152")


def checked(monkeypatch: pytest.MonkeyPatch, verdict: ProductCheck | Exception) -> list[str]:
    """Replace the check; return the shares that are checked from here on."""
    shares: list[str] = []

    def check(environment: Mapping[str, str]) -> ProductCheck:
        shares.append(f"{environment.get(mps.SHARE)} {environment.get('CUDA_VISIBLE_DEVICES')}")
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    monkeypatch.setattr(gpu_share, "check_in_process", check)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return shares


def searched(said: list[str], **settings: Any) -> str | None:
    """Return the share within the context of a search with four workers."""
    wanted = Settings(
        agent="criteria", trials=9, epochs=1, mps=True, gpu_memory=100 << 30, **settings
    )
    with run_context(wanted, said.append, optuna.create_study(), 4, 1):
        return os.environ.get(mps.SHARE)


def test_share_with_wrong_products_is_not_used(
    service: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played(service)
    said: list[str] = []
    checks = checked(monkeypatch, WRONG)
    assert searched(said, gpus=["1"]) == "100"
    assert said == [
        CHECKING,
        "With 50 % of the GPU's multiprocessors, 5 of 612 matrix products are wrong (output of "
        "64 × 384 × 1152), so each cell may use all of them.",
    ]
    assert mps.SHARE not in os.environ
    assert searched(said, gpus=["1"]) == "100"
    assert checks == ["50 1"]  # the verdict was kept
    monkeypatch.setattr(gpu_share, "version", lambda _: "another")
    assert searched(said, gpus=["1"]) == "100"
    assert len(checks) == 2


def test_share_of_the_user_with_wrong_products_is_refused(
    service: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played(service)
    checked(monkeypatch, WRONG)
    monkeypatch.setenv(mps.SHARE, "19")
    with pytest.raises(EnvironmentFault, match=f"With 19 % .* unset {mps.SHARE}"):
        searched([])
    monkeypatch.setenv(mps.SHARE, "100")
    assert searched([]) == "100"


def test_default_share_of_the_users_daemon_is_checked(
    service: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played(service)
    checks = checked(monkeypatch, WRONG)
    with mps.shared(print):
        monkeypatch.delenv(mps.SHARE)
        with pytest.raises(EnvironmentFault, match=r"With 40 % .* echo set_default_active"):
            searched([])
    assert checks == ["None None"]


def test_check_that_cannot_run_is_reported(service: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played(service)
    said: list[str] = []
    checks = checked(monkeypatch, OSError("torch sees no GPU"))
    assert [searched(said), searched(said)] == ["50", "50"]
    assert len(checks) == 2
    assert said[:2] == [
        CHECKING,
        "Matrix products with 50 % of the GPU could not be checked: torch sees no GPU",
    ]


def test_share_follows_the_number_of_cells() -> None:
    study = optuna.create_study()
    settings = Settings(agent="criteria", trials=9, epochs=1, gpu_memory=100 << 30)
    assert _gpu_share(settings, study, 8, 1) == 25
    assert _gpu_share(settings, study, 8, 2) == 50
    for _ in range(6):
        study.add_trial(optuna.trial.create_trial(value=1.0))
    assert _gpu_share(settings, study, 8, 1) == 50  # three are left
    study.add_trial(optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING))
    assert _gpu_share(settings, study, 8, 1) == 50
    assert Settings(agent="criteria", trials=9, epochs=1, gpus="1,0,1").gpus == ["1", "0"]  # type: ignore[arg-type]
    assert Settings(agent="criteria", trials=9, epochs=1, gpus="all").gpus == ["all"]  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="write all alone, or name the GPUs"):
        Settings(agent="criteria", trials=9, epochs=1, gpus=["all", "0"])


@pytest.mark.slow
@pytest.mark.usefixtures("quick", "preloaded")
@pytest.mark.parametrize("by", ["settings", "run"])
def test_share_follows_the_workers_of_the_run(
    service: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Cells are processes of their own and see no GPU: trials run on the CPU."""
    played(service)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(Resources, "with_device", lambda resources: resources.execution)
    settings = {"workers": 8, "mps": True, "gpu_memory": "100GiB", "trials": 4, "epochs": 1}
    if by == "run":
        settings["workers"] = 1
    study = Study.from_config(
        agent="criteria", data={"path": "synthetic", "posts": 40}, outdir=str(tmp_path), **settings
    )
    shares: list[str | None] = []
    study.run(
        progress=False,
        callbacks=[lambda *_: shares.append(os.environ.get(mps.SHARE))],
        **({"workers": 8} if by == "run" else {}),
    )
    assert shares == ["50"] * 4  # no more than the four trials run at a time


def test_gpu_settings_without_a_gpu_are_reported() -> None:
    settings = Settings(agent="criteria", trials=1, epochs=1, mps=True, compile=True)
    said: list[str] = []
    with run_context(settings, said.append, optuna.create_study(), 1, 1):
        pass
    assert said == [
        f"mps and compile are for GPUs and do nothing here: torch {VERSION} sees none."
    ]
