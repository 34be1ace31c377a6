"""Shared checkpoints are removed when their trial has ended."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

from supermax.engine.run.session import IDENTITY
from supermax.engine.storage.locations import checkpoint_folder
from supermax.search.shared_checkpoints import SharedCheckpoints
from tests.conftest import eventually


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_shared_checkpoints_of_ended_trials_are_removed(tmp_path: Path, scheme: str) -> None:
    study = optuna.create_study(study_name="a study")
    study._storage.set_study_system_attr(study._study_id, IDENTITY, "0123456789abcdef")
    study.add_trial(optuna.trial.create_trial(value=1.0))
    root = Path(checkpoint_folder(str(tmp_path), "a study", "0123456789abcdef"))
    for number in (0, 1):
        place = root / f"{number:05d}" / "2"
        place.mkdir(parents=True)
        (place / "state").touch()
    SharedCheckpoints(f"{scheme}{tmp_path}")(study, study.trials[0])
    assert eventually(lambda: [path.name for path in root.iterdir()] == ["00001"])
    SharedCheckpoints(f"{scheme}{tmp_path}")(study, study.trials[0])  # nothing is left to remove
