"""Names of studies on the command line, and messages about wrong ones."""

from __future__ import annotations

import subprocess
from pathlib import Path

import optuna
import pytest

import supermax
from supermax.errors import UserError
from supermax.results.records import FaultRecord
from supermax.search.settings import resolve
from supermax.search.settings.resolving import Value
from supermax.space.presets import presets
from supermax.ui.cli.inspect import _tail, _unprinted, _with_final_culprits
from supermax.ui.cli.outcome import _name_storage, _where
from supermax.ui.cli.tune import assigned, resolved
from tests.ui.cli.helping import commands, sm


def takes_a_study(name: str) -> bool:
    return any("--study" in param.opts for param in commands()[name].params)


SPACE = "name: {}\nparameters: {{x: {{type: float, low: 0, high: {}}}}}"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("-x", "b\x1b[2Jad"):
        optuna.create_study(storage="sqlite:///supermax.db", study_name=name)
    return tmp_path


def test_a_study_may_begin_with_a_dash(here: Path) -> None:
    assert "-x: minimize; no trials" in sm("study", "show", "--study=-x")
    space = supermax.space.loads(SPACE.format("'-1'", 1))
    supermax.open_study(space, storage="supermax.db", quiet=True)
    (here / "other.yaml").write_text(SPACE.format("o", 2))
    for order in (("--study=-1", "other.yaml"), ("other.yaml", "--study=-1")):
        assert "x" in sm("study", "diff", *order)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("best", "--study"), "--study needs a name"),
        (("best", "--study", "--json"), "--study needs a name"),
        (("best", "--study", "a", "--study=b"), "--study is given twice"),
        (("show", "1", "--study", "a", "--study", "b"), "--study is given twice"),
        (("show", "1", "--study", "--json"), "--study needs a name"),
        (("best", "a", "--study", "b"), "named twice: a, and --study b. Leave one of them out."),
        (("study", "show", "a", "--study", "b"), "named twice: a, and --study b."),
        (("study", "diff", "a", "o.yaml", "--study", "b"), "named twice: a, and --study b."),
        (("show", "criteria"), "'criteria' is not a trial number. Name a study with --study"),
        (("show", "criteria", "1"), "'criteria' is not a trial number. Name a study with --study"),
        (("show", "1", "criteria", "--study=-x"), "criteria"),
        (("compare", "criteria", "1", "2"), "Name a study with --study criteria."),
        (("replay", "criteria", "1"), "Name a study with --study criteria."),
        (("best",), "several studies in supermax.db: -x, bad. Name one with --study."),
        (("show", "1"), "several studies in supermax.db: -x, bad. Name one with --study."),
        (("status", "--watch"), "Name one with --study."),
        (("tune", "all", "--study", "x"), "cannot share one study: leave out --study."),
        (("tune", "all", "--set", "name=x"), "cannot share one study: leave out --set name."),
        (
            ("best", "zzz"),
            "bad. The storage is supermax.db: --storage names another.",
        ),
        (("best", "\x1b[2Jq"), "There is no study 'q'"),
    ],
)
def test_a_mistake_is_a_sentence(args: tuple[str, ...], words: str) -> None:
    said = sm(*args, code=2)
    assert words in said
    assert "\x1b" not in said


@pytest.mark.parametrize("name", [n for n in commands() if takes_a_study(n)])
def test_every_command_shows_how_a_study_is_named(name: str) -> None:
    said = sm(*name.split(), "--help")
    assert "--study STUDY" in said
    assert "NAME" not in said.splitlines()[1]


def test_the_commands_that_take_a_study() -> None:
    """The others are about a storage, a file, a folder or this machine."""
    others = {n for n in commands() if not takes_a_study(n)}
    machine = {"clean", "database", "doctor"}
    assert others == {"init", "plan", "predict", "push", "slurm", "study list", *machine}


def test_a_study_of_a_search_may_be_named_like_any_other() -> None:
    flags = {"name": Value("mine", "--study")}
    assert resolved("criteria", flags)[0].settings.study == "mine"


@pytest.mark.parametrize("key", ["storage", "run_dir", "checkpoints", "address", "cache"])
def test_an_empty_place_is_not_the_default(key: str) -> None:
    """Such as --storage "$VARIABLE" of a variable that is not set."""
    with pytest.raises(UserError, match=rf"--set {key}: it is empty: leave it out"):
        resolved("criteria", {key: Value("", f"--set {key}")})


@pytest.mark.parametrize("command", ["tune criteria", "slurm criteria"])
def test_checkpoints_at_a_mistyped_url_are_refused(command: str, here: Path) -> None:
    more = ("--nodes", "1", "--time", "60") if command.startswith("slurm") else ()
    said = sm(*command.split(), *more, "--set", "checkpoints=s3:/bucket", code=2)
    assert "--set checkpoints: s3:/bucket is neither a folder nor a URL: write s3://…" in said
    assert len(said.splitlines()) == 1
    assert not (here / "s3:").exists()
    found = resolved("criteria", {"checkpoints": Value("./s3:/bucket", "")})[0].settings
    assert found.checkpoints == "./s3:/bucket"


def test_a_setting_that_cannot_be_read_is_named() -> None:
    with pytest.raises(UserError, match=r"^--set name: the value"):
        assigned(["name=[red]x"])


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", ""),
        ("storage: my runs.db", " --storage '{}/my runs.db'"),
        ("storage: postgresql://u:p@h/d", ""),
        ("storage: 'postgresql://u@h/d?a=1&b=2'", " --storage 'postgresql://u@h/d?a=1&b=2'"),
        ("outdir: out", " --storage {}/out/supermax.db"),
    ],
)
def test_hints_can_be_pasted(text: str, hint: str, here: Path) -> None:
    (here / "s.yaml").write_text(f"agent: criteria\n{text}\n")
    settings = resolve(None, file=here / "s.yaml", presets=presets()).settings
    assert _where(settings) == hint.format(here)


def test_a_storage_with_a_password_is_named_by_the_user(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The printed command, typed into a shell, has the next one find the storage."""
    url = "postgresql://u:hunter2@h/d"
    (here / "s.yaml").write_text(f"agent: criteria\nstorage: {url}\n")
    settings = resolve(None, file=here / "s.yaml", presets=presets()).settings
    (line,) = _name_storage(settings)
    assert "hunter2" not in line
    typed = f"{line.partition(': ')[2]}\n{url}\nenv\n"
    said = subprocess.run(["bash"], input=typed, capture_output=True, text=True, check=True)
    assert f"SUPERMAX_STORAGE={url}\n" in said.stdout
    monkeypatch.setenv("SUPERMAX_STORAGE", url)
    assert _name_storage(settings) == []
    assert _where(settings) == ""


@pytest.mark.parametrize("prefix", ["", "sqlite:///", "sqlite+pysqlite:///"])
def test_the_cache_default_cache_a_storage_is_found_by_url_too(prefix: str, here: Path) -> None:
    from supermax._util.attributes import CACHE
    from supermax.ui.cli.maintenance import _default_cache

    assert _default_cache(f"{prefix}supermax.db") == here / CACHE
    assert _default_cache("postgresql://u:p@h/d") is None


def test_several_objectives_have_a_front(here: Path) -> None:
    study = optuna.create_study(
        storage="sqlite:///two.db", study_name="two", directions=["minimize", "maximize"]
    )
    where = ("--storage", "two.db")
    assert "–" in sm("study", "list", *where)
    for values in ((1.0, 1.0), (2.0, 2.0), (3.0, 0.0)):
        study.add_trial(optuna.trial.create_trial(values=values))
    for command in (("status",), ("status", "two"), ("study", "list"), ("study", "show", "two")):
        assert "front of 2" in sm(*command, *where)
    assert "two.db holds 1 study" in sm("doctor", "--preset", "demo", *where)


def test_no_part_of_a_log_is_printed_twice() -> None:
    log = "".join(f"line {i}\n" for i in range(9))
    assert _unprinted("", log) == log
    assert _unprinted(log[:21], log) == log[21:]
    assert _unprinted(log[:21], log[10:]) == log[21:]  # it begins within a line
    assert _unprinted(log, log[10:]) == ""
    assert _unprinted("another\n", log) == log
    assert _unprinted(log, log + log) == log  # two attempts that print the same


def test_the_tail_of_a_log_has_the_whole_stack() -> None:
    stack = ["Fatal Python error: Segmentation fault", *(f"  File {i}" for i in range(12)), "end"]
    assert _tail(["a", "b", *stack]) == stack
    assert _tail([*stack[:1], *map(str, range(100))]) == list(map(str, range(60, 100)))
    assert _tail(list("abcdefgh")) == list("cdefgh")


def test_a_fault_has_one_culprit_over_all_attempts() -> None:
    def fault(trial: int, attempt: int, kind: str, culprit: str) -> FaultRecord:
        return FaultRecord(trial, attempt, kind, culprit, "", "")

    found = [
        fault(0, 1, "signal SIGSEGV", "machine"),
        fault(0, 2, "signal SIGSEGV", "configuration or code"),
        fault(1, 1, "signal SIGSEGV", "machine"),
    ]
    culprits = [each.culprit for each in _with_final_culprits(found)]
    assert culprits == ["configuration or code", "configuration or code", "machine"]


def test_the_doctor_reports_a_missing_file_once(here: Path) -> None:
    said = sm("doctor", "nosuch.yaml", code=1)
    assert said.count("There is no file nosuch.yaml") == 1
    assert "✗ settings" in said


@pytest.mark.parametrize(
    ("name", "about"), [("spaces.space_for", "settings"), ("doctor.machine", "machine ")]
)
def test_a_check_of_the_doctor_that_raises_has_failed(
    name: str, about: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no such register")

    monkeypatch.setattr(f"supermax.search.{name}", broken)
    said = sm("doctor", "criteria", code=1)
    assert f"✗ {about} the check failed: RuntimeError: no such register" in said
    assert "A run cannot start" in said
    assert "Traceback" not in said


def test_a_missing_argument_is_named_with_what_to_give(here: Path) -> None:
    said = sm("study", "migrate", "notes.yaml", code=2)
    assert "Missing argument 'space': a space file, or the name of a shipped space." in said
    assert "Missing argument 'file': CSV, JSONL or Parquet file, folder, or hub:NAME" in sm(
        "predict", "m", code=2
    )
    assert "Missing option '--out'" in sm("predict", "m", "notes.csv", code=2)
