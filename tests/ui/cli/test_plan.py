"""Output of `supermax tune` before its first trial: immediate and readable."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest

from supermax.engine.processes import supervisor
from supermax.errors import UserError
from supermax.search import preview, resources
from supermax.search.prepare import prepare_search
from supermax.search.preview import folded
from supermax.search.settings import Resolved, Settings, resolve
from supermax.search.settings.resolving import Value
from supermax.space.presets import presets
from supermax.tasks.provisioning import MemoryPlanner
from supermax.training.steps.execution import Execution
from supermax.ui.cli.stdio import wrapped
from supermax.ui.cli.tune import resolved
from tests.ui.cli.helping import inside, sm

LONG = [
    "Search      criteria into the study 'criteria' in /somewhere/with/a/long-name/supermax.db",
    "Encoders    " + ", ".join(f"encoder-number-{i}" for i in range(12)),
    "            another line of the same",
]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_plan_is_wrapped_between_words_and_indented(width: int) -> None:
    lines = folded(LONG, width)
    assert all(len(line) <= width or " " not in line.strip() for line in lines)
    assert " ".join(" ".join(lines).split()) == " ".join(" ".join(LONG).split())
    heads = [line for line in lines if not line.startswith(" " * 12)]
    assert [head.split()[0] for head in heads] == ["Search", "Encoders"]
    assert folded(LONG, 10) == LONG


@pytest.mark.slow
def test_the_first_line_comes_before_anything_is_loaded(tmp_path: Path) -> None:
    """torch takes seconds to import; here the import fails."""
    (tmp_path / "torch.py").write_text("raise SystemExit(2)\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "supermax", "tune", "criteria"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.splitlines()[0].startswith("[supermax] Starting.")
    assert done.stderr.count("Starting.") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["tune", "criteria"], supervisor.ENVIRONMENT),
        pytest.param(["doctor"], 1, marks=pytest.mark.slow),
    ],
)
def test_a_package_that_cannot_be_imported_is_named_at_once(
    command: list[str], code: int, tmp_path: Path
) -> None:
    """A run that cannot start is not restarted."""
    (tmp_path / "transformers.py").write_text("import a_missing_package\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "supermax", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert "No module named 'a_missing_package'" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "started again" not in done.stderr


@pytest.mark.slow
def test_trials_refused_as_too_large_are_offered_when_there_is_more_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # A search begins only if something fits; here nothing of it is drawn.
    monkeypatch.setattr(MemoryPlanner, "check_anything_fits", lambda *_: None)
    few = ("--trials", "2", "--set", "data.posts=60", "--set", "epochs=1", "--no-supervisor")
    memory = ("--gpu-memory", "8MB")
    first = sm("tune", "criteria", "-v", *few, *memory)
    assert "Memory      7.6 MiB of this machine's memory for trials: 0% of" in first
    assert "gpu_memory = 7.6 MiB (--gpu-memory)" in first
    again = "`supermax study retry criteria --state pruned` runs all that were pruned again"
    assert again not in first
    assert again not in sm("tune", "criteria", *few, *memory)
    more = sm("tune", "criteria", *few, "--gpu-memory", "16GiB")
    assert f"2 trials refused as too large would fit now: {again}" in more
    sm("study", "retry", "criteria", "--state", "pruned")
    assert again not in sm("tune", "criteria", *few, "--gpu-memory", "16GiB")


@pytest.mark.parametrize(("said", "meant"), [("auto", None), ("yes", True), (False, False)])
def test_the_compile_setting_is_passed_on(
    said: object, meant: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = {"compile": Value(said, "here"), "data.posts": Value(60, "here")}
    search = prepare_search(resolve("criteria", flags=flags, presets=presets()))
    assert search.execution.compiled is meant


def test_a_cpu_machine_gets_no_advice_about_gpu_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    few = {"trials": Value(1, "here"), "data.posts": Value(60, "here")}
    wanted = resolve("criteria", flags=few, presets=presets())
    search = prepare_search(wanted)
    for name in ("HostBudget", "GpuBudget"):
        monkeypatch.setattr(resources, name, lambda _: SimpleNamespace(whole=0))
    (on_cpu,) = preview._memory_fit(search, wanted.settings, [])
    on_gpus = replace(search, execution=Execution(device="cuda"))
    (on_gpu,) = preview._memory_fit(on_gpus, wanted.settings, [])
    assert on_cpu == "cannot be read, and is not planned: set --gpu-memory"
    assert "pip install nvidia-ml-py, or set --gpu-memory" in on_gpu


def test_the_plan_says_how_trials_share_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    alone = Settings(agent="criteria", trials=1, epochs=1)
    sharing = alone.model_copy(update={"mps": True})
    assert preview._on_gpus(sharing, 4) == "on the GPU"  # it cannot be shared here
    (tmp_path / "nvidia-cuda-mps-control").touch(mode=0o755)
    assert preview._on_gpus(alone, 1) == "on the GPU"
    assert preview._on_gpus(sharing, 4) == "sharing the GPU"
    assert "--mps" in preview._on_gpus(alone, 4)
    two = sharing.model_copy(update={"gpus": ["0", "1"]})
    assert preview._on_gpus(two, 2) == "on 2 GPUs"
    assert preview._on_gpus(two, 4) == "sharing 2 GPUs"


def test_the_plan_says_from_when_on_the_search_may_end_by_itself() -> None:
    few = Settings(agent="criteria", trials=50, epochs=1)
    assert preview._stop(few) == []
    assert preview._stop(few.model_copy(update={"stop": "when_no_gain"})) == [
        "when_no_gain has no effect: it needs 50 finished trials, and --trials is 50"
    ]
    (said,) = preview._stop(few.model_copy(update={"stop": "when_no_gain", "trials": 51}))
    assert said == "once no further gain is expected, after 50 finished trials at the earliest"


def test_the_plan_warns_of_more_trials_than_cores() -> None:
    few = Settings(agent="criteria", trials=3, epochs=1)
    assert preview.too_few_cores(few, 8, 3) == []  # there are no more
    (said,) = preview.too_few_cores(few, 8, 1)
    assert said == "3 parallel trials share 1 core and slow each other down: lower --workers"


def test_mps_is_a_flag_of_tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text("agent: criteria\nmps: true\n")
    meant: list[Resolved] = []

    def run_all(searches: list[Resolved], *, verbose: bool) -> int:
        meant.extend(searches)
        return 0

    monkeypatch.setattr(sys.modules["supermax.ui.cli.tune"], "run_all", run_all)
    for flags in (("criteria", "--mps"), ("criteria",), ("a.yaml",), ("a.yaml", "--no-mps")):
        sm("tune", *flags, "--no-supervisor")
    sm("tune", "criteria", "--compile", "false", "--no-supervisor")
    assert meant.pop().settings.compile is False
    assert [search.settings.mps for search in meant] == [True, False, True, False]
    assert "mps = True (--mps)" in "\n".join(preview.origins(meant[0], verbose=True))
    assert "mps = False (--no-mps)" in "\n".join(preview.origins(meant[3], verbose=True))


def test_the_plan_counts_settings_and_shows_each_when_asked(tmp_path: Path) -> None:
    file = tmp_path / "notes.yaml"
    file.write_text("agent: criteria\nmodels: [minilm]\nseed: 3\nworkers: 2\nepochs: 4\n")
    flags = {"trials": Value("7", "--trials"), "workers": Value("1", "--workers")}
    environment = {"HPO_PATIENCE": "2"}
    found = resolve(None, file=file, environment=environment, flags=flags, presets=presets())
    assert preview.origins(found) == [
        "Settings    4 from notes.yaml, 2 from flags, 1 from the preset standard, "
        "1 from the environment (-v shows each)"
    ]
    each = preview.origins(found, verbose=True)
    assert len(each) == 8
    assert "            seed = 3 (notes.yaml, line 3)" in each
    assert "            preset = standard (since minilm is pretrained)" in each
    named = resolve("criteria", flags={"preset": Value("demo", "--preset")}, presets=presets())
    assert preview.origins(named) == [
        "Settings    3 from the preset demo, 1 from flags (-v shows each)"
    ]


@pytest.mark.parametrize("verbose", [True, False])
def test_verbose_is_a_flag_of_tune(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verbose: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[bool] = []

    def plan(_: object, verbose: bool) -> list[str]:
        asked.append(verbose)
        raise UserError("enough")

    monkeypatch.setattr(preview, "describe_plan", plan)
    few = ("--set", "data.posts=60", "--no-supervisor")
    assert "enough" in sm("tune", "criteria", *few, *(["-v"] if verbose else []), code=2)
    assert asked == [verbose]


@pytest.mark.slow
def test_a_plan_fits_the_terminal_and_is_whole_in_a_pipe(tmp_path: Path) -> None:
    data = ("--set", "data.posts=60", "--set", "epochs=1", "--trials", "1")
    command = [sys.executable, "-m", "supermax", "tune", "criteria", *data, "--no-supervisor"]
    piped = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    (long,) = [line for line in piped.stdout.splitlines() if line.startswith("Data")]
    assert len(long) > 60
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": "60"},
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            said += os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
    assert process.wait(60) == 0
    lines = said.decode().split("Best so far")[0].splitlines()
    assert max(map(len, lines)) <= 60
    assert " ".join(long.split()) in " ".join(" ".join(lines).split())
    os.close(ours)


@pytest.mark.usefixtures("quick", "preloaded")
def test_a_timeout_that_is_over_before_the_first_trial_is_explained(tmp_path: Path) -> None:
    with inside(tmp_path):
        given = ("criteria", "--set", "data.posts=60", "--no-supervisor")
        said = sm("tune", *given, "--timeout", "0.01", code=5)
    assert "No trial of 'criteria' has a value yet. The timeout of 0.01 s starts" in said
    assert "includes loading" in said


def test_the_plan_counts_the_rows_of_the_first_classes(tmp_path: Path) -> None:
    """Many classes would fill the screen."""
    file = tmp_path / "tickets.csv"
    rows = "".join(f"words of ticket {i},kind {i % 30}\n" for i in range(600))
    file.write_text("text,label\n" + rows)
    [search] = resolved(str(file), {})
    said = preview.describe_data(prepare_search(search))[0]
    assert ": kind 0 20 (3%), kind 1 20 (3%)" in said
    assert said.endswith("kind 19 20 (3%), and 18 more classes")  # in the order of their names


def test_sentences_are_wrapped_on_a_terminal_and_commands_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr(terminal := StringIO(), "isatty", lambda: True)
    text = "Paused: the same command resumes.\nShow it: supermax best notes --top 3"
    assert wrapped(text, StringIO()) == text
    assert wrapped(text, terminal) == (
        "Paused: the same command\nresumes.\nShow it: supermax best notes --top 3"
    )
