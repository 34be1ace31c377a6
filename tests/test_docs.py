"""Tutorial, how-to pages, reference and notebook: their commands and code run."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import optuna
import pytest

import supermax
from supermax.engine.processes.supervisor import (
    BUG,
    ENVIRONMENT,
    HALTED,
    INTERRUPTED,
    PAUSED,
    QUARANTINED,
    REACHED,
    USER,
)
from supermax.search.data import data_of
from supermax.search.settings import resolve
from supermax.search.spaces import space_for
from supermax.space import choices
from supermax.space.presets import presets
from supermax.space.reading import load
from supermax.tasks.preflight import check_space
from supermax.training.deploy.export import export
from supermax.training.deploy.exported import Description
from supermax.ui.cli import app
from tests import ROOT
from tests.training.corpora import config, ready
from tests.ui.cli.helping import command_of, sm

SOURCE = ROOT / "src" / "supermax"
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def shell_lines(text: str) -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


def in_order(page: Path, folder: Path) -> None:
    """Run every shell line of a page in order."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    shutil.copy(ROOT / "examples" / "notes.csv", folder)
    for line in shell_lines(page.read_text()):
        if line.startswith("make "):
            continue  # test_readme.py looks after these
        if line.startswith("supermax "):
            args = shlex.split(line)[1:]
            sm(*args, *(["--no-supervisor"] if args[0] == "tune" else []))
        else:
            subprocess.run(line, shell=True, check=True, cwd=folder)


@pytest.mark.slow
def test_the_tutorial_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    in_order(ROOT / "docs" / "tutorial.md", tmp_path)
    assert len((tmp_path / "answers.csv").read_text().splitlines()) == 241
    assert json.loads(sm("study", "show", "notes", "--json"))["finished"] == 8


@pytest.mark.slow
def test_the_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    in_order(ROOT / "README.md", tmp_path)
    assert (tmp_path / "report.html").stat().st_size > 1_000_000
    assert (tmp_path / "answers.csv").exists()


@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])
def test_every_command_of_every_page_is_one_that_exists(page: Path) -> None:
    text = page.read_text()
    lines = [
        line.strip()
        for line in text.splitlines()
        if re.match(r"^(    |nohup )?(nohup )?supermax [a-z]", line)
    ]
    lines += re.findall(r"`(supermax [a-z][^`]*)`", text)
    for line in lines:
        words = shlex.split(re.split(r"  #| > |…| \|| FILE| NAME", line)[0])
        words = words[words.index("supermax") + 1 :]
        if "[OPTIONS]" not in words:
            parses(words, line)


def parses(words: list[str], line: str) -> None:
    command: Any = command_of(app)
    context = click.Context(command, info_name="supermax")
    while getattr(command, "commands", None) and words:
        assert words[0] in command.commands, line
        command, words = command.commands[words[0]], words[1:]
    options = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
    for word in words:
        if word.startswith("-") and not re.match(r"^-\d", word):
            assert word in options, f"{line}: {word} of {context.info_name}"


@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().partition("nav:")[2]
    pages = re.findall(r"[\w./-]+\.md", nav)
    files = {path.relative_to(ROOT / "docs").as_posix() for path in PAGES if "docs" in path.parts}
    assert sorted(pages) == sorted({*files, "index.md", "CONTRIBUTING.md"})


@pytest.mark.skipif(find_spec("material") is None, reason="'make docs' installs MkDocs Material")
def test_the_site_has_no_broken_link(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").exists()


def test_the_readme_is_short_and_so_is_the_page_on_structure() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
    assert len((ROOT / "docs" / "structure.md").read_text().splitlines()) <= 130


def test_the_page_on_structure_is_true() -> None:
    """Every package is in the tree; every file and name that answers a question exists."""
    text = (ROOT / "docs" / "structure.md").read_text()
    tree = text.partition("src/supermax/")[2].partition("tests/")[0]
    shown = re.findall(r"^ +(\w+)/ ", tree, re.MULTILINE)
    packages = [path.parent.name for path in SOURCE.rglob("*/__init__.py")]
    assert sorted(shown) == sorted({*packages, "catalog"} - {"figures", "ui"})
    answers = text.partition("## Where to find what")[2]
    for file, names in re.findall(r"`([\w/]+\.py)`(?:: ((?:`\w[\w.]*`(?:, )?)+))?", answers):
        found = [SOURCE / file, *SOURCE.rglob(file)]
        code = "".join(path.read_text() for path in found if path.exists())
        assert code, file
        for name in re.findall(r"`([\w.]+)`", names):
            assert re.search(rf"\b{name.split('.')[-1]}\b", code), f"{file}: {name}"


def test_every_private_name_of_another_library_is_listed() -> None:
    text = (ROOT / "docs" / "upgrading.md").read_text()
    for path in SOURCE.rglob("*.py"):
        for name in private_names(ast.parse(path.read_text())):
            assert re.search(rf"\b{name}\b", text), f"{path.relative_to(SOURCE)}: {name}"


def private_names(tree: ast.Module) -> set[str]:
    """Return private attributes, imports and modules that a module uses and does not define."""
    used, own = set(), {"_exit"}  # os._exit is public
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                own.add(name)
            case ast.Attribute(value=ast.Name("self" | "cls"), attr=name):
                own.add(name)
            case ast.Attribute(attr=name):
                used.add(name)
            case ast.ImportFrom(module=str(module), names=names):
                if not module.startswith("supermax"):
                    used.update(module.split("."), (alias.name for alias in names))
            case ast.Import(names=names):
                used.update(part for alias in names for part in alias.name.split("."))
    return {name for name in used - own if re.match(r"_[a-zA-Z]", name)}


def test_every_test_that_watches_a_private_name_exists() -> None:
    text = (ROOT / "docs" / "upgrading.md").read_text()
    watching = re.findall(r"`([\w/]+\.py)::(\w+)`", text)
    assert len(watching) > 30
    for file, name in watching:
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), f"{file}::{name}"


def test_the_reference_is_what_the_code_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = str(ROOT / "scripts" / "reference.py")
    monkeypatch.setattr(sys, "argv", [script, "--check"])
    assert runpy.run_path(script)["main"]() == 0, capsys.readouterr().out


def test_the_exit_codes_are_all_there() -> None:
    text = (ROOT / "docs" / "howto" / "unattended.md").read_text()
    for code in (REACHED, BUG, USER, ENVIRONMENT, HALTED, PAUSED, QUARANTINED, INTERRUPTED):
        assert re.search(rf"^\| {code}\b", text, re.MULTILINE), code


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "howto" / "unattended.md").read_text()
    (unit,) = re.findall(r"```ini\n(.*?)```", text, re.DOTALL)
    program = tmp_path / "search" / ".venv" / "bin" / "supermax"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit_name = "supermax-tune.service"
    (tmp_path / unit_name).write_text(unit)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(tmp_path / unit_name)],
        env={**os.environ, "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line for line in (done.stdout + done.stderr).splitlines() if unit_name in line]
    assert (done.returncode, said) == (0, [])  # other units of this machine are not ours


def test_the_yaml_of_the_pages_is_valid(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "howto" / "change-the-space.md").read_text()
    settings, space = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "settings.yaml").write_text(settings)
    (tmp_path / "space.yaml").write_text(space)
    found = resolve(None, file=tmp_path / "settings.yaml", presets=presets()).settings
    assert found.narrow["optim.lr"] == {"low": 1e-5, "high": 1e-4}
    assert "head.dropout" not in load(tmp_path / "space.yaml").parameters


def test_the_yaml_of_the_page_on_lora_is_valid(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "howto" / "lora.md").read_text()
    settings, space = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "settings.yaml").write_text(f"agent: criteria\npreset: max\n{settings}")
    (tmp_path / "space.yaml").write_text(space)
    found = resolve(None, file=tmp_path / "settings.yaml", presets=presets()).settings
    for each in (space_for(found), load(tmp_path / "space.yaml")):
        check_space("criteria", each)
        assert choices(each, "adapter.name") == ["none", "lora"]


@pytest.mark.slow
def test_the_commands_of_the_page_on_lora_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "examples" / "notes.csv", tmp_path)
    prepared = ready(tmp_path / "cache", config(encoder={"name": "tiny-bert"}), n=30)
    description = Description(("no", "yes"), None, {}, "")
    export(tmp_path / "base", prepared, prepared.model.state_dict(), description)
    encoder = str(tmp_path / "base" / "encoder")
    sm("init", "notes.csv", "--force")
    few = ["--models", encoder, "--preset", "demo", "--trials", "3", "--epochs", "1"]
    text = (ROOT / "docs" / "howto" / "lora.md").read_text()
    for line in re.findall(r"^    supermax (.*)$", text, re.MULTILINE):
        args = shlex.split(line)
        more = [*few, "--no-supervisor"] if args[0] == "tune" else []
        more += ["--seeds", "1"] if args[0] == "refit" else []
        sm(*args, *more)
    trials = json.loads(sm("best", "notes", "--json"))
    assert {trial["params"]["adapter.name"] for trial in trials} == {"lora"}
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    facts = run_program(program)
    assert facts["model"].peft_config["default"].modules_to_save
    Path("one.csv").write_text("asked,what was written\nSleep issues?,I slept badly again\n")
    sm("predict", "adapter", "one.csv", "-o", "one.jsonl")
    (found,) = map(json.loads, Path("one.jsonl").read_text().splitlines())
    given = [found["probabilities"][name] for name in ("no", "yes")]
    assert facts["logits"].softmax(-1)[0].tolist() == pytest.approx(given, abs=1e-5)
    assert not (tmp_path / "model" / "adapter_config.json").exists()
    answers = [line.split(",")[1] for line in Path("answers.csv").read_text().splitlines()]
    sm("predict", "model", "notes.csv", "-o", "merged.csv")
    merged = [line.split(",")[1] for line in Path("merged.csv").read_text().splitlines()]
    assert answers == merged


@pytest.mark.slow
def test_the_objective_of_the_how_to_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "howto" / "own-objective.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    few = block.replace("n_trials=20", "n_trials=4") + "\nprint(len(study.trials))"
    assert run(few, tmp_path).split()[-1] == "4"


@pytest.mark.slow
def test_the_program_of_the_how_to_with_a_trainer_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "howto" / "trainer.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (program,) = [block for block in blocks if "import torch" in block]
    said = run(f"{program}\nprint(type(model).__name__)", tmp_path)
    assert said.split()[-1] == "BertForSequenceClassification"


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    """Run cell by cell in a separate process; the last line of a cell is displayed."""
    cells = json.loads((ROOT / "examples" / "search.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert all(not cell.get("outputs") for cell in cells)
    said = run("\n".join(code) + "\nprint(frame.shape, sorted(figures), result.folder)", tmp_path)
    assert "(4," in said
    assert "history-0" in said
    assert (tmp_path / "notebook-report.html").exists()
    assert (tmp_path / "notebook-model").is_dir()


def run(program: str, folder: Path) -> str:
    (folder / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_format_of_the_page_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every `supermax init` of the page, with a stand-in for the Hub, and its program."""
    pandas = pytest.importorskip("pandas")
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    notes = pandas.read_csv(ROOT / "examples" / "notes.csv")
    notes.to_csv("notes.csv", index=False)
    notes.to_parquet("notes.parquet")
    parts = datasets.Dataset.from_pandas(notes).train_test_split(0.2, seed=0)
    parts.save_to_disk("saved")
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: parts)
    for place in ("train/pos", "train/neg", "test/pos", "test/neg"):
        (tmp_path / "reviews" / place).mkdir(parents=True)
        for i in range(12):
            (tmp_path / "reviews" / place / f"{i}.txt").write_text(f"{place} was seen {i} times")
    topics = [["praise"], [], ["praise", "quality"], ["quality"]] * 15
    rows = [{"text": f"A long text {i}", "topics": own} for i, own in enumerate(topics)]
    (tmp_path / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = (ROOT / "docs" / "howto" / "data-formats.md").read_text()
    (tmp_path / "conll").mkdir()
    (sentence,) = re.findall(r"^    (Anna .*)\n    (.*)\n    (Oslo .*)$", text, re.MULTILINE)
    for file in ("train.conll", "conll/train.conll", "conll/dev.conll", "conll/test.conll"):
        named = ("\n".join(sentence).replace("Anna", f"Anna{i}") for i in range(30))
        (tmp_path / file).write_text("\n\n".join(named))
    lines = [line for line in shell_lines(text) if line.startswith("supermax init")]
    assert len(lines) == 9
    others = {"conll": "token-classification", "requests": "multilabel"}
    for line in lines:
        said = sm(*shlex.split(line)[1:], "--force")
        agent = next((others[part] for part in others if part in line), "criteria")
        assert agent in said
        (place,) = re.findall(r"Written to (\S+)\.", said)
        splits = supermax.Study.from_config(place).splits
        assert min(splits.train.count(agent), splits.validation.count(agent)) > 2
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    facts = run_program(program.replace("study.run()", "study.plan()"))
    assert sum(len(part.classes) for part in facts["study"].splits.parts) == 240


def run_program(program: str) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    exec(compile(program, "program", "exec"), facts)
    return facts


def test_tweeteval_becomes_a_table(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "howto" / "public-data.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    folder = tmp_path / "emotion"
    folder.mkdir()
    (folder / "mapping.txt").write_text("0\tanger\n1\tjoy\n")
    for split in ("train", "val", "test"):
        texts = [f'{split} number {i}, "so" it is\u2028indeed' for i in range(20)]
        (folder / f"{split}_text.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
        (folder / f"{split}_labels.txt").write_text("".join(f"{i % 2}\n" for i in range(20)))
    (tmp_path / "convert.py").write_text(program)
    subprocess.run([sys.executable, "convert.py", "emotion"], cwd=tmp_path, check=True)
    splits = data_of(
        supermax.Study.from_config(agent="criteria", data=str(tmp_path / "emotion.csv")).settings
    )
    assert [len(part.classes) for part in splits.parts] == [20, 20, 20]
    assert splits.train.label_names == ("anger", "joy")


@pytest.fixture
def with_new_task(tmp_path: Path) -> Path:
    """Copy of the package with the files of the how-to page; its settings are beside it."""
    page = (ROOT / "docs" / "howto" / "new-task.md").read_text()
    agent, line, space, settings = re.findall(r"```(?:python|yaml)\n(.*?)```", page, re.DOTALL)
    package = tmp_path / "src" / "supermax"
    shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "agents" / "inference.py").write_text(agent)
    (package / "space" / "catalog" / "inference.yaml").write_text(space)
    names = package / "agents" / "__init__.py"
    names.write_text(names.read_text().replace("_ALL = (", line + "_ALL = (INFERENCE,"))
    (tmp_path / "pairs.yaml").write_text(settings)
    return tmp_path


def run_there(folder: Path, *arguments: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(folder / "src")}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=env, cwd=folder, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def test_the_task_of_the_how_to_has_a_space_in_every_preset(with_new_task: Path) -> None:
    program = (
        "from supermax.space.presets import preset, presets\n"
        "print([preset('nli', name).space.name for name in presets()])"
    )
    said = run_there(with_new_task, "-c", program)
    assert ast.literal_eval(said) == ["inference"] * len(presets())


@pytest.mark.slow
def test_the_task_of_the_how_to_is_searched(with_new_task: Path) -> None:
    facts = [("It rains.", "The street is wet.", "yes"), ("It is dry.", "It rains.", "no")]
    rows = [f"{a},{b} {n},{relation}" for n in range(30) for a, b, relation in facts]
    (with_new_task / "pairs.csv").write_text("\n".join(["premise,hypothesis,relation", *rows]))
    few = ("--trials", "2", "--epochs", "1", "--no-supervisor")
    run_there(with_new_task, "-m", "supermax", "tune", "pairs.yaml", *few)
    study = optuna.load_study(study_name="pairs", storage=f"sqlite:///{with_new_task}/supermax.db")
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "COMPLETE"]
    assert all(0 <= trial.value <= 1 for trial in study.trials if trial.value is not None)
    run_there(with_new_task, "-m", "supermax", "refit", "pairs", "-o", "model")
    assert (with_new_task / "model" / "config.json").exists()
