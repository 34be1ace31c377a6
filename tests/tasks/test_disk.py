"""Disk demand of a run: limited to the free space, with a notice."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

import supermax
from supermax._util.attributes import STATE, WEIGHTS
from supermax.engine.run.options import RunOptions
from supermax.engine.summary import Summary
from supermax.errors import EnvironmentFault
from supermax.memory.disk import Allowance, Demand, Footprint, footprint
from supermax.search.search import Search
from supermax.search.settings.units import size as size_of
from supermax.tasks.fits import footprints
from supermax.tasks.space_fitting import fitted
from supermax.tasks.specs import spec_of
from supermax.tasks.weight_retention import on_same_disk, room, within_disk
from supermax.training.loop import train
from supermax.training.steps.execution import Execution
from tests.search.searches import search_in, small
from tests.training.corpora import Quiet, config, ready

pytestmark = pytest.mark.usefixtures("quick", "preloaded")
GIB, MIB = 1 << 30, 1 << 20
Sized = Callable[[int], Path]


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sized]:
    """Return a function that makes a disk of a given size, and can be called again to resize it.

    It is a file system in memory if one can be mounted; otherwise the reported free space is
    patched.
    """
    place = tmp_path / "disk"
    place.mkdir()
    mounted = False

    def sized(size: int) -> Path:
        nonlocal mounted
        options = f"{'remount,' * mounted}size={size}"
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        if shutil.which("mount") and os.geteuid() == 0:
            mounted |= subprocess.run(command, capture_output=True, check=False).returncode == 0
        if not mounted:
            free = shutil.disk_usage(tmp_path)._replace(free=size)
            monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
        return place

    yield sized
    if mounted:
        # Now from all sight, and gone once the study's database is closed.
        subprocess.run(["umount", "--lazy", str(place)], check=True)


class Seen(list[int]):
    """Workers of each run."""

    def __call__(self, study: optuna.Study, workers: int, devices: int) -> Any:
        self.append(workers)
        return nullcontext()


def tiny(**how: Any) -> Demand:
    fit = fitted(small(), "cpu")
    found = footprints(fit.space, fit.sources.values(), "criteria", Execution())
    return replace(Demand(found, 8, None, top=5), **how)


def search(place: Path, tmp_path: Path, **how: Any) -> tuple[Search, Seen, list[str]]:
    seen, said = Seen(), list[str]()
    made = replace(
        search_in(tmp_path, trials=1, around=seen, warn=said.append), storage=str(place / "s.db")
    )
    return replace(made, **how), seen, said


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_a_state_takes_what_is_counted(tmp_path: Path, optimizer: str) -> None:
    one = ready(tmp_path, config(optim={"name": optimizer}))
    train(one, Quiet(), tmp_path, save_every=0)
    counted = footprint(spec_of(one.config, one.sources, one.execution)).states
    size = (tmp_path / STATE).stat().st_size
    assert 0.9 * counted <= 2 * size <= 1.1 * counted  # names count little in a larger encoder


def test_what_a_run_has_on_disk_is_not_counted_twice(disk: Sized) -> None:
    place = disk(64 * MIB)
    before = room(place / "not" / "there" / "yet")
    for file in (WEIGHTS, f"checkpoint/{STATE}"):
        path = place / "trials" / "00000" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(8 * MIB))
    assert room(place) >= before - MIB


@pytest.mark.slow
def test_a_small_disk_has_fewer_trials_at_a_time(disk: Sized, tmp_path: Path) -> None:
    size = tiny(workers=3).total + 3 * MIB  # the study is there too
    made, seen, said = search(disk(size), tmp_path)
    made.run(workers=8, progress=False)
    assert seen == [3]
    assert "3 run at a time" in said[0]
    more = re.search(r"free ([0-9.]+) GiB", said.pop())
    assert more is not None
    disk(size + int(float(more[1]) * GIB))
    tuned = replace(made, trials=2).run(workers=8, progress=False)
    assert (seen, said) == ([3, 8], [])
    assert tuned.summary.trials["COMPLETE"] == 2


@pytest.mark.slow
def test_a_smaller_disk_keeps_fewer_weights(disk: Sized, tmp_path: Path) -> None:
    size = tiny(workers=1).states + 3 * MIB
    made, seen, said = search(disk(size), tmp_path, top=9)
    tuned = made.run(workers=2, progress=False)
    assert seen == [1]
    assert "1 runs at a time. Weights of the best may take" in said[0]
    assert tuned.summary.trials["COMPLETE"] == 1


def test_keeping_less_makes_room_for_trials(tmp_path: Path) -> None:
    """Following the advice allows as many parallel trials as requested."""
    free = shutil.disk_usage(tmp_path).free
    each, many = Footprint(1, free // 10, free // 20), {"top": 8, "memory": None}
    demand = Demand([each], 8, **many)  # type: ignore[arg-type]
    found, notice = within_disk(demand, tmp_path, "name another disk", {})
    assert found.workers < 8
    keep = re.search(r"keep=([0-9]+MiB)", notice)
    assert keep is not None
    less = replace(demand, keep=size_of(keep[1]))
    assert within_disk(less, tmp_path, "", {}) == (Allowance(8, less.keep, less.total), "")


def test_without_room_for_paused_trials_the_advice_works(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    demand = Demand([Footprint(1, free // 2, free // 4)], 1, None, top=1, paused=4)
    with pytest.raises(EnvironmentFault, match="--pruner median"):
        within_disk(demand, tmp_path, "name another disk", {})
    assert within_disk(replace(demand, paused=0), tmp_path, "", {})[0].workers == 1


@pytest.mark.parametrize(
    ("where", "here"),
    [
        pytest.param("{other}/checkpoints", False, id="another-disk"),
        pytest.param("{same}/checkpoints", True, id="same-disk"),
        pytest.param("file://{other}/checkpoints", True, id="url"),
    ],
)
def test_paused_trials_get_the_space_of_the_disk_with_their_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, here: bool
) -> None:
    seen: list[RunOptions] = []
    monkeypatch.setattr(
        "supermax.search.search.run_study",
        lambda _study, _objective, options: seen.append(options) or Summary({}, {}),
    )
    folders = [Path("/dev/shm"), Path("/tmp")]  # one of them has the files of the tests
    disks = [folder for folder in folders if not on_same_disk(folder, tmp_path)]
    if not disks:
        pytest.skip("needs a second disk at /dev/shm or /tmp")
    other = Path(tempfile.mkdtemp(dir=disks[0]))
    try:
        checkpoints = where.format(other=other, same=tmp_path)
        made = replace(search_in(tmp_path, trials=1), pruner=supermax.Promotion())
        made.run(checkpoints=checkpoints, workers=1)
        options = replace(made.run_options(workers=1), checkpoints=checkpoints)
        states = made.allowance(tmp_path, options)[0].total
        made.run(checkpoints=checkpoints, paused_space=9)
    finally:
        other.rmdir()
    assert (seen[0].paused_space is not None) == here  # None: half of what is free there
    without = tiny(workers=1)
    assert (states > without.total) == here
    assert here or states == without.weights  # the run folder has no checkpoints
    assert seen[1].paused_space == 9


@pytest.mark.slow
def test_without_room_for_one_trial_the_advice_works(disk: Sized, tmp_path: Path) -> None:
    place = disk(64 * MIB)

    def study(models: list[str]) -> supermax.Study:
        return supermax.Study.from_config(
            agent="criteria",
            data={"path": "synthetic", "posts": 40},
            models=models,
            outdir=str(place),
            cache=str(tmp_path / "cache"),
            trials=1,
            epochs=1,
        )

    every = ["tiny", "untrained/bert-large-uncased"]
    with pytest.raises(EnvironmentFault) as refused:
        study(every).run(progress=False, workers="auto")
    (left,) = study(every).study.get_trials()
    assert left.state.name == "WAITING"
    said = str(refused.value)
    assert str(place) in said
    assert "name a storage on another disk (--storage)" in said
    named = re.search(r"--models ([a-z,/-]+)\)", said)
    assert named is not None
    assert named[1] == "tiny"
    assert study(named[1].split(",")).run(progress=False).summary.trials["COMPLETE"] == 1
    more = re.search(r"Free ([0-9.]+) GiB", said)
    assert more is not None
    disk(64 * MIB + int(float(more[1]) * GIB))
    assert any(line.startswith("Disk") for line in study(every).plan())
