"""Search space of given settings: the seed is a parameter only where a user or a study has one."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

from supermax import UserError
from supermax.search.settings import Settings
from supermax.search.spaces import SEED, space_for, with_former, with_parameters
from supermax.space import Space, choices, load, open_version, preset, sampler_for
from supermax.space.presets import presets
from supermax.studies import stored_space
from supermax.tasks.objective import configured
from supermax.tasks.preflight import check_space

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


@pytest.mark.parametrize("agent", AGENTS)
def test_no_space_of_the_package_searches_how_spans_are_decoded(agent: str) -> None:
    spaces = [load(agent), *(preset(agent, name).space for name in presets())]
    names = {name for space in spaces for name in space.parameters}
    assert [name for name in names if name.startswith(("decode.", "no_answer."))] == []


@pytest.mark.parametrize(
    ("narrow", "drawn"),
    [
        ({"decode.max_answer": 30}, {"decode.max_answer": 30}),
        ({"no_answer.policy": "none"}, {"no_answer.policy": "none"}),
        (
            {"no_answer.threshold": 0.5},
            {"no_answer.policy": "threshold", "no_answer.threshold": 0.5},
        ),
        ({"no_answer.ratio": 2.0}, {"no_answer.policy": "ratio", "no_answer.ratio": 2.0}),
        (
            {"no_answer.policy": ["calibrated"], "decode.n_best": 3},
            {"no_answer.policy": "calibrated", "decode.n_best": 3},
        ),
    ],
)
def test_decoding_that_a_user_fixes_is_used(
    narrow: dict[str, object], drawn: dict[str, object]
) -> None:
    space = space_for(Settings(agent="evidence", trials=1, epochs=1, narrow=narrow))
    values = space.defaults() or {}
    assert space.mistakes(values) == []
    found = {n: v for n, v in values.items() if n.startswith(("decode.", "no_answer."))}
    assert found == drawn


@pytest.mark.parametrize(
    ("narrow", "names", "rank"),
    [
        ({"adapter.name": "lora"}, {"lora"}, 8),
        ({"adapter.name": ["none", "lora"]}, {"none", "lora"}, None),
        ({"adapter.rank": 16}, {"lora"}, 16),
    ],
)
def test_settings_turn_lora_on(narrow: dict[str, object], names: set[str], rank: int) -> None:
    settings = Settings(agent="criteria", trials=1, epochs=1, preset="standard", narrow=narrow)
    space = space_for(settings)
    check_space("criteria", space)
    assert set(choices(space, "adapter.name")) == names
    values = space.defaults() or {}
    assert space.mistakes(values) == []
    assert values.get("adapter.rank") == rank
    assert "adapter.name" not in space_for(settings.model_copy(update={"narrow": {}})).parameters


def test_an_agent_without_spans_has_no_decoding() -> None:
    narrow: dict[str, object] = {"decode.max_answer": 30}
    with pytest.raises(UserError, match=r"unknown parameter 'decode.max_answer'"):
        space_for(Settings(agent="criteria", trials=1, epochs=1, narrow=narrow))


def test_former_parameters_of_a_study_stay(tmp_path: Path) -> None:
    address = str(tmp_path / "s.db")
    assert stored_space(address, "notes") is None  # there is no file yet
    storage = optuna.storages.RDBStorage(f"sqlite:///{address}")
    now = Space(**{**load("demo/evidence").data(), "name": "notes"})
    former = {
        SEED: {"type": "int", "low": 1, "high": 5},
        "no_answer.policy": {"choices": ["none", "threshold"]},
        "no_answer.threshold": {
            "when": "no_answer.policy == 'threshold'", "type": "float", "low": -4.0, "high": 4.0,
        },
        "decode.max_answer": {"type": "int", "low": 8, "high": 32, "step": 8},
    }  # fmt: skip
    data = with_parameters(now, former).data()
    fit = {"name": "answers fit", "require": "decode.max_answer <= text.max_length - 24"}
    data["constraints"].append(fit | {"reason": "one window"})
    older = Space(**data)
    open_version(older, storage=storage)
    assert stored_space(address, "others") is None
    stored = stored_space(address, "notes")
    assert stored == older
    whole = with_former(now, stored, "evidence")
    assert open_version(whole, storage=storage).study.study_name == "notes"  # no further version
    assert [c.name for c in whole.constraints] == ["windows move on", "answers fit"]
    assert with_former(whole, stored, "evidence") is whole


def test_settings_win_over_former_parameters() -> None:
    settings = Settings(agent="evidence", trials=1, epochs=1, narrow={"decode.max_answer": 30})
    now = space_for(settings)
    older = with_parameters(load("evidence"), {"decode.max_answer": {"choices": [8, 16]}})
    assert with_former(now, older, "evidence") is now


def test_windows_the_last_token_and_an_adapter_are_set_together() -> None:
    narrow = {"text.long_texts": "windows", "head.pooling": "last", "adapter.rank": 8}
    settings = Settings(agent="multilabel", trials=1, epochs=1, preset="demo", narrow=narrow)
    space = space_for(settings)
    assert choices(space, "head.pooling") == ["last"]
    found = configured(
        "multilabel", space.sample(optuna.create_study(sampler=sampler_for(space)).ask()), {}
    )
    assert (found.text.long_texts, found.head.pooling) == ("windows", "last")
    assert (found.adapter.name, found.adapter.rank) == ("lora", 8)


@pytest.mark.parametrize(
    "narrow",
    [{"text.long_texts": "windows"}, {"text.window_pooling": "max"}, {"text.doc_stride": 16}],
)
def test_settings_of_windows_turn_windows_on(narrow: dict[str, object]) -> None:
    space = space_for(Settings(agent="criteria", trials=1, epochs=1, preset="demo", narrow=narrow))
    found = space.sample(optuna.create_study(sampler=sampler_for(space)).ask())
    text = configured("criteria", found, {}).text
    assert text.long_texts == "windows"
    assert {f"text.{name}": value for name, value in text} | narrow == {
        f"text.{name}": value for name, value in text
    }


@pytest.mark.parametrize("agent", ["evidence", "share", "joint", "token-classification"])
def test_agents_with_spans_or_entities_say_why_they_have_no_such_setting(agent: str) -> None:
    settings = Settings(agent=agent, trials=1, epochs=1, narrow={"text.long_texts": "windows"})
    with pytest.raises(UserError, match=r"spans and entities of long texts are always found"):
        space_for(settings)


@pytest.mark.parametrize("agent", ["criteria", "regression", "multilabel"])
def test_a_space_cannot_search_settings_of_windows_that_it_never_makes(agent: str) -> None:
    stride = {"text.doc_stride": {"choices": [16, 32]}}
    with pytest.raises(UserError, match=r"text\.doc_stride: .*without text\.long_texts: windows"):
        check_space(agent, with_parameters(load(agent), stride))
    windows = {"text.long_texts": {"choices": ["windows"]}}
    check_space(agent, with_parameters(load(agent), {**stride, **windows}))
