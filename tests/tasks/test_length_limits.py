"""Lengths of the preset modern: up to what the data needs, and to the limit of each encoder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from supermax.agents import AGENTS
from supermax.space import Space, choices, loads, sampler_for
from supermax.space.presets import preset
from supermax.tasks.length_limits import within_limits
from supermax.tasks.space_fitting import fitted
from supermax.training.data.splits import split
from supermax.training.models.sources import find
from supermax.training.prepare import max_input_length
from tests.training.corpora import corpus

SHORT, LONG = "untrained/microsoft/deberta-v3-base", "untrained/answerdotai/ModernBERT-base"
SPACE = f"""
parameters:
  encoder.name: {{choices: [{SHORT}, {LONG}], default: {SHORT}}}
  text.max_length: {{choices: [256, 512, 1024, 8192], default: 8192}}
"""


def lengths_of(space: Space, encoder: str, key: str = "encoder.name") -> set[int]:
    study = optuna.create_study(sampler=sampler_for(space, optuna.samplers.RandomSampler(0)))
    found = set()
    for _ in range(60):
        one = space.sample(study.ask())
        if one[key.split(".")[0]]["name"] == encoder:
            found.add(one["text"]["max_length"])
    return found


def test_no_encoder_gets_a_length_above_its_limit() -> None:
    sources = {name: find(name) for name in (SHORT, LONG)}
    assert [max_input_length(source) for source in sources.values()] == [512, 8192]
    space, notices = within_limits(loads(SPACE), sources)
    assert lengths_of(space, SHORT) == {256, 512}
    assert lengths_of(space, LONG) == {256, 512, 1024, 8192}
    assert notices == [f"{SHORT} reads 512 tokens at most: text.max_length is not searched above."]
    assert space.defaults() == {"encoder.name": SHORT, "text.max_length": 512}


def test_a_range_ends_at_a_step_below_the_limit() -> None:
    text = SPACE.replace("[256, 512, 1024, 8192], default: 8192}", "[0]}")
    ranged = "{type: int, low: 96, high: 2016, step: 64, default: 1056}"
    space = loads(text.replace("{choices: [0]}", ranged))
    limited, _ = within_limits(space, {name: find(name) for name in (SHORT, LONG)})
    short, long = limited.parameters["text.max_length"].branches
    assert (short.high, short.default) == (480, 480)  # type: ignore[union-attr]
    assert (long.high, long.default) == (2016, 1056)  # type: ignore[union-attr]


def test_lengths_that_all_encoders_read_stay_as_they_are() -> None:
    for agent in AGENTS:
        space = preset(agent, "standard", models="minilm,tiny-roberta").space
        sources = {
            "minilm": find("untrained/bert-base-uncased"),
            "tiny-roberta": find("tiny-roberta"),
        }
        assert within_limits(space, sources) == (space, [])


@pytest.mark.parametrize(("copies", "expected"), [(1, [256]), (80, [256, 512, 1024])])
def test_the_preset_searches_lengths_up_to_what_the_data_needs(
    tmp_path: Path, copies: int, expected: list[int]
) -> None:
    texts = corpus(60)
    long = tuple(replace(e, text=" ".join([e.text] * copies)) for e in texts.classes)
    space = preset("criteria", "modern", models="tiny").space
    source = replace(find("tiny"), config=find(LONG).config)
    fit = replace(fitted(space, "cpu"), sources={"tiny": source})
    fit = fit.with_length(split(replace(texts, classes=long, spans=())), tmp_path)
    assert choices(fit.within_limits().space, "text.max_length") == expected
    words = ", ".join(map(str, expected))
    assert any(words in notice and "from the data" in notice for notice in fit.notices)


@pytest.mark.parametrize("agent", AGENTS)
def test_the_preset_has_the_encoders_of_today(agent: str) -> None:
    found = preset(agent, "modern")
    assert found.fit_length
    names = [str(name) for name in choices(found.space, "encoder.name")]
    families = {find(f"untrained/{name}").config.model_type for name in names}
    assert families == {"modernbert", "eurobert", "deberta-v2"}
    assert max(int(str(n)) for n in choices(found.space, "text.max_length")) == 8192
