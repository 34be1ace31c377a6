"""Declaration of spaces in YAML, JSON and Python: conditions, branches, constraints, mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from supermax import Space, UserError
from supermax.space import (
    Categorical,
    Constraint,
    Float,
    Int,
    Parameter,
    flatten,
    load,
    loads,
    narrowed,
    nest,
    sampler_for,
)
from supermax.space.expression import BadExpression, parse
from tests.space.strategies import spaces

SMALL = """
name: small
version: 3
parameters:
  encoder.name: {choices: [bert-base, bert-large], default: bert-base}
  train.batch_size:
    - {when: "encoder.name == 'bert-large'", choices: [8, 12, 16]}
    - choices: [8, 16, 64]
  optim.lr: {type: float, low: 5e-6, high: 3e-4, log: true, default: 2e-5}
  optim.steps: {type: int, low: 0, high: 100, step: 10}
constraints:
  - name: fits
    require: train.batch_size * optim.steps <= 1000
    reason: memory
"""


@settings(max_examples=100, deadline=None)
@given(spaces())
def test_round_trips(space: Space) -> None:
    assert Space.from_json(space.to_json()) == space
    assert Space.model_validate_json(space.model_dump_json()) == space
    assert Space(**json.loads(json.dumps(space.data()))) == space
    assert loads(yaml.safe_dump(space.data(), allow_unicode=True)) == space
    assert loads(space.to_json()) == space
    assert hash(Space.from_json(space.to_json())) == hash(space)


def test_yaml_and_python_give_equal_spaces() -> None:
    python = Space(
        name="small",
        version=3,
        parameters={
            "encoder.name": Categorical(choices=("bert-base", "bert-large"), default="bert-base"),
            "train.batch_size": [
                Categorical(when="encoder.name == 'bert-large'", choices=(8, 12, 16)),
                Categorical(choices=(8, 16, 64)),
            ],
            "optim.lr": Float(low=5e-6, high=3e-4, log=True, default=2e-5),
            "optim.steps": Parameter(branches=(Int(low=0, high=100, step=10),)),
        },
        constraints=[
            Constraint(
                name="fits", require="train.batch_size * optim.steps <= 1000", reason="memory"
            )
        ],
    )
    assert loads(SMALL) == python
    assert python != loads(SMALL.replace("1000", "999"))


def test_types_of_yaml_scalars() -> None:
    space = loads("parameters: {a: {choices: [5e-6, 1e3, 010, yes, on, 2_000, 2026-01-01, 0x1f]}}")
    assert space.parameters["a"].branches[0].data()["choices"] == [
        5e-6, 1000.0, 10, "yes", "on", 2000, "2026-01-01", "0x1f",
    ]  # fmt: skip


def test_sample_gives_a_nested_configuration_without_inactive_parameters() -> None:
    space = loads(
        "parameters:\n"
        "  loss.name: {choices: [ce, focal]}\n"
        "  loss.gamma: {when: loss.name == 'focal', type: float, low: 0, high: 5}\n"
        "  optim.lr: {type: float, low: 1e-5, high: 1e-3, log: true}\n"
    )
    one = space.sample(optuna.trial.FixedTrial({"loss.name": "ce", "optim.lr": 1e-4}))
    assert one == {"loss": {"name": "ce"}, "optim": {"lr": 1e-4}}
    other = space.sample(
        optuna.trial.FixedTrial({"loss.name": "focal", "loss.gamma": 2.0, "optim.lr": 1e-4})
    )
    assert other["loss"] == {"name": "focal", "gamma": 2.0}
    assert nest(flatten(other)) == other


def test_the_first_branch_whose_condition_holds_is_active() -> None:
    space = loads(SMALL)
    assert space.active("train.batch_size", {"encoder.name": "bert-large"}) == 0
    assert space.active("train.batch_size", {"encoder.name": "bert-base"}) == 1
    assert space.stored_names["train.batch_size", 0] == "train.batch_size"
    assert space.stored_names["train.batch_size", 1] == "train.batch_size@[8|16|64]"


def fits_at_home(config: dict[str, Any]) -> bool:
    return bool(config["x"] < 0.5)


def test_a_python_function_is_a_constraint_and_is_stored_by_name() -> None:
    space = Space(
        parameters={"x": Float(low=0, high=1)},
        constraints=[Constraint(name="home", reason="-", python=fits_at_home)],
    )
    again = Space.from_json(space.to_json())
    assert again.constraints[0].python == "tests.space.test_declaration:fits_at_home"
    for one in (space, again):
        assert one.broken({"x": 0.7})
        assert not one.broken({"x": 0.3})
    study = optuna.create_study(sampler=sampler_for(again, "random", seed=0))
    study.optimize(lambda trial: again.sample(trial)["x"], n_trials=30)
    assert all(trial.value < 0.5 for trial in study.trials)
    with pytest.raises(ValueError, match="top of a module"):
        Constraint(name="no", reason="-", python=lambda config: True)


def test_a_failing_function_rejects_and_a_missing_one_is_named() -> None:
    space = Space(
        parameters={"x": Float(low=0, high=1)},
        constraints=[{"name": "c", "reason": "-", "python": "operator:not_there"}],
    )
    with pytest.raises(UserError, match="'c' cannot be evaluated"):
        space.broken({"x": 0.1})
    bad = Space(
        parameters={"x": Float(low=0, high=1)},
        constraints=[{"name": "c", "reason": "-", "python": "operator:truediv"}],
    )
    assert bad.broken({"x": 0.1})
    with pytest.raises(UserError, match=r"(?s)'c' failed with TypeError.*'over'"):
        sampler_for(bad)


# Mistakes: all of them, with their lines and the nearest valid names.

WRONG = """\
name: wrong
verson: 2
parameters:
  encoder: {choices: [bert-base, roberta-base], default: bert-bsae}
  lr: {type: float, low: 1e-3, high: 1e-5, log: true}
  lr2: {type: float, low: 0, high: 1, log: true}
  batch: {type: int, low: 8, high: 64, stpe: 8}
  steps: {type: flaot, low: 0, high: 1}
  width: {choices: []}
  depth: {when: encodr == 'bert-base', type: int, low: 1, high: 4}
  gamma: {when: "encoder == 'bert-bas'", type: float, low: 0, high: 1}
  one: {when: two == 1, choices: [1, 2]}
  two: {when: one == 1, choices: [1, 2]}
  high: {type: float, low: 0, high: 1, step: 0.3}
  twice: {choices: [1, 2, 1]}
  nothing: 5
  unquoted: {when: encoder == bert-base, choices: [1]}
  optim.lr: {choices: [1]}
  optim: {choices: [1]}
  twice: {choices: [3]}
  7: {choices: [1]}
constraints:
  - {name: c, require: lrr < 1, reason: r}
  - {name: c, require: lr <, reason: r}
  - {name: d, require: lr < 1}
  - {name: e, reason: r}
  - {name: f, require: "__import__('os').system('true') == 0", reason: r}
"""


def test_every_mistake_is_reported_at_once_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(WRONG)
    with pytest.raises(UserError) as caught:
        load(path)
    text = str(caught.value)
    for line, words in {
        2: ["'verson'", "did you mean 'version'"],
        4: ["bert-bsae", "did you mean 'bert-base'"],
        5: ["0.001 is above high"],
        6: ["begins above 0"],
        7: ["'stpe'", "did you mean 'step'"],
        8: ["'flaot'", "did you mean 'float'"],
        9: ["'choices' is empty"],
        10: ["'encodr'", "did you mean 'encoder'"],
        11: ["never 'bert-bas'", "did you mean 'bert-base'"],
        12: ["circle", "one needs two needs one"],
        14: ["whole number of steps", "high 0.9"],
        16: ["needs a mapping"],
        17: ["needs quotes: 'bert-base'"],
        18: ["cannot stand inside 'optim'"],
        20: ["is given twice"],
        21: ["not a word"],
        23: ["'lrr'", "did you mean 'lr"],
        24: ["not understood"],
        25: ["'reason' is missing"],
        26: ["either 'require'"],
        27: ["no function"],
    }.items():
        found = [part for part in text.splitlines() if f"wrong.yaml, line {line}:" in part]
        assert found, f"line {line} is not reported in\n{text}"
        assert all(any(word in part for part in found) for word in words), (line, found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no space"),
        ("just words", "holds no space"),
        ("parameters: []", "needs 'parameters'"),
        ("parameters: {a: {choices: [1]}, b", "line 1"),
        ("a: [1, 2\nb: 3", "line 2"),
        ("parameters: &a {x: *a}", "too deep"),
        ("parameters: {x: {choices: [.nan]}}", "cannot be a choice"),
        ("parameters: {x: {choices: [true, 1]}}", "cannot be told"),
        ("parameters: {'x y': {choices: [1]}}", "joined by dots"),
        ("parameters: {x: [{choices: [1]}, {choices: [2]}]}", "always taken"),
        ("parameters: {x: {branches: [{choices: [1]}], default: 1}}", "each of the branches"),
        ("parameters: {x: {choices: [1], was: x2}, x2: {choices: [1]}}", "still there"),
        ("extends: critera", "did you mean 'criteria'"),
        ("extends: [criteria]\nparameters: {encoder.nam: null}", "did you mean 'encoder.name'"),
        ("parameters: {reg.lambda: {choices: [1]}}", "means something else"),
        ("parameters: {true: {choices: [1]}}", "not a word"),
        ("parameters: {x: {type: [float], low: 1, high: 2}}", "type is float or int"),
        ("parameters: {x: {choices: [!!int abc]}}", "its tag"),
        ("parameters: {x: {choices: [!!bool maybe]}}", "its tag"),
        ("parameters: {x: {type: float, low: 0, high: " + "9" * 400 + "}}", "its tag"),
        ("parameters: {x: {type: int, low: 0, high: 10000000000000000000}}", "exactly"),
        ("extends: criteria\nconstraints: [{name: [a]}]", "not there to be removed"),
        ("parameters: {x: {choices: [1], was: q}, y: {choices: [1], was: q}}", "has become 'x'"),
        ("parameters: {x: {<<: {choices: [1]}}}", "unknown key '<<'"),
        ("version: 0\nparameters: {x: {choices: [1]}}", "from 1 on"),
    ],
)
def test_invalid_files_are_reported_in_a_sentence(text: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        loads(text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("when", "words"),
    [
        ("a == 'adm'", "did you mean 'adam'"),
        ("a < 2", "is a word"),
        ("a * 2 == 4", "is a word"),
        ("max(a, 1) == 1", "is a word"),
    ],
)
def test_typing_errors_in_conditions(when: str, words: str) -> None:
    text = f'parameters: {{a: {{choices: [adam, sgd]}}, b: {{when: "{when}", choices: [1]}}}}'
    with pytest.raises(UserError, match=words):
        loads(text)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("{choises: [1]}", "did you mean 'choices'"),
        ("{choices: [[1, 2], [3]]}", "a list of words"),
        ("{type: float, low: x, high: 1}", "a, low: input should be a valid number"),
    ],
)
def test_each_typing_error_is_one_mistake(written: str, words: str) -> None:
    with pytest.raises(UserError, match="a mistake") as caught:
        loads(f"parameters: {{a: {written}}}")
    assert words in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no space file"):
        load(tmp_path / "nowhere.yaml")
    (tmp_path / "latin.yaml").write_bytes("parameters: {é: 1}".encode("latin-1"))
    with pytest.raises(UserError, match="not UTF-8"):
        load(tmp_path / "latin.yaml")
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path)
    (tmp_path / "a.yaml").write_text("extends: b.yaml")
    (tmp_path / "b.yaml").write_text("extends: a.yaml")
    with pytest.raises(UserError, match="circle"):
        load(tmp_path / "a.yaml")


def test_extending_replaces_adds_and_removes(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(SMALL)
    (tmp_path / "own.yaml").write_text(
        "extends: base.yaml\nname: own\nparameters:\n"
        "  optim.steps: null\n  optim.lr: {type: float, low: 0, high: 1}\n  new: {choices: [1]}\n"
        "constraints:\n  - {name: fits}\n"
    )
    space = load(tmp_path / "own.yaml")
    assert space.name == "own"
    assert space.version == 3
    assert list(space.parameters) == ["encoder.name", "train.batch_size", "optim.lr", "new"]
    assert str(space.parameters["optim.lr"].branches[0]) == "0 to 1"
    assert space.constraints == ()
    (tmp_path / "bad.yaml").write_text("extends: base.yaml\nparameters:\n  optim.steps: null\n")
    with pytest.raises(UserError, match=r"base.yaml, line \d+: constraint 1, require: unknown"):
        load(tmp_path / "bad.yaml")


def test_a_space_made_in_python_reports_everything_too() -> None:
    with pytest.raises(UserError) as caught:
        Space(parameters={"a": {"type": "float", "low": 2, "high": 1}, "b": {"choices": []}})
    assert "2 mistakes" in str(caught.value)


def test_narrowing() -> None:
    space = loads(SMALL)
    fewer = narrowed(
        space,
        {"encoder.name": ["bert-large"], "optim.lr": {"high": 1e-5}, "optim.steps": 50},
    )
    assert str(fewer.parameters["encoder.name"].branches[0]) == "one of bert-large"
    assert fewer.parameters["encoder.name"].branches[0].default == "bert-large"
    assert not fewer.parameters["optim.lr"].branches[0].has_default
    assert fewer.parameters["optim.lr"].branches[0].contains(1e-5)
    assert not fewer.parameters["optim.lr"].branches[0].contains(2e-5)
    assert fewer.parameters["optim.steps"].branches[0].contains(50)
    assert Space.from_json(fewer.to_json()) == fewer
    with pytest.raises(UserError) as caught:
        narrowed(space, {"encoder.nam": 1, "optim.steps": 55, "train.batch_size": [64, 65]})
    text = str(caught.value)
    assert "did you mean 'encoder.name'" in text
    assert "no such value 55; allowed: integers" in text
    assert "no such value 65" in text
    with pytest.raises(UserError, match="leaves nothing of one of 8, 12, 16 when"):
        narrowed(space, {"train.batch_size": [64]})
    one = narrowed(space, {"train.batch_size": [64], "encoder.name": "bert-base"})
    assert len(one.parameters["train.batch_size"].branches) == 1  # the other is never taken
    alone = narrowed(space, {"optim.lr": [1e-5]})
    assert alone.parameters["optim.lr"].branches[0].default == 1e-5
    steps = narrowed(space, {"optim.steps": {"low": 15, "high": 77}})
    assert str(steps.parameters["optim.steps"].branches[0]) == "integers 20 to 70 step 10"
    for values, words in (
        ({"high": 1}, "is above the space's own"),
        ({"hihg": 1}, "unknown key"),
        ({"low": "x"}, "must be a number"),
        ([1e-5, 2e-5], "it is a range .5e-06 to 0.0003 .log.*or one value"),
    ):
        with pytest.raises(UserError, match=words):
            narrowed(space, {"optim.lr": values})


# The language.


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    try:
        expression = parse(text)
    except BadExpression:
        return
    assert expression.value({}.__getitem__) in (True, False, None)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a == 3", True),
        ("a != 3", False),
        ("1 < a <= 3", True),
        ("word in ['x', 'y']", True),
        ("word not in ['x']", False),
        ("gone == 1", None),
        ("gone == 1 or a == 3", True),
        ("gone == 1 and a == 4", False),
        ("not gone == 1", None),
        ("a / 0 > 1", False),
        ("a / 0 > 1 or a == 3", True),
        ("a == 3 or a / 0 > 1", True),
        ("sqrt(-a) > 1", False),
        ("10 ** 400 > 1", False),
        ("word + 1 > 1", False),
        ("a", False),
        ("flag", True),
        ("flag == 1", False),
        ("flag == true", True),
        ("nothing == null", True),
        ("max(a, 2, 1) == 3 and min(a, 2) == 2 and abs(-a) == 3", True),
        ("a % 2 == 1 and a // 2 == 1 and a ** 2 == 9", True),
    ],
)
def test_values_of_expressions(text: str, value: bool | None) -> None:
    values = {"a": 3, "word": "x", "flag": True, "nothing": None}
    assert parse(text).value(values.__getitem__) is value


@pytest.mark.parametrize(
    "text",
    ["a[0]", "a.b()", "lambda: 1", "f'{a}'", "a if b else c", "[x for x in a]", "a := 1", "x in y",
     "a; b", "min(a)", "abs(a, 1)", "~" * 1500 + "1", "f" + "(x)" * 600,
     "exec('1')", "().__class__", "a @ b", "a & b", "*a",
     "not " * 100 + "a", "a" * 3000],
)  # fmt: skip
def test_other_syntax_is_refused(text: str) -> None:
    with pytest.raises(BadExpression):
        parse(text)


def test_the_space_is_imported_on_first_use() -> None:
    code = (
        "import sys, supermax; print('pydantic' in sys.modules);"
        "supermax.Space; print('pydantic' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True", "False"], done.stderr
