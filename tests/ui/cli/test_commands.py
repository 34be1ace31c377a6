"""Every command on a real study, and every example of every help."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import optuna
import psutil
import pytest
import yaml
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

from supermax._util import system
from supermax._util.attributes import MINILM, SETTINGS
from supermax.results.records import read_record
from supermax.results.report.collect import collect
from supermax.search.preview import _remaining_time, _trials
from supermax.search.settings.resolving import Value
from supermax.space import load, narrowed, space_of
from supermax.ui.cli.opening import the_study
from supermax.ui.cli.tune import resolved
from tests.conftest import eventually
from tests.ui.cli.helping import commands, examples, inside, sm, started

pytestmark = pytest.mark.usefixtures("quick", "preloaded")
LONG = (
    "supermax init",
    "supermax plan",
    "supermax refit",
    "supermax status",  # tests/ui/display has it
    "supermax tune",  # test_tune_prints_its_plan_and_resumes runs one
    "supermax track criteria",
    "supermax dashboard",  # tests/report has it served
    "supermax export criteria-model --onnx",
    "supermax replay 0",  # test_replay_reproduces_the_values_of_a_trial runs it
)
ELSEWHERE = (
    "database",  # tests/cluster runs it, as an ordinary user
    "push",  # tests/training/deploy has a stand-in of the hub
)
LINES = [
    (name, line)
    for name, command in commands().items()
    for line in examples(command)
    if name not in ELSEWHERE
]
EXAMPLES = [
    pytest.param(
        name, line, id=line, marks=[pytest.mark.slow] * (place % 2 or line.startswith(LONG))
    )
    for place, (name, line) in enumerate(LINES)
]


def test_every_command_has_an_example() -> None:
    without = [name for name, command in commands().items() if not examples(command)]
    assert without == []


@pytest.mark.parametrize(("name", "line"), EXAMPLES)
def test_every_example_of_every_help_runs(name: str, line: str, playground: Path) -> None:
    prepare(name, playground)
    args = shlex.split(line)[1:]
    if args[0] == "dashboard":
        serve(args)
        return
    if args[0] == "track":  # MLflow warns of much, and warnings are errors here
        if "tensorboard" in line:
            pytest.importorskip("tensorboard")
        subprocess.run([sys.executable, "-m", "supermax", *args], check=True)
        return
    assert " ".join(args).startswith(name)
    if args[0] == "tune":
        args.append("--no-supervisor")
    sm(*args, code=1 if "program.py:objective" in args else 0)  # the trial that failed


def serve(args: list[str]) -> None:
    """Run a command that ends only with Ctrl-C."""
    port = args[args.index("--port") + 1]
    with socket.socket() as probe:  # on a free port, whoever else listens on the example's
        probe.bind(("127.0.0.1", 0))
        free = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "supermax", *(free if a == port else a for a in args)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert f"http://127.0.0.1:{free}" in process.stdout.readline()
        while "Ctrl-C" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


def prepare(name: str, folder: Path) -> None:
    """Create the files that an example needs."""
    if name == "tune":
        (folder / "supermax.db").unlink()
        shutil.rmtree(folder / "supermax.db.supermax")
    if name == "refit":
        shutil.rmtree(folder / "criteria-model")
    if name in ("study migrate", "study diff", "study delete"):
        space = narrowed(load("demo/criteria"), {"text.max_length": {"low": 48, "high": 64}})
        (folder / "space.yaml").write_text(yaml.safe_dump(space.data()))
    if name in ("study diff", "study delete"):
        sm("study", "migrate", "criteria", "space.yaml")


def test_the_best_trials_come_with_their_parameters(playground: Path) -> None:
    found = json.loads(sm("best", "criteria", "--json", "--top", "2"))
    assert len(found) == 2
    assert found[0]["values"]["macro_f1"] >= found[1]["values"]["macro_f1"]
    assert found[0]["params"]["encoder.name"] == "tiny"
    assert "tiny" in sm("best")


def test_a_study_may_be_named_in_either_way(playground: Path) -> None:
    for command in (("best",), ("status",), ("study", "show")):
        by_argument = sm(*command, "criteria", "--json")
        assert sm(*command, "--study", "criteria", "--json") == by_argument
        assert sm(*command, "--json", "--study=criteria") == by_argument
    with pytest.raises(AssertionError, match="Missing argument"):
        sm("study", "show")


def test_a_trial_is_shown_with_curve_memory_and_attempts(playground: Path) -> None:
    said = sm("show", "0", "--storage", "supermax.db")
    for words in (
        "Curve:",
        "Peak memory:",
        "Steps: eager: runs on a CPU",
        "Metrics: macro_f1",
        "f1 of ",
        "Attempt 1 in cell",
        "optim.lr",
    ):
        assert words in said
    assert "It has no log." in sm("show", "0", "--storage", "study.db")
    crashed = sm("show", "2", "--storage", "study.db")
    assert "signal SIGSEGV" in crashed
    assert "last words" in crashed
    assert "\x1b" not in crashed
    assert crashed.count("last words") == 1  # attempt 1 and the whole log have it
    assert crashed.count("Current thread") == 1


def test_compare_shows_trials_side_by_side(playground: Path) -> None:
    said = sm("compare", "0", "1")
    assert "trial 0" in said
    assert "trial 1" in said
    assert "The same in all: encoder.name = tiny" in said
    assert len(json.loads(sm("compare", "0", "1", "--json"))) == 2
    assert "from two to" in sm("compare", "0", "0", code=2)


def test_faults_come_with_evidence_and_advice(playground: Path) -> None:
    said = sm("faults", "--storage", "study.db")
    for words in ("signal SIGSEGV", "exception", "never works with [x]", "What to do:", "x ="):
        assert words in said
    own = said[said.index("attempt 1: exception") :].splitlines()[1:3]
    assert own[0].endswith("program.py, line 9, in objective:")
    assert own[1].strip().startswith("raise ValueError(")
    crash = said[said.index("attempt 1: signal SIGSEGV") :]
    assert crash.splitlines()[1].endswith("program.py, line 12, in objective")
    assert "Fatal Python error: Segmentation fault" in crash
    (one,) = json.loads(sm("faults", "--storage", "study.db", "--kind", "exception", "--json"))
    assert one["trial"] == 1
    assert "ValueError" in one["traceback"]
    assert one["frame"]["line"] == 9
    assert 0 <= one["params"]["x"] <= 1
    assert "did you mean 'exception'" in sm(
        "faults", "--storage", "study.db", "--kind", "excepton", code=2
    )
    assert "no fault" in sm("faults")


def test_the_best_are_exported_as_json_and_csv(playground: Path) -> None:
    sm("export", "--top", "2")
    rows = json.loads((playground / "criteria-best.json").read_text())
    with (playground / "criteria-best.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["trial"] for row in rows] == [int(line["trial"]) for line in table]
    assert float(table[0]["macro_f1"]) == rows[0]["values"]["macro_f1"]
    assert table[0]["params.encoder.name"] == "tiny"
    assert "neither .json nor .csv" in sm("export", "-o", "best.txt", code=2)
    assert "cannot be written" in sm("export", "-o", "nowhere/best.csv", code=3)


@pytest.fixture
def replayed(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that replays a trial, and returns the output of its child as well."""

    def replay(*args: str, code: int = 0) -> str:
        said = sm("replay", *args, code=code)
        return f"{said}{''.join(capfd.readouterr())}"

    return replay


@pytest.mark.slow
def test_replay_reproduces_the_values_of_a_trial(
    playground: Path, replayed: Callable[..., str]
) -> None:
    said = replayed("0")
    now, was = re.findall(r"\[(.*?)\]", said)
    assert now == was
    failed = replayed("1", "--storage", "study.db", "--objective", "program.py:objective", code=1)
    assert "program.py" in failed
    assert "line 9" in failed
    assert "never works" in failed
    unknown = replayed("1", "--storage", "study.db", code=2)
    assert "was not made by `supermax tune`" in unknown
    wrong = replayed("1", "--storage", "study.db", "--objective", "program.py:objectiv", code=2)
    assert "did you mean 'objective'" in wrong


@pytest.mark.slow
def test_replay_shows_the_stack_and_the_signal_of_a_trial_that_dies(
    playground: Path, replayed: Callable[..., str]
) -> None:
    where = ("--storage", "study.db", "--objective", "program:objective")
    said = replayed("2", *where, code=128 + signal.SIGSEGV)
    assert "Fatal Python error: Segmentation fault" in said
    assert 'program.py", line 12 in objective' in said
    assert "Trial 2 died of SIGSEGV (signal 11). Its Python stack is above" in said
    program = playground / "program.py"
    program.write_text(program.read_text().replace("signal.SIGSEGV", "signal.SIGKILL"))
    killed = replayed("2", *where, code=128 + signal.SIGKILL)
    assert "Trial 2 was ended by SIGKILL (signal 9), which came from outside" in killed


@pytest.mark.slow
def test_ending_a_replay_ends_its_trial(playground: Path) -> None:
    (playground / "waits.py").write_text(
        "import os, pathlib, signal\n"
        "def objective(trial):\n"
        "    pathlib.Path('pid.new').write_text(str(os.getpid()))\n"
        "    pathlib.Path('pid.new').rename('pid')\n"
        "    while True:\n"
        "        signal.pause()\n"
    )
    where = ("--storage", "study.db", "--objective", "waits.py:objective")
    command = [sys.executable, "-m", "supermax", "replay", "0", *where]
    (playground / "tmp").mkdir()
    with subprocess.Popen(command, env={**os.environ, "TMPDIR": "tmp"}) as parent:
        assert eventually((playground / "pid").exists, within=60)
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(60) == 128 + signal.SIGTERM
    assert list((playground / "tmp").iterdir()) == []
    assert not psutil.pid_exists(int((playground / "pid").read_text()))


def test_predict_names_the_columns_it_used(playground: Path) -> None:
    said = sm("predict", "criteria-model", "notes.csv", "-o", "answers.csv")
    assert "60 rows predicted" in said
    assert "text from 'what was said', question from 'asked'" in said
    wrong = sm("predict", "criteria-model", "notes.csv", "-o", "a.csv", "--text", "said", code=2)
    assert "notes.csv has no column 'said' (--text)" in wrong
    assert "not a model that Supermax exported" in sm(
        "predict", "nowhere", "notes.csv", "-o", "a.csv", code=2
    )


def test_clean_lists_files_and_removes_them_only_on_confirmation(playground: Path) -> None:
    trials = playground / "supermax.db.supermax" / "criteria" / "trials"
    best = json.loads(sm("best", "--json", "--top", "1"))[0]["trial"]
    weights = {int(p.parent.name) for p in trials.glob("*/weights.safetensors")}
    assert len(weights) == 3
    assert "weights that are not among the best 1" in sm("clean", "--top", "1", "--dry-run")
    assert len(list(trials.glob("*/weights.safetensors"))) == 3
    assert "freed" in sm("clean", "--top", "1", "--yes")
    assert [int(p.parent.name) for p in trials.glob("*/weights.safetensors")] == [best]
    assert not (playground / "supermax-cache" / "tokens").exists()
    assert len(json.loads(sm("best", "--json"))) == 3
    assert "Nothing to remove" in sm("clean", "--top", "1", "--yes")
    mine = playground / "mine"
    (mine / "refits" / "abc" / "1").mkdir(parents=True)
    for name in ("thesis.tex", "refits/abc/1/done.pt"):
        (mine / name).write_text("hours of work")
    assert "Nothing to remove" in sm("clean", "--top", "1", "--cache", str(mine), "--yes")
    assert (mine / "thesis.tex").exists()
    assert (mine / "refits" / "abc" / "1" / "done.pt").exists()


def test_clean_reports_removed_files_as_json(playground: Path) -> None:
    could = json.loads(sm("clean", "--top", "1", "--json", "--yes", "--dry-run"))
    done = json.loads(sm("clean", "--top", "1", "--json", "--yes"))
    assert done["removed"] == could != []
    assert done["freed"] == sum(item["size"] for item in could)
    assert done["failed"] == []
    nothing = json.loads(sm("clean", "--top", "1", "--json", "--yes"))
    assert nothing == {"removed": [], "freed": 0, "failed": []}


def test_clean_creates_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    optuna.create_study(storage="sqlite:///supermax.db", study_name="bare")
    sm("clean", "--dry-run")
    sm("study", "delete", "bare", "--yes")
    assert [path.name for path in tmp_path.iterdir()] == ["supermax.db"]


def test_the_doctor_says_whether_a_run_can_start(playground: Path) -> None:
    said = sm("doctor", "notes.yaml")
    assert "A run can start." in said
    assert "bert-large-uncased" not in said  # which the file does not have
    assert "60 texts to classify: no 40 (67%), yes 20 (33%)" in said
    (playground / "notes.csv").unlink()
    broken = sm("doctor", "notes.yaml", code=1)
    assert "There is no file" in broken
    both = sm("doctor", "notes.yaml", "--preset", "demo", code=2)
    assert "cannot go with notes.yaml, which has its own" in both
    nothing = sm("doctor", "--preset", "supermax", code=1)
    assert "A run cannot start" in nothing  # none of its encoders is here
    found = json.loads(sm("doctor", "--json"))
    assert {finding["about"] for finding in found} >= {"python", "machine", "device", "storage"}


@pytest.mark.slow
def test_the_doctor_names_the_encoders_of_this_machine(
    playground: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = playground / "hub"
    for name, made in {"some": BertModel(bert()), "gpt": GPT2Model(gpt())}.items():
        made.save_pretrained(cache / f"models--me--{name}" / "snapshots" / "1")
    bert().save_pretrained(cache / "models--me--half" / "snapshots" / "1")
    for repo in cache.iterdir():
        (repo / "refs").mkdir()
        (repo / "refs" / "main").write_text("1")
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    packaged = ["minilm"] if importlib.util.find_spec(MINILM) else []
    (line,) = [each for each in started("doctor").splitlines() if "on this machine:" in each]
    assert line.split(": ")[1].split(", ") == [*packaged, "me/some"]  # one decoder, one half


def bert() -> BertConfig:
    return BertConfig(
        vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=4,
    )  # fmt: skip


def gpt() -> GPT2Config:
    return GPT2Config(vocab_size=9, n_positions=9, n_embd=4, n_layer=1, n_head=1)


def test_tune_prints_its_plan_and_resumes(playground: Path) -> None:
    said = sm("tune", "notes.yaml", "--no-supervisor", "--workers", "2", "-v")
    for words in (
        "60 texts to classify: no 40 (67%), yes 20 (33%)",
        "tiny (not pretrained)",
        "trials: 2, epochs: up to 1, 2 at a time",
        "of weights and states",
        "workers = 2 (--workers)",
        "epochs = 1 (notes.yaml, line",
        "patience = 3 (preset demo)",
        "Best so far: trial",
    ):
        assert words in said
    again = sm("tune", "notes.yaml", "--no-supervisor", "--workers", "auto")
    assert f"up to {system.cores()} at a time" in again
    (settings_line,) = [line for line in again.splitlines() if line.startswith("Settings")]
    assert " from notes.yaml, " in settings_line
    assert settings_line.endswith(" (-v shows each)")
    assert "--workers)" not in again
    assert "2 finished trials in the study (2 COMPLETE). This run: 0" in again
    settings = resolved("notes.yaml", {"trials": Value(102, "here")})[0].settings
    assert "s a trial so far" in _remaining_time(settings, 2, _trials(settings))[0]
    assert "for the remaining 100" in _remaining_time(settings, 2, _trials(settings))[0]


def test_a_report_has_the_data_the_baselines_and_the_refit_and_its_file_searches_again(
    playground: Path,
) -> None:
    sm("refit", "criteria", "--seeds", "1,", "-o", "again-model")
    sm("report", "criteria", "-o", "report.html")
    found = (playground / "report.html").read_text()
    for words in ("TF-IDF with logistic regression", "trivial: majority class", "95% interval",
                  "on the test split", "texts, in", "predicted →"):  # fmt: skip
        assert words in found, words
    record = read_record(the_study("supermax.db", "criteria"))
    (playground / "search.yaml").write_text(collect(record, "supermax.db").settings)
    said = sm("tune", "search.yaml", "--no-supervisor", "--trials", "1", "--storage", "again.db")
    assert "Best so far: trial 0" in said
    other = read_record(the_study("again.db", "criteria"))
    for what in ("data", "splits", "objectives", "limits"):
        assert other.experiment[what] == record.experiment[what]
    assert space_of(other.study) == space_of(record.study)


def test_a_refit_refuses_data_that_has_changed(playground: Path) -> None:
    study = optuna.load_study(study_name="criteria", storage="sqlite:///supermax.db")
    kept = study.user_attrs[SETTINGS]
    kept["data"]["posts"] += 1
    study.set_user_attr(SETTINGS, kept)
    assert "is not what it was" in sm("refit", "criteria", "-o", "other", code=2)


def test_tune_respects_the_memory_budget(playground: Path) -> None:
    """A search that cannot fit is refused before it starts, with advice."""
    small = ("--no-supervisor", "--set", "name=small", "--trials", "1", "--gpu-memory", "8MB")
    with inside(playground):
        said = sm("tune", "notes.yaml", *small, code=2)
    assert "Nothing of the space fits into 7.6 MiB: the smallest configuration needs" in said


@pytest.mark.slow
def test_a_program_that_searches_when_it_is_run_does_not_search_when_it_is_replayed(
    playground: Path, replayed: Callable[..., str]
) -> None:
    program = (playground / "program.py").read_text()
    (playground / "program.py").write_text(
        "import optuna, supermax\n" + program + "\nstudy = optuna.load_study(study_name='plain', "
        "storage='sqlite:///study.db')\nsupermax.optimize(study, objective, n_trials=9)\n"
    )
    said = replayed("0", "--storage", "study.db", "--objective", "program.py:objective")
    assert "Values: " in said
    assert (
        json.loads(sm("study", "show", "plain", "--storage", "study.db", "--json"))["finished"]
        == 4
    )
