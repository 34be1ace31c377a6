"""Programs and commands of the README and of the pages beside it, run."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import optuna
import pytest

import supermax
from supermax.search.search import Search
from supermax.tasks.measures import COSTS
from supermax.training.data.columns import Columns
from supermax.training.eval.metrics import METRICS
from tests import ROOT


def programs(page: str) -> list[str]:
    """Return the Python blocks of a page, in order."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


STAND_INS = """
import json, optuna

def build(trial):
    return {"lr": trial.suggest_float("lr", 1e-3, 1.0), "w": 5.0}

def train(model):
    model["w"] *= 1 - model["lr"] / 2
    return model["w"]

def save(model, epoch, loss, path):
    path.write_text(json.dumps([model, epoch, loss]))

def load(model, path):
    saved, epoch, loss = json.loads(path.read_text())
    model.update(saved)
    return epoch, loss
"""
CRASHES = """
import os, signal, supermax
whole = objective

def objective(trial):
    def crash(value, step, report=trial.report):
        report(value, step)
        if step == 10 and trial.attempt == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
    trial.report = crash
    return whole(trial)

study = optuna.create_study(storage="sqlite:///readme.db", pruner=optuna.pruners.NopPruner())
supermax.optimize(study, objective, n_trials=2, progress=False)
for trial in study.trials:
    assert trial.user_attrs["supermax"]["attempts"] == 2
    assert trial.value == list(trial.intermediate_values.values())[-1]
    assert list(trial.intermediate_values) == list(range(1, 31))
"""


def run(program: str, folder: Path) -> str:
    script = folder / "program.py"
    script.write_text(program)
    done = subprocess.run(
        [sys.executable, str(script)], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_example_runs_and_resumes(tmp_path: Path) -> None:
    (block,) = programs("README.md")
    assert "n_trials=5000" in block
    few = block.replace("n_trials=5000", "n_trials=20") + "\nprint(summary.finished)"
    assert run(few, tmp_path).strip() == "20"
    assert run(few, tmp_path).strip() == "20"  # the same command again: nothing left to do


@pytest.mark.slow
def test_the_checkpoint_example_resumes(tmp_path: Path) -> None:
    checkpoints, *_ = programs("docs/optimize.md")
    run(STAND_INS + checkpoints + CRASHES, tmp_path)


@pytest.mark.slow
def test_the_space_of_the_page_on_optimize_is_searched(tmp_path: Path) -> None:
    *_, block = programs("docs/optimize.md")
    few = block.replace("n_trials=100", "n_trials=12") + "\nprint(len(study.trials))"
    assert run(few, tmp_path).split()[-1] == "12"
    changed = few.replace("[base, large]", "[base, large, huge]").replace("=12", "=14")
    said = run(changed, tmp_path)
    assert "choices added: encoder.name (huge)" in said
    assert "12 trials carried over (12 from tuning)" in said
    assert said.split()[-1] == "14"


@pytest.mark.slow
def test_the_search_from_python_runs_to_a_prediction(tmp_path: Path) -> None:
    search, predict = programs("docs/howto/from-python.md")
    shutil.copy(ROOT / "examples" / "notes.csv", tmp_path)
    supermax_init = [sys.executable, "-m", "supermax", "init", "notes.csv"]
    subprocess.run(supermax_init, cwd=tmp_path, check=True, capture_output=True)
    few = search.replace("trials=4", "trials=2, epochs=1")
    said = run(few + predict.replace("[1, 2]", "[1]"), tmp_path).strip()
    *_, interval, labels = said.splitlines()
    assert "Estimate" in interval
    assert set(ast.literal_eval(labels)) <= {"no", "yes"}
    assert (tmp_path / "history.html").exists()


def test_the_page_on_optimize_knows_every_option_and_every_addition_to_a_trial() -> None:
    text = (ROOT / "docs" / "optimize.md").read_text()
    options = list(inspect.signature(supermax.optimize).parameters)
    listed = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert listed == options[2:]  # after the study and the objective
    own = {name for name in vars(supermax.Trial) if not name.startswith("_")}
    for name in own - set(dir(optuna.Trial)):
        assert f"`trial.{name}" in text, name


def test_the_space_file_of_the_documentation_is_valid() -> None:
    text = (ROOT / "docs" / "space.md").read_text()
    (yaml,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert supermax.space.loads(yaml).name == "criteria"


@pytest.mark.slow
def test_the_demo_goes_from_data_to_a_prediction(tmp_path: Path) -> None:
    program = (ROOT / "examples" / "demo.py").read_text()
    few = re.sub(r"(\"(?:criteria|evidence|share|joint)\": )\d+", r"\g<1>1", program)
    assert few.count(": 1,") >= 3
    said = run(few.replace("posts=900", "posts=100"), tmp_path)
    for words in (
        "criteria",
        "evidence",
        "share",
        "joint",
        "TF-IDF",
        "Exported to",
        "Its answer: ",
    ):
        assert words in said
    assert "95 % interval" in " ".join(said.split())


@pytest.mark.slow
def test_a_search_with_faulty_trials_finishes() -> None:
    script = ROOT / "examples" / "misbehaving.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "60 finished trials" in done.stdout
    for fault in ("signal SIGSEGV", "exit without an outcome", "trial timeout", "exception"):
        assert fault in done.stdout


@pytest.mark.slow
def test_the_checkpoint_program_runs_to_its_end(tmp_path: Path) -> None:
    program = (ROOT / "examples" / "checkpoints.py").read_text()
    assert "15 finished trials" in run(program, tmp_path)
    logs = [log.read_text() for log in tmp_path.rglob("log.txt")]
    assert any("attempt 2 resumes after epoch 10" in log for log in logs)


def test_every_target_that_pages_name_exists() -> None:
    pages = [ROOT / "README.md", ROOT / "docs" / "howto" / "clinical-text.md"]
    targets = [
        name for page in pages for name in re.findall(r"\bmake ([a-z-]+)", page.read_text())
    ]
    assert "tune-criteria-supermax" in targets
    for agent in ("criteria", "evidence", "share", "joint", "all"):
        targets += [f"tune-{agent}-max", f"tune-{agent}-supermax"]
    for target in targets:
        done = subprocess.run(
            ["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        if target.startswith("tune-"):
            _, agent, preset = target.split("-")
            assert f"supermax tune {agent} --preset {preset}" in done.stdout


def test_the_python_space_of_the_documentation_is_valid() -> None:
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "space.md").read_text(), re.DOTALL
    )
    (block,) = [block for block in blocks if "Categorical(" in block]
    names: dict[str, object] = {}
    exec(block, names)
    assert isinstance(names["space"], supermax.Space)


def test_the_documentation_of_agents_is_complete(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "agents.md").read_text()
    fields = {f.name for f in dataclasses.fields(Search)} - {"execution", "tell"}
    columns = {f.name for f in dataclasses.fields(Columns)}
    for name in (*METRICS, *COSTS, *fields, *columns):
        assert re.search(rf"\b{name}\b", text), name
    block = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    (tmp_path / "notes.csv").write_text(
        "patient,note,asked,verdict\n1,slept well,sleep?,no\n2,awake all night,sleep?,yes\n"
    )
    assert run(block + "\nprint(corpus.label_names)", tmp_path).strip() == "('no', 'yes')"
