"""The wheel and the sdist: complete, without tests, and usable in an empty environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import yaml

import supermax
from tests import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "constraints.txt")
BUILD = "import sys, setuptools.build_meta as b; getattr(b, sys.argv[1])(sys.argv[2])"
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def build(kind: str, source: Path, output: Path) -> Path:
    """Build `kind`, "wheel" or "sdist", with the setuptools that is installed; no network."""
    output.mkdir(exist_ok=True)
    command = [sys.executable, "-c", BUILD, f"build_{kind}", str(output)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = output.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, since a build leaves files in its source folder. It has a test, as the project."""
    folder = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        shutil.copy(ROOT / name, folder)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignored)
    (folder / "tests").mkdir()
    shutil.copy(__file__, folder / "tests")
    return folder


@pytest.fixture(scope="module")
def sdist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", source, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist: what the sdist lacks, the wheel lacks."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = folder.iterdir()
    return build("wheel", unpacked, tmp_path_factory.mktemp("wheel"))


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    package = ROOT / "src" / "supermax"
    files = {path for path in package.rglob("*") if path.is_file()}
    expected = {str(p.relative_to(ROOT / "src")) for p in files if "__pycache__" not in p.parts}
    assert {"py.typed", "page.css", "page.js", "criteria.yaml"} <= {path.name for path in files}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == expected


def test_the_sdist_holds_no_test(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert {"README.md", "LICENSE", "constraints.txt", "src/supermax/py.typed"} <= set(names)
    assert [name for name in names if name.startswith("tests")] == []


def test_the_metadata_say_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode())
    assert metadata["Name"] == "supermax"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Author"] == "The Supermax developers"
    assert metadata["Description-Content-Type"] == "text/markdown"


def test_versions_in_several_files_agree() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert PROJECT["version"] == supermax.__version__ == citation["version"]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    (ruff,) = [hook["rev"] for hook in hooks if "ruff" in hook["repo"]]
    assert f"ruff=={ruff.removeprefix('v')}" in (ROOT / "constraints.txt").read_text().split()


@pytest.mark.parametrize("name", ["optuna", "torch", "transformers"])
def test_the_constraint_is_in_the_supported_range(name: str) -> None:
    extras = PROJECT["optional-dependencies"]["training"]
    (declared,) = [line for line in PROJECT["dependencies"] + extras if line.startswith(name)]
    low, high = (numbers(bound) for bound in declared.split(","))
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    (pinned,) = [line for line in pins if line.startswith(f"{name}==")]
    assert low <= numbers(pinned) < high


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_it_runs_in_an_empty_environment(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Without the extra `training`, which `doctor` then asks for. Needs the network."""
    venv.create(tmp_path / "venv", with_pip=True)
    python, program = (tmp_path / "venv" / "bin" / name for name in ("python", "supermax"))
    empty = tmp_path / "empty"
    empty.mkdir()
    pip = [python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt"]
    subprocess.run([*pip, request.getfixturevalue(kind)], cwd=empty, env=ENVIRONMENT, check=True)
    assert "tune" in run(program, "--help", cwd=empty).stdout
    doctor = run(program, "doctor", cwd=empty, codes=(1,)).stdout
    assert f"supermax {supermax.__version__}" in doctor
    assert "torch is not installed" in doctor
    assert "pip install 'supermax[training]'" in doctor
    assert list(empty.iterdir()) == []


def run(
    program: Path, *args: str, cwd: Path, codes: tuple[int, ...] = (0,)
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [program, *args], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode in codes, done.stdout + done.stderr
    return done
