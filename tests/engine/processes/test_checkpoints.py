"""Checkpoints in a shared folder and at a URL: the next owner continues, the last does no harm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fsspec import register_implementation
from fsspec.implementations.local import LocalFileSystem

from supermax.engine.jobs.policy import Retry, decide
from supermax.engine.processes import checkpoints
from supermax.engine.processes.checkpoints import Checkpoints, is_remote
from supermax.engine.trial.faults import Culprit, Evidence, Kind, classify
from supermax.engine.trial.outcome import RAISED, Outcome, describe
from supermax.errors import CheckpointUnavailable


def at_url(tmp_path: Path, machine: str, token: int) -> Checkpoints:
    """Return the checkpoints of a machine with a disk of its own."""
    return Checkpoints(tmp_path / machine / "checkpoint", f"file://{tmp_path}/bucket/7", token)


def in_folder(tmp_path: Path, machine: str, token: int) -> Checkpoints:
    return Checkpoints(tmp_path / machine / "checkpoint", f"{tmp_path}/shared/7", token)


def save(checkpoints: Checkpoints, text: str) -> None:
    folder = checkpoints.open()
    (folder / "deep").mkdir(exist_ok=True)
    (folder / "deep" / "state").write_text(text)
    checkpoints.upload(now=True)


def loaded(checkpoints: Checkpoints) -> str | None:
    file = checkpoints.open() / "deep" / "state"
    return file.read_text() if file.exists() else None


@pytest.mark.parametrize("made", [in_folder, at_url])
def test_the_next_owner_continues_with_a_copy(tmp_path: Path, made: type[Checkpoints]) -> None:
    first = made(tmp_path, "one", 1)
    assert loaded(first) is None
    save(first, "a")
    save(first, "b")
    assert loaded(made(tmp_path, "one", 1)) == "b"  # a retry on the same machine
    second = made(tmp_path, "two", 2)
    assert loaded(second) == "b"
    save(first, "late")  # of a run that has lost the trial
    save(second, "c")
    assert loaded(made(tmp_path, "three", 3)) == "c"
    assert loaded(made(tmp_path, "two", 2)) == "c"


def test_without_a_shared_place_they_are_in_the_run_folder(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoint", None, 0)
    save(checkpoints, "a")
    assert checkpoints.open() == tmp_path / "checkpoint"
    assert loaded(Checkpoints(tmp_path / "checkpoint", None, 0)) == "a"


def test_an_upload_replaces_the_one_before(tmp_path: Path) -> None:
    checkpoints = at_url(tmp_path, "one", 1)
    for text in "abc":
        save(checkpoints, text)
    folders = [path.name for path in (tmp_path / "bucket" / "7" / "1").iterdir() if path.is_dir()]
    assert folders == ["3"]
    checkpoints.upload(now=True)  # nothing has changed
    assert (tmp_path / "bucket" / "7" / "1" / "latest").read_text() == "3"


def test_a_place_that_cannot_be_written_does_not_end_the_trial(tmp_path: Path) -> None:
    (tmp_path / "bucket").write_text("a file in its place")
    checkpoints = Checkpoints(tmp_path / "one", f"file://{tmp_path}/bucket/7", 1)
    save(checkpoints, "a")
    assert loaded(checkpoints) == "a"


class Flaky(LocalFileSystem):
    """File system whose reads fail a number of times."""

    protocol = "flaky"
    failures = 0

    def isdir(self, path: str) -> bool:
        if Flaky.failures > 0:
            Flaky.failures -= 1
            raise ConnectionError("503 Slow Down, secret=hunter22")
        return super().isdir(path)


@pytest.fixture
def flaky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkpoints:
    """Checkpoints of the second owner of a trial, at a URL that may fail."""
    monkeypatch.setattr(checkpoints, "_PAUSES", (0.01, 0.01))
    register_implementation("flaky", Flaky, clobber=True)
    save(at_url(tmp_path, "one", 1), "a")
    return Checkpoints(tmp_path / "two" / "checkpoint", f"flaky://{tmp_path}/bucket/7", 2)


def test_a_download_is_tried_again(flaky: Checkpoints) -> None:
    Flaky.failures = 2
    assert loaded(flaky) == "a"


def test_a_download_that_keeps_failing_is_no_fault_of_the_trial(flaky: Checkpoints) -> None:
    Flaky.failures = 3
    with pytest.raises(CheckpointUnavailable, match="cannot be read: 503 Slow Down") as caught:
        flaky.open()
    assert "hunter22" not in str(caught.value)
    evidence = Evidence(Outcome(1, RAISED, raised=describe(caught.value)))
    fault = classify(evidence)
    assert fault is not None
    assert (fault.kind, fault.culprit) == (Kind.NO_CHECKPOINT, Culprit.OUTSIDE)
    before = [replace(fault, kind=Kind.STALL)] * 5  # more than `retries`
    assert isinstance(decide(fault, before, retries=2), Retry)
    assert loaded(flaky) == "a"  # the next attempt


def test_what_is_a_url() -> None:
    assert is_remote("s3://bucket/folder")
    assert not is_remote("/shared/checkpoints")
