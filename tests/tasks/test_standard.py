"""Preset for pretrained encoders: chosen automatically, with a length that fits the data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supermax._util.attributes import COSTS, TINY, is_untrained
from supermax.agents import AGENTS
from supermax.search.preview import unfit_preset
from supermax.search.settings import Settings
from supermax.search.settings.writing import written
from supermax.search.spaces import fits_length, space_for
from supermax.space import Int, Space
from supermax.space.presets import preset
from supermax.study import Study
from supermax.tasks import measures
from supermax.tasks.space_fitting import Fitted
from supermax.tasks.text_length import shortest, with_length
from supermax.training.data.lengths import Histogram
from supermax.training.data.splits import split
from supermax.training.models import architectures
from supermax.training.models.sources import find
from tests.tasks.test_truncation import corpus
from tests.ui.cli.helping import inside, sm


def settings(**given: Any) -> Settings:
    return Study.from_config({"data": "synthetic"}, agent="criteria", **given).settings


def length_of(space: Space) -> int:
    (branch,) = space.parameters["text.max_length"].branches
    assert isinstance(branch, Int)
    assert branch.low == branch.high
    return branch.low


def test_a_pretrained_encoder_gets_the_standard_preset() -> None:
    assert settings().preset == "demo"
    assert settings(models=["tiny", "untrained/roberta-base"]).preset == "demo"
    chosen = settings(models=["tiny", "minilm"])
    assert (chosen.preset, chosen.trials, chosen.epochs, chosen.patience) == ("standard", 30, 5, 2)
    assert settings(models="minilm", preset="max").trials == 800
    assert settings(models="minilm", trials=3, epochs=1).trials == 3


def test_names_that_are_known_before_torch_is_loaded_are_all_there() -> None:
    assert set(COSTS) == set(measures.COSTS)
    assert set(TINY) == set(architectures.TINY)
    assert all(map(is_untrained, architectures.architecture_names()))
    assert not any(map(is_untrained, ["minilm", "./tiny", "roberta-base", *architectures.FULL]))


@pytest.mark.parametrize("agent", AGENTS)
def test_the_usual_learning_rates_can_be_reached(agent: str) -> None:
    space = preset(agent, "standard", models="minilm").space
    (rates,) = space.parameters["optim.lr"].branches
    assert (rates.low, rates.high) == (1e-5, 2e-4)
    assert space.defaults() is not None


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("models", [[], ["tiny"], ["minilm"]])
def test_the_example_that_init_writes_can_be_searched(
    tmp_path: Path, agent: str, models: list[str]
) -> None:
    name = "standard" if models == ["minilm"] else "demo"
    text = written(agent, models=models, size={"preset": name})
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("# narrow:"))
    lines[first:] = [line.removeprefix("# ") for line in lines[first:]]
    (tmp_path / "mine.yaml").write_text("\n".join(lines))
    found = Study.from_config(tmp_path / "mine.yaml").settings
    assert set(found.narrow) == {"train.effective_batch", "optim.lr"}
    assert space_for(found).parameters["train.effective_batch"].branches[0].default == 16


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.integers(1, 600), st.integers(1, 50), min_size=1),
            st.sampled_from([64, 512]),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_the_shortest_length_leaves_all_but_one_percent_whole(
    found: list[tuple[dict[int, int], int]],
) -> None:
    lengths = list(range(32, 513, 32))
    counted = [(Histogram(counts, sum(counts.values())), most) for counts, most in found]

    def enough(length: int) -> bool:
        return all(
            length >= most or histogram.longer(length) <= 0.01 * histogram.texts
            for histogram, most in counted
        )

    chosen = shortest(counted, lengths)
    assert enough(chosen) or chosen == lengths[-1]
    assert not any(enough(length) for length in lengths if length < chosen)


def test_the_length_follows_the_data_unless_one_is_given(tmp_path: Path) -> None:
    space = preset("criteria", "standard", models="tiny").space
    fitted, notice = with_length(space, split(corpus(90)), [find("tiny")], tmp_path)
    length = length_of(fitted)
    assert 100 < length <= 160  # a third of the texts have 100 words
    assert notice == f"text.max_length is {length}, from the data."
    assert fits_length(settings(models="minilm"))
    assert not fits_length(settings(models="minilm", narrow={"text.max_length": 64}))
    assert not fits_length(settings(models="tiny"))
    assert not fits_length(settings(models="minilm", preset="max"))


@pytest.mark.slow
@pytest.mark.usefixtures("quick", "preloaded")
def test_a_plan_and_a_search_have_the_same_length(tmp_path: Path) -> None:
    given = {"data": {"path": "synthetic", "posts": 60}, "narrow": {"encoder.name": "tiny"}}
    with inside(tmp_path):
        study = Study.from_config(
            given, agent="criteria", preset="standard", models="tiny", trials=1, epochs=1
        )
        lines = "\n".join(study.plan())
        tuned = study.run(progress=False)._tuned
    assert tuned is not None
    length = length_of(tuned.space)
    assert f"text.max_length is {length}, from the data." in lines
    assert tuned.study.trials[0].params["text.max_length"] == length


def test_the_space_of_the_demo_is_not_for_pretrained_encoders() -> None:
    trained = Fitted(preset("criteria", "demo").space, {"mine": replace(find("tiny"), place=".")})
    (words,) = unfit_preset(settings(models="mine", preset="demo"), trained)
    assert "too high for mine: leave `preset` out, or set it to standard" in words
    assert not unfit_preset(settings(models="mine"), trained)
    untrained = Fitted(trained.space, {"tiny": find("tiny")})
    assert not unfit_preset(settings(), untrained)


def test_init_writes_the_encoders_and_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "".join(f"a note of the day {i},{'yes' if i % 2 else 'no'}\n" for i in range(60))
    (tmp_path / "notes.csv").write_text(f"text,label\n{rows}")
    with inside(tmp_path):
        said = sm("init", "notes.csv", "--models", "roberta-base, minilm", "-o", "a.yaml")
        assert "models       roberta-base, minilm\n" in said
        found = Study.from_config("a.yaml").settings
        assert (found.models, found.preset) == (["roberta-base", "minilm"], "standard")
        assert "# trials: 30 " in Path("a.yaml").read_text()
        monkeypatch.delenv("SUPERMAX_MODELS")
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
        said = sm("init", "notes.csv", "-o", "b.yaml")
        assert "models       tiny  (not pretrained: name one that is with --models" in said
        assert Study.from_config("b.yaml").settings.preset == "demo"
        monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
        assert "models       minilm\n" in sm("init", "notes.csv", "-o", "c.yaml")
        assert Study.from_config("c.yaml").settings.models == ["minilm"]
