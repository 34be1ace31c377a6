"""Search space of given settings: the seed is a parameter only where a user or a study has one."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

from supermax.search.settings import Settings
from supermax.search.spaces import SEED, space_for, with_seed
from supermax.space import Space, load, open_version, preset
from supermax.space.presets import presets
from supermax.studies import stored_parameter
from supermax.tasks.objective import configured

AGENTS = ("criteria", "evidence", "share", "joint")


@pytest.mark.parametrize("agent", AGENTS)
def test_no_space_of_the_package_searches_the_seed(agent: str) -> None:
    spaces = [load(agent), *(preset(agent, name).space for name in presets())]
    assert [space.name for space in spaces if SEED in space.parameters] == []


@pytest.mark.parametrize(("wanted", "drawn"), [(7, {7}), ({"low": 1, "high": 2}, {1, 2})])
def test_seed_is_a_parameter_where_it_is_asked_for(wanted: object, drawn: set[int]) -> None:
    space = space_for(Settings(agent="criteria", trials=1, epochs=1, narrow={SEED: wanted}))
    (branch,) = space.parameters[SEED].branches
    assert {value for value in range(10) if branch.contains(value)} == drawn


def test_trials_without_the_parameter_have_the_first_seed() -> None:
    assert configured("criteria", {"encoder": {"name": "tiny"}}, {}).train.seed == 1


def test_seed_of_a_study_that_has_it_stays(tmp_path: Path) -> None:
    address = str(tmp_path / "s.db")
    assert stored_parameter(address, "notes", SEED) is None  # there is no file yet
    storage = optuna.storages.RDBStorage(f"sqlite:///{address}")
    parameters = {"optim.lr": {"choices": [1e-3]}}
    older = {**parameters, SEED: {"type": "int", "low": 1, "high": 5}}
    open_version(Space(name="notes", parameters=older), storage=storage)
    assert stored_parameter(address, "others", SEED) is None
    seed = stored_parameter(address, "notes", SEED)
    assert seed is not None
    now = with_seed(Space(name="notes", parameters=parameters), seed)
    assert open_version(now, storage=storage).study.study_name == "notes"  # no further version
