"""Files and folders that only their owner can read, whatever the umask is."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from supermax._util.files import make_private, open_private, tighten
from supermax.memory.facts import Spec
from supermax.memory.measurements import Measured, MeasurementLog
from supermax.results.tracking.record import Standing, TrackingFolder
from supermax.training.checkpoint import Saver
from supermax.training.data import lengths, tokens
from supermax.training.models import tokenizers
from tests.memory.specs import BERT_LARGE


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    found = [folder, *folder.rglob("*")]
    return [f"{path} {path.stat().st_mode:o}" for path in found if path.stat().st_mode & 0o077]


def keep_tokens(cache: Path) -> None:
    kept = tokens.Tokens(**{f.name: np.zeros(3) for f in fields(tokens.Tokens)})
    tokens._save(kept, cache / "tokens" / "x")


def keep_tokenizer(cache: Path) -> None:
    source: Any = SimpleNamespace(place=None, config=SimpleNamespace(vocab_size=60))
    tokenizers.tokenizer_for(source, ["words of a person"], cache)


def keep_lengths(cache: Path) -> None:
    def tokenizer(*texts: list[str], **_: Any) -> dict[str, Any]:
        return {"input_ids": [[1, 2] for _ in texts[0]]}

    example: Any = SimpleNamespace(text="words of a person", question="")
    lengths.lengths_of([example], lambda: tokenizer, cache, "x")


def keep_measurement(cache: Path) -> None:
    MeasurementLog(cache / "memory", "cpu", "torch").note(
        Spec((BERT_LARGE,), 64, 256), Measured(1, False, 8, 1, 1, 1)
    )


def keep_state(cache: Path) -> None:
    make_private(cache / "trial")
    saver = Saver(cache / "trial")
    saver.save({"x": 1})
    saver.wait()


def keep_what_was_sent(cache: Path) -> None:
    folder = TrackingFolder(cache / "tracking", "x")
    with folder.locked(wait=True):
        folder.record("study").note_done(1)
        folder.write_standing(Standing())


@pytest.mark.parametrize(
    "keep",
    [
        keep_tokens,
        keep_tokenizer,
        keep_lengths,
        keep_measurement,
        keep_state,
        keep_what_was_sent,
    ],
)
def test_stored_files_are_private(tmp_path: Path, keep: Callable[[Path], None]) -> None:
    cache = tmp_path / "outdir" / "cache"
    keep(cache)
    assert [path for path in cache.rglob("*") if path.is_file()]
    assert open_to_others(cache) == []
    for path in cache.rglob("*"):
        path.chmod(0o777 if path.is_dir() else 0o666)
    for path in [path for path in cache.rglob("*") if path.is_file()]:
        path.unlink()
    keep(cache)
    assert open_to_others(next(cache.iterdir())) == []


def test_an_existing_folder_is_restricted_with_its_content(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").touch()
    (tmp_path / "a" / "program").touch(0o755)
    make_private(tmp_path / "a")
    assert open_to_others(tmp_path / "a") == []
    assert stat.S_IMODE((tmp_path / "a" / "program").stat().st_mode) == 0o700


def test_links_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "shared").touch(0o644)
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "shared")
    (folder / "name").hardlink_to(tmp_path / "shared")
    tighten(folder)
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o644
    with pytest.raises(OSError, match="symbolic link"):
        open_private(folder / "link", "wb")
