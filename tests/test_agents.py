"""Agents: their names, and the spaces and metrics that belong to each."""

from __future__ import annotations

import pytest

from supermax.agents import AGENT_NAMES, AGENTS, agent_of, stored_name
from supermax.errors import UserError
from supermax.search.settings.resolving import resolve
from supermax.space.presets import preset, presets
from supermax.training.config import read_config
from supermax.training.eval.metrics import check_metric

ALIASES = {"classification": "criteria", "question-answering": "evidence"}


@pytest.mark.parametrize("agent", AGENTS)
def test_each_agent_has_its_spaces_and_metric(agent: str) -> None:
    own = agent_of(agent)
    check_metric(own.metric, agent)
    for name in presets():
        space = preset(agent, name).space
        assert ("evidence_encoder.name" in space.parameters) == (own.encoders == 2)
        assert ("text.doc_stride" in space.parameters) == own.windows


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_the_usual_name_of_a_task_is_an_alias(alias: str, name: str) -> None:
    assert agent_of(alias) is agent_of(name)
    assert agent_of(name).usual_name == alias
    assert read_config({"agent": alias, "encoder": {"name": "tiny"}}).agent == name
    resolved = resolve(alias, environment={f"N_TRIALS_{name.upper()}": "3"}, presets=presets())
    assert (resolved.settings.agent, resolved.settings.trials) == (name, 3)
    assert resolved.settings.study == name
    assert preset(alias, "demo") == preset(name, "demo")


def test_the_variable_of_the_trials_has_no_hyphen() -> None:
    environment = {"N_TRIALS_TOKEN_CLASSIFICATION": "3"}
    resolved = resolve("token-classification", environment=environment, presets=presets())
    assert resolved.settings.trials == 3


def test_an_unknown_agent_is_refused_with_the_nearest_name() -> None:
    assert stored_name("clasification") == "clasification"
    with pytest.raises(UserError, match="'clasification'; did you mean 'classification'"):
        agent_of("clasification")
    with pytest.raises(UserError, match="there is no agent 'regresion'"):
        resolve("regresion", presets=presets())
    assert set(AGENTS) <= set(AGENT_NAMES)
