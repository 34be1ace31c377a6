"""`supermax push` uploads the files of an export, and nothing else, to a stand-in of the hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from supermax.training.deploy.export import load_exported
from tests.training.corpora import config, ready
from tests.training.deploy.hub import TOKEN, Hub, running_hub
from tests.training.deploy.test_export import put
from tests.ui.cli.helping import sm

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")  # of the hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS", True)
    with running_hub() as hub:
        yield hub


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return put(tmp_path / "model", ready(tmp_path / "cache", config(), n=4))


def push(hub: Hub, folder: Path, *words: str, code: int = 0) -> str:
    said = sm("push", str(folder), *words, "--endpoint", hub.address, code=code)
    assert TOKEN not in said
    return said


@pytest.mark.parametrize("lfs", [True, False])
def test_an_upload_is_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: Hub, folder: Path, lfs: bool
) -> None:
    """Both ways of huggingface_hub: Git LFS, and the commits of its newer protocol."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", lfs)
    hub.lfs = lfs
    said = push(hub, folder, "mine", "--private")
    assert f"Private model {hub.address}/ada/mine" in said
    assert hub.private == {"ada/mine": True}
    there = tmp_path / "there"
    for name, content in hub.files.items():
        path = there / name.removeprefix("ada/mine/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    files = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    assert {path.relative_to(there) for path in there.rglob("*") if path.is_file()} == files
    assert all((there / file).read_bytes() == (folder / file).read_bytes() for file in files)
    load_exported(there)
    assert "Public model" in push(hub, folder, "ada/open")


def test_other_files_are_left_out_and_named(hub: Hub, folder: Path) -> None:
    (folder / "data").mkdir()
    others = ["notes.csv", "data/train.jsonl", "encoder/texts.txt", ".env", "[a]*.json"]
    for name in others:
        (folder / name).write_text("I slept badly")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"graph")
    said = push(hub, folder, "mine")
    left_out = said.partition("Not uploaded, since the export did not write them:")[2]
    assert {line.strip(" -") for line in left_out.strip().splitlines()} == set(others)
    assert not any(name.endswith(tuple(others)) for name in hub.files)
    assert not any(b"slept badly" in content for content in hub.files.values())
    assert hub.files["ada/mine/onnx/model.onnx"] == b"graph"


def test_no_login(monkeypatch: pytest.MonkeyPatch, hub: Hub, folder: Path) -> None:
    monkeypatch.delenv("HF_TOKEN")
    said = push(hub, folder, "mine", code=2)
    assert "You are not logged in" in said
    assert "`hf auth login`" in said
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    said = push(hub, folder, "mine", code=2)
    assert "refused the token" in said
    assert "hf_wrong" not in said
    assert not hub.files


@pytest.mark.parametrize("taken", [True, False])
def test_a_name_of_somebody_else(hub: Hub, folder: Path, taken: bool) -> None:
    if taken:
        hub.private["bob/model"] = False
    assert "You may not write to bob/model" in push(hub, folder, "bob/model", code=2)
    assert not hub.files


def test_weights_that_are_refused(hub: Hub, folder: Path) -> None:
    hub.full = True
    assert "You may not write to ada/mine" in push(hub, folder, "ada/mine", code=2)
    assert not hub.files


def test_a_public_repository_is_not_taken_for_a_private_one(hub: Hub, folder: Path) -> None:
    hub.private["ada/mine"] = False
    said = push(hub, folder, "mine", "--private", code=2)
    assert "ada/mine exists and is public, so nothing was uploaded" in said
    assert not hub.files
    push(hub, folder, "mine")
    assert hub.files


def test_a_hub_that_is_away_or_has_problems(
    monkeypatch: pytest.MonkeyPatch, hub: Hub, folder: Path
) -> None:
    gone = hub.address.rpartition(":")[0] + ":9"
    said = sm("push", str(folder), "mine", "--endpoint", gone, code=3)
    assert f"{gone} cannot be reached" in said
    hub.broken = True
    assert "has a problem (HTTP 503)" in push(hub, folder, "mine", code=3)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "while HF_HUB_OFFLINE is set" in push(hub, folder, "mine", code=2)


def test_wrong_arguments(tmp_path: Path, hub: Hub, folder: Path) -> None:
    assert "'a/b/c' is not a name of a repository" in push(hub, folder, "a/b/c", code=2)
    assert "there is no such folder" in push(hub, tmp_path / "nowhere", "mine", code=2)
    (folder / "model.safetensors").write_bytes(b"")
    assert "incomplete or changed" in push(hub, folder, "mine", code=2)
    assert not hub.files
